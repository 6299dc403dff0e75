//! What went wrong with a connection, in words that tell an operator where to look.

use std::error::Error;
use std::io;

use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as TlsError};

/// With what lies beneath, which is what tells people something. `host` is whom we wanted to talk to.
pub(crate) fn explain(error: &(dyn Error + 'static), host: &str) -> String {
    let mut text = error.to_string();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = tls_error(error) {
            return format!("TLS: {}", in_words(error, host).unwrap_or_else(|| error.to_string()));
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            return format!("what answers there does not speak plain HTTP; use https:// ({error})");
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
    Some(match error {
        TlsError::InvalidCertificate(bad) => match bad {
            Bad::UnknownIssuer | Bad::BadSignature => {
                "the API server's certificate is not signed by the authority that we were given (ca.crt of the \
                 service account, or certificate-authority of the kubeconfig): was it replaced?"
                    .to_owned()
            }
            Bad::Expired | Bad::ExpiredContext { .. } => {
                "the API server's certificate has expired: renew it (or is this machine's clock wrong?)"
                    .to_owned()
            }
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "the API server's certificate is not valid yet: check the clocks of both machines".to_owned()
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => format!(
                "the API server's certificate is not for {host}: use one of its names, or set tls-server-name in \
                 the kubeconfig ({error})"
            ),
            _ => return None,
        },
        TlsError::InvalidMessage(_) => "the server does not speak TLS: use http:// if that is meant".to_owned(),
        TlsError::AlertReceived(
            Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::UnsupportedCertificate
            | Alert::BadCertificate,
        ) => format!("the API server does not accept our client certificate ({error}): renew it"),
        _ => return None,
    })
}
