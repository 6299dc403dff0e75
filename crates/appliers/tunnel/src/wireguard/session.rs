//! A session: two keys that are valid for three minutes, and the counters that no packet may share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ring::aead::{Aad, LessSafeKey};
use serde::{Deserialize, Serialize};

use super::handshake::Keys;
use super::messages::{DATA_HEADER, counter, data_header};
use super::primitives::{TAG, aead, nonce};
use super::replay::ReplayWindow;

/// Age and number of packets after which a session is renewed, or not used any more.
const RENEW_AFTER: Duration = Duration::from_secs(120);
pub(super) const SESSION_LIFETIME: Duration = Duration::from_secs(180);
const RENEW_AFTER_PACKETS: u64 = 1 << 60;
const MAX_PACKETS: u64 = u64::MAX - (1 << 13) - 1;

pub(crate) struct Session {
    /// Indices by which packets find the session here, and at the other side.
    pub(super) local: u32,
    remote: u32,
    initiator: bool,
    /// Time on the device's own clock.
    made: Duration,
    sending: LessSafeKey,
    receiving: LessSafeKey,
    sent: AtomicU64,
    seen: Mutex<ReplayWindow>,
    keys: Keys,
    /// Made with a former key of this node: still read, not used to send.
    retired: AtomicBool,
    /// Its keys belong to another process by now.
    departed: AtomicBool,
}

/// A session as one process hands it to the next. It is not shown.
#[derive(Serialize, Deserialize)]
pub(crate) struct HandedSession {
    pub(super) local: u32,
    remote: u32,
    initiator: bool,
    age: Duration,
    #[serde(flatten)]
    keys: Keys,
    sent: u64,
    seen: ReplayWindow,
    retired: bool,
}

impl Session {
    pub(super) fn new(local: u32, remote: u32, initiator: bool, keys: Keys, now: Duration) -> Self {
        Self {
            local,
            remote,
            initiator,
            made: now,
            sending: aead(&keys.sending),
            receiving: aead(&keys.receiving),
            sent: AtomicU64::new(0),
            seen: Mutex::default(),
            keys,
            retired: AtomicBool::new(false),
            departed: AtomicBool::new(false),
        }
    }

    pub(super) fn is_good(&self, now: Duration) -> bool {
        now < self.made + SESSION_LIFETIME
            && self.sent.load(Ordering::Relaxed) < MAX_PACKETS
            && !self.departed.load(Ordering::Relaxed)
    }

    pub(super) fn may_send(&self, now: Duration) -> bool {
        self.is_good(now) && !self.retired.load(Ordering::Relaxed)
    }

    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether a sender has to begin a new session. Of both sides one does.
    pub(super) fn is_old_to_send(&self, now: Duration) -> bool {
        (self.initiator && now >= self.made + RENEW_AFTER)
            || self.sent.load(Ordering::Relaxed) >= RENEW_AFTER_PACKETS
    }

    /// The same for a side that only receives: late enough that the other side has had its chance.
    pub(super) fn is_old_to_receive(&self, now: Duration, margin: Duration) -> bool {
        self.initiator && now + margin >= self.made + SESSION_LIFETIME
    }

    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.made)
    }

    pub(super) fn take_counters(&self, packets: usize) -> u64 {
        self.sent.fetch_add(packets as u64, Ordering::Relaxed)
    }

    /// Encrypts a packet whose padded text is in its place; `message` is what is sent.
    pub(super) fn seal(&self, counter: u64, message: &mut [u8]) {
        let (header, rest) = message.split_at_mut(DATA_HEADER);
        header.copy_from_slice(&data_header(self.remote, counter));
        let (text, tag) = rest.split_at_mut(rest.len() - TAG);
        let sealed = self.sending.seal_in_place_separate_tag(nonce(counter), Aad::empty(), text);
        match sealed {
            Ok(made) => tag.copy_from_slice(made.as_ref()),
            // No plain text may stay there.
            Err(_) => text.fill(0),
        }
    }

    /// Seals a text with its padding into a complete message.
    pub(super) fn message(&self, text: &[u8], padded: usize) -> Vec<u8> {
        let mut message = vec![0; DATA_HEADER + padded + TAG];
        message[DATA_HEADER..][..text.len()].copy_from_slice(text);
        self.seal(self.take_counters(1), &mut message);
        message
    }

    /// Decrypts a packet in place and returns its length behind its header; `None` if forged or repeated.
    pub(super) fn open(&self, message: &mut [u8]) -> Option<usize> {
        let counter = counter(message);
        if counter >= MAX_PACKETS || !self.seen.lock().may_take(counter) {
            return None;
        }
        let text = &mut message[DATA_HEADER..];
        let opened = self.receiving.open_in_place(nonce(counter), Aad::empty(), text).ok()?.len();
        self.seen.lock().take(counter).then_some(opened)
    }

    /// Takes out what the next process goes on with. From then on it is useless here, even to a thread that has it.
    pub(super) fn hand_over(&self, now: Duration) -> HandedSession {
        // First, so that the number below is one that nobody exceeds.
        self.departed.store(true, Ordering::SeqCst);
        HandedSession {
            local: self.local,
            remote: self.remote,
            initiator: self.initiator,
            age: self.age(now),
            keys: Keys { sending: self.keys.sending, receiving: self.keys.receiving },
            sent: self.sent.load(Ordering::Relaxed),
            seen: self.seen.lock().clone(),
            retired: self.retired.load(Ordering::Relaxed),
        }
    }

    /// Adopts a session; `None` if its window is not one of this version: peers then agree upon another session.
    pub(super) fn adopt(handed: HandedSession, now: Duration) -> Option<Self> {
        let HandedSession { local, remote, initiator, age, keys, sent, seen, retired } = handed;
        if !seen.is_whole() {
            return None;
        }
        let (sent, seen, retired) = (sent.into(), Mutex::new(seen), retired.into());
        let made = now.saturating_sub(age);
        Some(Self { sent, seen, retired, ..Self::new(local, remote, initiator, keys, made) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Session, Session) {
        let keys = |sending, receiving| Keys { sending: [sending; 32], receiving: [receiving; 32] };
        let made = Duration::from_secs(1000);
        (Session::new(1, 2, true, keys(5, 6), made), Session::new(2, 1, false, keys(6, 5), made))
    }

    #[test]
    fn a_packet_is_read_once_by_whom_it_is_for() {
        let (one, two) = pair();
        let sealed = one.message(b"hello", 16);
        assert!(!sealed.windows(5).any(|window| window == b"hello"));
        let mut message = sealed.clone();
        assert_eq!(two.open(&mut message), Some(16));
        assert_eq!(&message[DATA_HEADER..][..5], b"hello");
        assert_eq!(two.open(&mut sealed.clone()), None, "it has come before");
        assert_eq!(one.open(&mut one.message(b"hello", 16)), None, "it is not for the sender");
        let mut altered = one.message(b"hello", 16);
        altered[20] ^= 1;
        assert_eq!(two.open(&mut altered), None);
    }

    #[test]
    fn a_session_that_was_handed_over_is_not_used_again_where_it_was() {
        let (one, now) = (pair().0, Duration::from_secs(1060));
        assert!(one.is_good(now) && one.may_send(now));
        one.hand_over(now);
        assert!(!one.is_good(now) && !one.may_send(now));
    }

    #[test]
    fn a_session_with_a_window_of_another_size_is_not_adopted() {
        let (one, now) = (pair().0, Duration::from_secs(1060));
        let mut handed = serde_json::to_value(one.hand_over(now)).expect("it is written");
        handed["seen"]["words"] = serde_json::json!([0]);
        let handed = serde_json::from_value(handed).expect("it is read");
        assert!(Session::adopt(handed, now).is_none());
    }

    #[test]
    fn what_is_handed_over_goes_on_where_it_was() {
        let (one, two) = pair();
        let first = one.message(b"first", 16);
        assert!(two.open(&mut first.clone()).is_some());
        let now = Duration::from_secs(1060);
        let over = |session: &Session| {
            let text = serde_json::to_string(&session.hand_over(now)).expect("it is written");
            // The next process has a clock of its own.
            Session::adopt(
                serde_json::from_str(&text).expect("it is read"),
                Duration::from_secs(500),
            )
            .expect("its window is whole")
        };
        let (one, two) = (over(&one), over(&two));
        assert_eq!(two.open(&mut first.clone()), None, "it has come before");
        assert!(two.open(&mut one.message(b"second", 16)).is_some());
        assert!(one.is_good(Duration::from_secs(619)) && !one.is_good(Duration::from_secs(620)));
        assert!(
            one.is_old_to_send(Duration::from_secs(560))
                && !two.is_old_to_send(Duration::from_secs(619))
        );
    }
}
