//! Primitives of WireGuard, for the Noise handshake and beside it: X25519, ChaCha20-Poly1305, BLAKE2s.

use blake2::digest::consts::{U16, U32};
use blake2::digest::{Digest, FixedOutput as _, KeyInit as _, Update as _};
use blake2::{Blake2s256, Blake2sMac};
use flannel_common::fill_with_random;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize as _, Zeroizing};

pub(super) const TAG: usize = 16;

pub(super) fn aead(key: &[u8; 32]) -> LessSafeKey {
    match UnboundKey::new(&CHACHA20_POLY1305, key) {
        Ok(key) => LessSafeKey::new(key),
        Err(_) => unreachable!("a key of 32 bytes has the right length"),
    }
}

pub(super) fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

pub(super) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Blake2s256::new();
    parts.iter().for_each(|part| Digest::update(&mut hasher, part));
    hasher.finalize().into()
}

/// Keyed BLAKE2s with a result of 16 bytes. The key has at most 32.
pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let Ok(mut mac) = Blake2sMac::<U16>::new_from_slice(key) else {
        unreachable!("keys here are of 16 or 32 bytes")
    };
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize_fixed().into()
}

/// XChaCha20-Poly1305: the key that its longer nonce leads to, and the rest of that nonce.
fn stretched(key: &[u8; 32], nonce: &[u8; 24]) -> (LessSafeKey, Nonce) {
    let (first, rest) = nonce.split_at(16);
    let mut head = [0; 16];
    head.copy_from_slice(first);
    let subkey = chacha20::hchacha::<chacha20::R20>(key.into(), &head.into());
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(rest);
    (aead(&subkey.into()), Nonce::assume_unique_for_key(bytes))
}

pub(super) fn seal_cookie(
    key: &[u8; 32],
    nonce: &[u8; 24],
    cookie: &[u8; 16],
    about: &[u8],
) -> [u8; 32] {
    let (key, nonce) = stretched(key, nonce);
    let mut sealed = [0; 32];
    sealed[..16].copy_from_slice(cookie);
    if let Ok(tag) = key.seal_in_place_separate_tag(nonce, Aad::from(about), &mut sealed[..16]) {
        sealed[16..].copy_from_slice(tag.as_ref());
    }
    sealed
}

pub(super) fn open_cookie(
    key: &[u8; 32],
    nonce: &[u8; 24],
    sealed: &[u8; 32],
    about: &[u8],
) -> Option<[u8; 16]> {
    let (key, nonce) = stretched(key, nonce);
    let mut bytes = *sealed;
    let cookie = key.open_in_place(nonce, Aad::from(about), &mut bytes).ok()?;
    cookie.first_chunk().copied()
}

pub(super) struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(System))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<X25519>::default() as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::Blake2s).then(|| Box::<Blake2s>::default() as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::<ChaChaPoly>::default() as _)
    }
}

struct System;

impl Random for System {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        fill_with_random(dest).map_err(|_| Error::Rng)
    }
}

#[derive(Default)]
struct X25519 {
    private: [u8; 32],
    public: [u8; 32],
}

impl Drop for X25519 {
    fn drop(&mut self) {
        self.private.zeroize();
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, privkey: &[u8]) {
        if let Some(key) = privkey.first_chunk() {
            self.private = *key;
            self.public = PublicKey::from(&StaticSecret::from(self.private)).to_bytes();
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut private = Zeroizing::new([0; 32]);
        rng.try_fill_bytes(&mut private[..])?;
        self.set(&private[..]);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = PublicKey::from(*pubkey.first_chunk::<32>().ok_or(Error::Dh)?);
        let shared = StaticSecret::from(self.private).diffie_hellman(&public);
        // A public key of low order makes a secret that everybody knows.
        if !shared.was_contributory() {
            return Err(Error::Dh);
        }
        out.get_mut(..32).ok_or(Error::Dh)?.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

#[derive(Default)]
struct ChaChaPoly([u8; 32]);

impl Drop for ChaChaPoly {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = *key;
    }

    fn encrypt(&self, counter: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let sealed =
            aead(&self.0).seal_in_place_separate_tag(nonce(counter), Aad::from(authtext), text);
        let Ok(tag) = sealed else { unreachable!("messages of a handshake are short") };
        rest[..TAG].copy_from_slice(tag.as_ref());
        plaintext.len() + TAG
    }

    fn decrypt(
        &self,
        counter: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let mut bytes = ciphertext.to_vec();
        let text = aead(&self.0)
            .open_in_place(nonce(counter), Aad::from(authtext), &mut bytes)
            .map_err(|_| Error::Decrypt)?;
        out.get_mut(..text.len()).ok_or(Error::Decrypt)?.copy_from_slice(text);
        Ok(text.len())
    }
}

#[derive(Default)]
struct Blake2s(Blake2s256);

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        "BLAKE2s"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Blake2s256::default();
    }

    fn input(&mut self, data: &[u8]) {
        Digest::update(&mut self.0, data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let result: blake2::digest::array::Array<u8, U32> = self.0.finalize_reset();
        out[..32].copy_from_slice(&result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_read_with_its_key_and_with_what_it_was_about() {
        let (key, nonce) = ([7; 32], [9; 24]);
        let sealed = seal_cookie(&key, &nonce, &[3; 16], b"about");
        assert_eq!(open_cookie(&key, &nonce, &sealed, b"about"), Some([3; 16]));
        assert_eq!(open_cookie(&key, &nonce, &sealed, b"other"), None);
        assert_eq!(open_cookie(&[8; 32], &nonce, &sealed, b"about"), None);
    }

    #[test]
    fn the_longer_nonce_leads_to_the_key_that_its_description_says() {
        // draft-irtf-cfrg-xchacha, 2.2.1.
        let key: [u8; 32] = std::array::from_fn(|at| at as u8);
        let head: [u8; 16] = [0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0, 0x31, 0x41, 0x59, 0x27];
        let subkey: [u8; 32] =
            chacha20::hchacha::<chacha20::R20>((&key).into(), &head.into()).into();
        assert_eq!(subkey[..4], [0x82, 0x41, 0x3b, 0x42]);
        assert_eq!(subkey[28..], [0x26, 0xd3, 0xec, 0xdc]);
    }
}
