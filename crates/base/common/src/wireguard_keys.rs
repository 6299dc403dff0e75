//! WireGuard's keys: 32 bytes each, written as base64. Secret ones are never shown, are compared in constant time,
//! and are overwritten when they are dropped.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

const LEN: usize = 32;

/// Public key, by which peers identify a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; LEN]);

#[derive(Clone)]
pub struct PrivateKey([u8; LEN]);

/// Secret that all nodes share besides their own keys.
#[derive(Clone)]
pub struct PresharedKey([u8; LEN]);

macro_rules! secret_bytes {
    ($($key:ident),*) => {$(
        impl PartialEq for $key {
            fn eq(&self, other: &Self) -> bool {
                self.0.ct_eq(&other.0).into()
            }
        }

        impl Eq for $key {}

        impl Drop for $key {
            fn drop(&mut self) {
                self.0.zeroize();
            }
        }

        impl fmt::Debug for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("<hidden>")
            }
        }

        impl $key {
            pub fn from_bytes(bytes: [u8; LEN]) -> Self {
                Self(bytes)
            }

            pub fn bytes(&self) -> &[u8; LEN] {
                &self.0
            }
        }
    )*};
}

secret_bytes!(PrivateKey, PresharedKey);

/// Error of a text that is not a key. It does not show the text, which may be a secret with one wrong character.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a WireGuard key: it must be 32 bytes in base64, as `wg genkey` prints them")]
pub struct InvalidKey;

impl PrivateKey {
    /// Private key made of 32 random bytes.
    pub fn from_random(mut bytes: [u8; LEN]) -> Self {
        bytes[0] &= 248;
        bytes[31] = bytes[31] & 127 | 64;
        Self(bytes)
    }

    pub fn public(&self) -> PublicKey {
        let secret = x25519_dalek::StaticSecret::from(self.0);
        PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes())
    }

    /// The key as the key file has it. Not for any log.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        decode(text).map(Self)
    }
}

impl FromStr for PrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        // The kernel keeps a key only in this form, and would seem to hold another one.
        decode(text).map(Self::from_random)
    }
}

impl FromStr for PresharedKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        decode(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Decodes base64. Line breaks are skipped, as the Go flannel does.
fn decode(text: &str) -> Result<[u8; LEN], InvalidKey> {
    let text = text.trim().trim_end_matches('=');
    // Of the right size from the start: a growing string leaves copies behind.
    let mut letters = Zeroizing::new(String::with_capacity(text.len()));
    letters.extend(text.chars().filter(|letter| !matches!(letter, '\r' | '\n')));
    let mut bytes = Zeroizing::new([0; LEN + 4]);
    match STANDARD_NO_PAD.decode_slice(letters.as_bytes(), &mut bytes[..]) {
        Ok(LEN) => bytes[..LEN].try_into().map_err(|_| InvalidKey),
        _ => Err(InvalidKey),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_public_key_is_what_the_tools_of_wireguard_make_of_the_private_one() {
        // RFC 7748, section 6.1.
        let private: PrivateKey =
            "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=".parse().expect("a key");
        assert_eq!(private.public().to_string(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
    }

    #[test]
    fn a_key_file_with_line_breaks_is_read_and_nonsense_is_not() {
        let key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        assert_eq!(
            format!("{key}\r\n").parse::<PublicKey>().map(|k| k.to_string()),
            Ok(key.into())
        );
        for wrong in ["", "abc", &key[1..], "!SDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(InvalidKey), "{wrong}");
        }
    }

    #[test]
    fn secrets_show_nothing_of_themselves() {
        let private = PrivateKey::from_random([77; 32]);
        let shown = format!("{private:?} {:?}", PresharedKey([77; 32]));
        assert_eq!(shown, "<hidden> <hidden>");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes: [u8; 32]) {
            let key = PublicKey(bytes);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
}
