//! What went wrong with a connection, in words that tell an operator which file to look at.

use std::error::Error;
use std::io;

use rustls::{AlertDescription as Alert, CertificateError, Error as TlsError};

/// With what lies beneath, which is what tells people something. `host` is whom we wanted to talk to.
pub(super) fn explain(error: &(dyn Error + 'static), host: &str) -> String {
    let mut text = error.to_string();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = tls_error(error) {
            return format!("TLS: {}", in_words(error, host).unwrap_or_else(|| error.to_string()));
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            return format!(
                "what answers there does not speak plain HTTP; if it is a server with TLS, use https:// in remote, \
                 and remote-token-file or remote-cafile ({error})"
            );
        }
        next = error.source();
        text.extend(next.map(|error| format!(": {error}")));
    }
    text
}

/// An I/O error hides what it was made of from those who ask for its source.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let beneath = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.downcast_ref().or_else(|| beneath?.downcast_ref())
}

fn in_words(error: &TlsError, host: &str) -> Option<String> {
    use CertificateError as Bad;
    Some(match error {
        TlsError::InvalidCertificate(bad) => match bad {
            // Two authorities of one name look alike until the signature is checked.
            Bad::UnknownIssuer | Bad::BadSignature => {
                "the server's certificate is not signed by an authority that we trust: give remote-cafile, or a \
                 token as `flannelctl pki token` prints it, and check that it is the right server"
                    .to_owned()
            }
            Bad::Expired | Bad::ExpiredContext { .. } => {
                "the server's certificate has expired: renew it (or is this machine's clock wrong?)"
                    .to_owned()
            }
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: check the clocks of both machines"
                    .to_owned()
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => format!(
                "the server's certificate is not for {host}: use one of its names in remote, or give it \
                 a certificate with this one ({error})"
            ),
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                "the server's certificate is not one for servers: give it one that is".to_owned()
            }
            _ => return None,
        },
        TlsError::InvalidMessage(_) => {
            "the server does not speak TLS: give it a certificate, or use http:// in remote (and \
             remote-insecure, if there is a token)"
                .to_owned()
        }
        TlsError::AlertReceived(alert) => match alert {
            Alert::CertificateRequired => "the server asks for a certificate: give remote-certfile and \
                 remote-keyfile"
                .to_owned(),
            Alert::UnknownCA | Alert::DecryptError => {
                "the server does not accept our certificate: another authority has signed it".to_owned()
            }
            Alert::CertificateExpired => {
                "the server does not accept our certificate: it has expired, or is not valid yet"
                    .to_owned()
            }
            Alert::CertificateRevoked => {
                "the server does not accept our certificate: it has been revoked".to_owned()
            }
            Alert::UnsupportedCertificate | Alert::BadCertificate => {
                "the server does not accept our certificate: it is not one for clients, or makes no sense"
                    .to_owned()
            }
            _ => return None,
        },
        _ => return None,
    })
}
