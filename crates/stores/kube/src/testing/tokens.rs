//! Tokens of service accounts that end soon: the API server itself makes none for less than ten minutes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::Value;

use super::ApiServer;

/// So long after its end the API server still takes a token, because clocks differ.
const LEEWAY: Duration = Duration::from_secs(60);

impl ApiServer {
    /// The same token, taken for so long from now on and no longer; signed by the API server's own key. For
    /// some seconds more the API server remembers that it was good.
    pub fn token_that_ends(&self, token: &str, after: Duration) -> String {
        let mut parts = token.split('.');
        let (Some(header), Some(claims)) = (parts.next(), parts.next()) else {
            panic!("no token of a service account")
        };
        let claims = URL_SAFE_NO_PAD.decode(claims).expect("claims");
        let mut claims: Value = serde_json::from_slice(&claims).expect("claims");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        claims["exp"] = (now + after - LEEWAY).as_secs().into();
        let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
        let key = std::fs::read_to_string(self.file("accounts.key")).expect("the signing key");
        let key = KeyPair::from_pem(&key).expect("the signing key");
        let signature = key.sign(format!("{header}.{claims}").as_bytes()).expect("a signature");
        format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(plain(&signature)))
    }
}

/// The two numbers of an ECDSA signature with P-256, each in 32 bytes, as tokens have them; keys sign in DER.
fn plain(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut plain = Vec::new();
    for _ in 0..2 {
        let (length, number) = (usize::from(rest[1]), &rest[2..]);
        let digits = &number[length.saturating_sub(32)..length];
        plain.resize(plain.len() + 32 - digits.len(), 0);
        plain.extend_from_slice(digits);
        rest = &number[length..];
    }
    plain
}
