//! WireGuard's keys: 32 bytes each, written as base64. Those that are secret show nothing of themselves, are compared
//! in constant time, and are overwritten when they are dropped.

use std::fmt;
use std::str::FromStr;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

const LEN: usize = 32;
/// What a secret is shown as.
const HIDDEN: &str = "<hidden>";

/// What peers know a node by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; LEN]);

#[derive(Clone)]
pub struct PrivateKey([u8; LEN]);

/// A secret that all nodes share besides their own keys.
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
    )*};
}

secret_bytes!(PrivateKey, PresharedKey);

/// It does not say what it was: it may have been a secret with one wrong character.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a WireGuard key: it must be 32 bytes in base64, as `wg genkey` prints them")]
pub struct InvalidKey;

impl PrivateKey {
    /// Of 32 bytes that nobody can guess.
    pub fn from_random(mut bytes: [u8; LEN]) -> Self {
        bytes[0] &= 248;
        bytes[31] = bytes[31] & 127 | 64;
        Self(bytes)
    }

    pub fn public(&self) -> PublicKey {
        let secret = x25519_dalek::StaticSecret::from(self.0);
        PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes())
    }

    /// The public key, as its owner announces it.
    pub fn from_bytes(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    /// As the key file has it. Not for any log.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(encode(&self.0))
    }
}

impl PresharedKey {
    pub fn from_bytes(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; LEN] {
        &self.0
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
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(bytes: &[u8; LEN]) -> String {
    let mut text = String::with_capacity(44);
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
        let number = number << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let sextet = (number >> (18 - 6 * at)) & 63;
            text.push(if at > chunk.len() { '=' } else { char::from(ALPHABET[sextet as usize]) });
        }
    }
    text
}

/// Line breaks are passed over, as the Go flannel does.
fn decode(text: &str) -> Result<[u8; LEN], InvalidKey> {
    // Of the right size from the start: one that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    let (mut number, mut bits) = (0u32, 0);
    let text = text.trim().trim_end_matches('=');
    for byte in text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')) {
        let sextet = ALPHABET.iter().position(|it| *it == byte).ok_or(InvalidKey)?;
        number = number << 6 | sextet as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((number >> bits) as u8);
            number &= (1 << bits) - 1;
        }
    }
    // What is left over is padding.
    let whole = number == 0;
    bytes.as_slice().try_into().ok().filter(|_| whole).ok_or(InvalidKey)
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
