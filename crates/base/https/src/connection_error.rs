//! Connection errors in words that tell an operator where to look.

use std::error::Error;
use std::io;

use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as TlsError};

use crate::target::{Advice, Target};

/// Describes an error with its causes.
pub(crate) fn explain(error: &(dyn Error + 'static), target: &Target) -> String {
    let mut text = error.to_string();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = tls_error(error) {
            return format!(
                "TLS: {}",
                describe_tls_error(error, target).unwrap_or_else(|| error.to_string())
            );
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            let advice = target.advice.use_tls;
            return format!("what answers there does not speak plain HTTP; {advice} ({error})");
        }
        next = error.source();
        text.extend(next.map(|error| format!(": {error}")));
    }
    text
}

/// Finds a TLS error, also inside an I/O error, which hides it from `source`.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let beneath = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.downcast_ref().or_else(|| beneath?.downcast_ref())
}

fn describe_tls_error(error: &TlsError, target: &Target) -> Option<String> {
    let &Advice { server, untrusted, wrong_name, no_tls, certificate_missing, .. } = target.advice;
    let not_accepted = |why: &str| format!("{server} does not accept our certificate: {why}");
    Some(match error {
        TlsError::InvalidCertificate(bad) => match bad {
            // Two authorities of one name look alike until the signature is checked.
            Bad::UnknownIssuer | Bad::BadSignature => format!(
                "{server}'s certificate is not signed by an authority that we trust: {untrusted}"
            ),
            Bad::Expired | Bad::ExpiredContext { .. } => format!(
                "{server}'s certificate has expired: renew it (or is this machine's clock wrong?)"
            ),
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => format!(
                "{server}'s certificate is not valid yet: check the clocks of both machines"
            ),
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                let name = target.server_name.as_ref().unwrap_or(&target.server.host);
                format!("{server}'s certificate is not for {name}: {wrong_name} ({error})")
            }
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                format!("{server}'s certificate is not one for servers: give it one that is")
            }
            _ => return None,
        },
        TlsError::InvalidMessage(_) => format!("{server} does not speak TLS: {no_tls}"),
        TlsError::AlertReceived(alert) => match alert {
            Alert::CertificateRequired => {
                format!("{server} asks for a certificate: {certificate_missing}")
            }
            Alert::UnknownCA | Alert::DecryptError => {
                not_accepted("another authority has signed it")
            }
            Alert::CertificateExpired => not_accepted("it has expired, or is not valid yet"),
            Alert::CertificateRevoked => not_accepted("it has been revoked"),
            Alert::UnsupportedCertificate | Alert::BadCertificate => {
                not_accepted("it is not one for clients, or makes no sense")
            }
            _ => return None,
        },
        _ => return None,
    })
}
