//! Functions that providers' signatures are made of.

use flannel_common::hex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::{digest, hmac};

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(crate) fn hmac256(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

pub(crate) fn hmac_sha1(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

pub(crate) fn sha256_hex(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

/// Encodes a text for URLs and forms: everything but what RFC 3986 calls unreserved becomes `%XX`.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_url_may_not_hold_is_encoded() {
        assert_eq!(encode("10.1.2.0/24 ä~-_"), "10.1.2.0%2F24%20%C3%A4~-_");
    }
}
