//! What signatures of several providers have in common, checked with code that is not the applier's.

use ring::{digest, hmac};

/// The header `Authorization` of AWS and of those who followed it.
pub(super) struct Authorization {
    pub(super) credential: String,
    /// Names of headers.
    pub(super) signed: String,
    pub(super) signature: String,
}

impl Authorization {
    pub(super) fn read(header: &str) -> Option<Self> {
        let part = |name: &str| {
            let rest = header.split_once(&format!("{name}="))?.1;
            Some(rest.split([',', ' ']).next()?.to_owned())
        };
        Some(Self {
            credential: part("Credential")?,
            signed: part("SignedHeaders")?,
            signature: part("Signature")?,
        })
    }
}

/// A text, signed with a key that is made of a secret and what it is good for.
pub(super) fn signature_of(secret: &str, good_for: &[&str], text: &str) -> String {
    let sign = |key: &[u8], what: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), what.as_bytes()).as_ref().to_vec()
    };
    let key = good_for.iter().fold(secret.as_bytes().to_vec(), |key, part| sign(&key, part));
    hexadecimal(&sign(&key, text))
}

pub(super) fn digest_of(bytes: &[u8]) -> String {
    hexadecimal(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
