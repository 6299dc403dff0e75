//! The handshake: Noise_IKpsk2, in WireGuard's two messages, with the MACs that keep floods away.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flannel_common::{PresharedKey, PrivateKey, PublicKey, random_bytes};
use serde::{Deserialize, Serialize};
use snow::{Builder, HandshakeState};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use super::messages::{
    COOKIE, COOKIE_LEN, INITIATION, INITIATION_LEN, NOISE_INITIATION, NOISE_RESPONSE, RESPONSE,
    RESPONSE_LEN, word,
};
use super::primitives::{self, Primitives};

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
const MAC: usize = 16;
/// The Noise name for "the key is mixed in at the end of the second message".
const PSK: u8 = 2;

/// Time of an initiation (TAI64N); each is later than the one before it.
pub(super) type Timestamp = [u8; 12];

/// Keys of a session, overwritten when they are dropped.
#[derive(Serialize, Deserialize)]
pub(super) struct Keys {
    pub(super) sending: [u8; 32],
    pub(super) receiving: [u8; 32],
}

impl Keys {
    /// Takes both keys out, and clears their sources.
    fn take(sending: &mut [u8; 32], receiving: &mut [u8; 32]) -> Self {
        let keys = Self { sending: *sending, receiving: *receiving };
        sending.zeroize();
        receiving.zeroize();
        keys
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.sending.zeroize();
        self.receiving.zeroize();
    }
}

pub(super) struct Identity {
    pub(super) private: PrivateKey,
    mac1: [u8; 32],
    cookie: [u8; 32],
}

impl Identity {
    pub(super) fn new(private: PrivateKey) -> Self {
        let public = private.public();
        Self { mac1: mac1_key(public), cookie: cookie_key(public), private }
    }

    /// Whether the sender of a message knows whom it is for.
    pub(super) fn is_meant(&self, message: &[u8]) -> bool {
        let Some(at) = message.len().checked_sub(2 * MAC) else { return false };
        primitives::mac(&self.mac1, &[&message[..at]]).ct_eq(&message[at..at + MAC]).into()
    }
}

fn mac1_key(public: PublicKey) -> [u8; 32] {
    primitives::hash(&[b"mac1----", &public.0])
}

fn cookie_key(public: PublicKey) -> [u8; 32] {
    primitives::hash(&[b"cookie--", &public.0])
}

#[derive(Default)]
pub(super) struct MessageMacs {
    mac1: [u8; 32],
    cookie_key: [u8; 32],
    /// Cookie of the other side, and until when it is valid.
    cookie: Option<([u8; 16], Duration)>,
    last_mac1: [u8; MAC],
}

const COOKIE_LIFE: Duration = Duration::from_secs(120);

impl MessageMacs {
    pub(super) fn new(public: PublicKey) -> Self {
        Self { mac1: mac1_key(public), cookie_key: cookie_key(public), ..Self::default() }
    }

    fn put(&mut self, message: &mut [u8], now: Duration) {
        let at = message.len() - 2 * MAC;
        self.last_mac1 = primitives::mac(&self.mac1, &[&message[..at]]);
        message[at..at + MAC].copy_from_slice(&self.last_mac1);
        if let Some((cookie, _)) = self.cookie.filter(|(_, until)| now < *until) {
            let mac2 = primitives::mac(&cookie, &[&message[..at + MAC]]);
            message[at + MAC..].copy_from_slice(&mac2);
        }
    }

    /// Keeps a cookie: the other side is busy, and wants to be shown what it sent us.
    pub(super) fn take_cookie(&mut self, message: &[u8], now: Duration) -> bool {
        let (Some(nonce), Some(sealed)) = (
            message.get(8..).and_then(|rest| rest.first_chunk::<24>()),
            message.get(32..).and_then(|rest| rest.first_chunk::<32>()),
        ) else {
            return false;
        };
        let cookie = primitives::open_cookie(&self.cookie_key, nonce, sealed, &self.last_mac1);
        self.cookie = cookie.map(|cookie| (cookie, now + COOKIE_LIFE)).or(self.cookie);
        cookie.is_some()
    }
}

/// Hands out cookies when there is too much to do.
#[derive(Default)]
pub(super) struct Cookies {
    /// Secret that they are made with, and its time.
    secret: Option<(Zeroizing<[u8; 32]>, Duration)>,
}

impl Cookies {
    fn cookie(&mut self, from: SocketAddr, now: Duration) -> Option<[u8; 16]> {
        let secret = match self.secret.take().filter(|(_, made)| now < *made + COOKIE_LIFE) {
            Some(secret) => secret,
            None => (Zeroizing::new(random_bytes().ok()?), now),
        };
        let (secret, _) = self.secret.insert(secret);
        let address = match from {
            SocketAddr::V4(v4) => v4.ip().octets().to_vec(),
            SocketAddr::V6(v6) => v6.ip().octets().to_vec(),
        };
        Some(primitives::mac(&secret[..], &[&address, &from.port().to_be_bytes()]))
    }

    pub(super) fn has_cookie(&mut self, message: &[u8], from: SocketAddr, now: Duration) -> bool {
        let Some(at) = message.len().checked_sub(MAC) else { return false };
        self.cookie(from, now).is_some_and(|cookie| {
            primitives::mac(&cookie, &[&message[..at]]).ct_eq(&message[at..]).into()
        })
    }

    /// Reply instead of the handshake.
    pub(super) fn reply(
        &mut self,
        own: &Identity,
        message: &[u8],
        from: SocketAddr,
        now: Duration,
    ) -> Option<[u8; COOKIE_LEN]> {
        let cookie = self.cookie(from, now)?;
        let at = message.len().checked_sub(2 * MAC)?;
        let nonce = random_bytes().ok()?;
        let sealed = primitives::seal_cookie(&own.cookie, &nonce, &cookie, &message[at..at + MAC]);
        let mut reply = [0; COOKIE_LEN];
        reply[0] = COOKIE;
        reply[4..8].copy_from_slice(&message[4..8]);
        reply[8..32].copy_from_slice(&nonce);
        reply[32..].copy_from_slice(&sealed);
        Some(reply)
    }
}

fn builder(own: &Identity) -> Option<Builder<'_>> {
    let builder = Builder::with_resolver(PATTERN.parse().ok()?, Box::new(Primitives));
    builder.prologue(PROLOGUE).ok()?.local_private_key(own.private.bytes()).ok()
}

fn preshared(key: Option<&PresharedKey>) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(key.map_or([0; 32], |key| *key.bytes()))
}

pub(super) struct PendingHandshake {
    noise: HandshakeState,
    /// Index by which the answer finds it.
    pub(super) index: u32,
}

/// Begins a handshake: returns the message, and the state that waits for the answer.
pub(super) fn begin(
    own: &Identity,
    peer: PublicKey,
    psk: Option<&PresharedKey>,
    index: u32,
    marks: &mut MessageMacs,
    clock: SystemTime,
    now: Duration,
) -> Option<(PendingHandshake, [u8; INITIATION_LEN])> {
    let psk = preshared(psk);
    let builder = builder(own)?.remote_public_key(&peer.0).ok()?.psk(PSK, &psk).ok()?;
    let mut noise = builder.build_initiator().ok()?;
    let mut message = [0; INITIATION_LEN];
    message[0] = INITIATION;
    message[4..8].copy_from_slice(&index.to_le_bytes());
    noise.write_message(&timestamp(clock), &mut message[NOISE_INITIATION]).ok()?;
    marks.put(&mut message, now);
    Some((PendingHandshake { noise, index }, message))
}

impl PendingHandshake {
    /// Finishes the handshake by its answer: returns the keys, and the other side's index of the session.
    pub(super) fn finish(&mut self, message: &[u8]) -> Option<(Keys, u32)> {
        self.noise.read_message(message.get(NOISE_RESPONSE)?, &mut []).ok()?;
        let (mut sending, mut receiving) = self.noise.dangerously_get_raw_split();
        Some((Keys::take(&mut sending, &mut receiving), word(message, 4)))
    }
}

/// A handshake that somebody else has begun, whose name is known but not yet whether it is wanted.
pub(super) struct ReceivedInitiation {
    noise: HandshakeState,
    pub(super) peer: PublicKey,
    pub(super) timestamp: Timestamp,
    /// The other side's index of the session.
    remote: u32,
}

pub(super) fn read_initiation(own: &Identity, message: &[u8]) -> Option<ReceivedInitiation> {
    let mut noise = builder(own)?.build_responder().ok()?;
    let mut timestamp = [0; 12];
    let len = noise.read_message(message.get(NOISE_INITIATION)?, &mut timestamp).ok()?;
    let peer = PublicKey(*noise.get_remote_static()?.first_chunk()?);
    let remote = word(message, 4);
    (len == timestamp.len()).then_some(ReceivedInitiation { noise, peer, timestamp, remote })
}

impl ReceivedInitiation {
    /// Answers it: returns the keys, the other side's index of the session, and the message.
    pub(super) fn answer(
        mut self,
        psk: Option<&PresharedKey>,
        index: u32,
        marks: &mut MessageMacs,
        now: Duration,
    ) -> Option<(Keys, u32, [u8; RESPONSE_LEN])> {
        self.noise.set_psk(PSK.into(), &preshared(psk)[..]).ok()?;
        let mut message = [0; RESPONSE_LEN];
        message[0] = RESPONSE;
        message[4..8].copy_from_slice(&index.to_le_bytes());
        message[8..12].copy_from_slice(&self.remote.to_le_bytes());
        self.noise.write_message(&[], &mut message[NOISE_RESPONSE]).ok()?;
        marks.put(&mut message, now);
        let (mut receiving, mut sending) = self.noise.dangerously_get_raw_split();
        Some((Keys::take(&mut sending, &mut receiving), self.remote, message))
    }
}

/// Timestamp of an initiation, rounded: it tells little of this clock, and is later than any made 20 ms before.
fn timestamp(clock: SystemTime) -> Timestamp {
    const TAI: u64 = 0x4000_0000_0000_000a;
    const WHOLE: u32 = 0x0100_0000;
    let since = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut stamp = [0; 12];
    stamp[..8].copy_from_slice(&(TAI + since.as_secs()).to_be_bytes());
    stamp[8..].copy_from_slice(&(since.subsec_nanos() & !(WHOLE - 1)).to_be_bytes());
    stamp
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn identity(byte: u8) -> Identity {
        Identity::new(PrivateKey::from_random([byte; 32]))
    }

    fn from() -> SocketAddr {
        "192.0.2.7:51820".parse().expect("an address")
    }

    #[test]
    fn both_sides_of_a_handshake_come_to_the_same_keys() {
        let (one, two) = (identity(1), identity(2));
        let psk = PresharedKey::from_bytes([5; 32]);
        for (first, second, same) in
            [(None, None, true), (Some(&psk), Some(&psk), true), (Some(&psk), None, false)]
        {
            let mut to_two = MessageMacs::new(two.private.public());
            let clock = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
            let (mut begun, message) =
                begin(&one, two.private.public(), first, 7, &mut to_two, clock, NOW)
                    .expect("it begins");
            assert!(two.is_meant(&message) && !one.is_meant(&message));
            let offered = read_initiation(&two, &message).expect("it is read");
            assert_eq!((offered.peer, offered.remote), (one.private.public(), 7));
            let mut to_one = MessageMacs::new(one.private.public());
            let (theirs, remote, answer) =
                offered.answer(second, 9, &mut to_one, NOW).expect("it is answered");
            assert_eq!((remote, word(&answer, 8)), (7, 7));
            assert!(one.is_meant(&answer));
            let ours = begun.finish(&answer);
            assert_eq!(ours.is_some(), same);
            if let Some((ours, remote)) = ours {
                assert_eq!(remote, 9);
                assert_eq!(ours.sending, theirs.receiving);
                assert_eq!(ours.receiving, theirs.sending);
            }
        }
    }

    #[test]
    fn an_initiation_that_is_for_somebody_else_is_not_read() {
        let (one, two, three) = (identity(1), identity(2), identity(3));
        let mut marks = MessageMacs::new(two.private.public());
        let (_, message) =
            begin(&one, two.private.public(), None, 7, &mut marks, SystemTime::now(), NOW)
                .expect("it begins");
        assert!(read_initiation(&three, &message).is_none());
        let mut altered = message;
        altered[60] ^= 1;
        assert!(read_initiation(&two, &altered).is_none() && !two.is_meant(&altered));
    }

    #[test]
    fn whoever_is_busy_is_shown_the_cookie_that_it_sent() {
        let (one, two) = (identity(1), identity(2));
        let (mut marks, mut cookies) = (MessageMacs::new(two.private.public()), Cookies::default());
        let begin = |marks: &mut MessageMacs, now| {
            begin(&one, two.private.public(), None, 7, marks, SystemTime::now(), now)
                .expect("it begins")
                .1
        };
        let first = begin(&mut marks, NOW);
        assert!(!cookies.has_cookie(&first, from(), NOW));
        let reply = cookies.reply(&two, &first, from(), NOW).expect("a reply");
        assert_eq!(word(&reply, 4), 7);
        assert!(
            marks.take_cookie(&reply, NOW)
                && !MessageMacs::new(one.private.public()).take_cookie(&reply, NOW)
        );
        let second = begin(&mut marks, NOW);
        assert!(cookies.has_cookie(&second, from(), NOW));
        assert!(!cookies.has_cookie(&second, "192.0.2.8:51820".parse().expect("an address"), NOW));
        let late = begin(&mut marks, NOW + COOKIE_LIFE);
        assert!(!cookies.has_cookie(&late, from(), NOW));
    }

    #[test]
    fn later_initiations_have_later_timestamps() {
        let at = |millis| timestamp(UNIX_EPOCH + Duration::from_millis(millis));
        assert!(at(1_700_000_000_000) < at(1_700_000_000_020));
        assert!(at(1_700_000_000_999) < at(1_700_000_001_000));
    }
}
