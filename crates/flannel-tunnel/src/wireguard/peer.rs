//! One peer: its sessions, the handshake under way, what waits for it, and when what is due.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use flannel_common::{PresharedKey, PublicKey};

use super::config::WireguardPeer;
use super::handshake::{Begun, Marks, Timestamp};
use super::session::Session;
use super::waiting::{WaitingBytes, WaitingPackets};

/// How long an answer to a handshake is waited for, and for how long in all.
pub(super) const RETRY: Duration = Duration::from_secs(5);
pub(super) const GIVE_UP: Duration = Duration::from_secs(90);
/// Whoever has received and has nothing to say, says so after this.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(10);

/// The sessions of a peer. They change together.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    /// By which is sent.
    pub(super) current: Option<Arc<Session>>,
    /// Packets of it may still be under way.
    pub(super) previous: Option<Arc<Session>>,
    /// Of a handshake that the other side began: used when it is, for only then is it known to have our answer.
    pub(super) next: Option<Arc<Session>>,
}

impl Sessions {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.current.iter().chain(&self.previous).chain(&self.next)
    }
}

/// What only one thread at a time looks at.
pub(super) struct Shaking {
    pub(super) marks: Marks,
    pub(super) begun: Option<Begun>,
    /// When the first try was made, and the last.
    pub(super) first_try: Duration,
    pub(super) last_try: Option<Duration>,
    /// A random part of the pause, so that two sides do not begin together for ever.
    pub(super) jitter: Duration,
    /// The latest initiation of the other side: an older one is a repetition by somebody who listens.
    pub(super) latest: Timestamp,
    /// When the last of them was answered.
    pub(super) answered: Option<Duration>,
}

pub(crate) struct Peer {
    /// Different for each, so that packets find out quickly whether two are the same.
    pub(crate) number: u64,
    pub(super) public_key: PublicKey,
    pub(super) preshared_key: ArcSwapOption<PresharedKey>,
    /// Where it is, as far as is known.
    endpoint: ArcSwap<SocketAddr>,
    pub(super) keepalive: AtomicU16,
    pub(super) sessions: ArcSwap<Sessions>,
    pub(super) shaking: Mutex<Shaking>,
    waiting: Mutex<WaitingPackets>,
    pub(super) due: Due,
}

/// When what is due, in milliseconds of the device's clock; 0: never.
#[derive(Default)]
pub(super) struct Due {
    /// To say that what was sent has come.
    keepalive: AtomicU64,
    /// To doubt that the other side is still there.
    handshake: AtomicU64,
    persistent: AtomicU64,
}

impl Due {
    fn set(of: &AtomicU64, at: Duration) {
        of.store(at.as_millis() as u64, Ordering::Relaxed);
    }

    fn set_if_never(of: &AtomicU64, at: Duration) {
        if of.load(Ordering::Relaxed) == 0 {
            Self::set(of, at);
        }
    }

    fn never(of: &AtomicU64) {
        if of.load(Ordering::Relaxed) != 0 {
            of.store(0, Ordering::Relaxed);
        }
    }

    fn has_come(of: &AtomicU64, now: Duration) -> bool {
        let at = of.load(Ordering::Relaxed);
        at != 0 && now.as_millis() as u64 >= at && {
            of.store(0, Ordering::Relaxed);
            true
        }
    }

    fn is_any(&self) -> bool {
        [&self.keepalive, &self.handshake, &self.persistent]
            .iter()
            .any(|at| at.load(Ordering::Relaxed) != 0)
    }
}

impl Peer {
    /// `waiting`: the bytes that wait for sessions with any peer of the device.
    pub(super) fn new(
        number: u64,
        config: &WireguardPeer,
        waiting: &WaitingBytes,
        now: Duration,
    ) -> Self {
        let peer = Self {
            number,
            public_key: config.public_key,
            preshared_key: ArcSwapOption::default(),
            endpoint: ArcSwap::from_pointee(config.endpoint),
            keepalive: AtomicU16::new(0),
            sessions: ArcSwap::default(),
            shaking: Mutex::new(Shaking {
                marks: Marks::new(config.public_key),
                begun: None,
                first_try: Duration::ZERO,
                last_try: None,
                jitter: Duration::ZERO,
                latest: [0; 12],
                answered: None,
            }),
            waiting: Mutex::new(WaitingPackets::new(waiting)),
            due: Due::default(),
        };
        peer.configure(None, config, now);
        peer
    }

    /// Follows another config. A peer that has moved by itself stays where it is, unless it is said to be
    /// somewhere else than it was said before.
    pub(super) fn configure(
        &self,
        former: Option<&WireguardPeer>,
        config: &WireguardPeer,
        now: Duration,
    ) {
        self.preshared_key.store(config.preshared_key.clone().map(Arc::new));
        if former.is_none_or(|former| former.endpoint != config.endpoint) {
            self.move_to(config.endpoint);
        }
        if self.keepalive.swap(config.keepalive, Ordering::Relaxed) != config.keepalive {
            match config.keepalive {
                0 => Due::never(&self.due.persistent),
                _ => Due::set(&self.due.persistent, now),
            }
        }
    }

    pub(crate) fn endpoint(&self) -> SocketAddr {
        **self.endpoint.load()
    }

    pub(super) fn move_to(&self, endpoint: SocketAddr) {
        if self.endpoint() != endpoint {
            self.endpoint.store(Arc::new(endpoint));
        }
    }

    pub(super) fn shaking(&self) -> MutexGuard<'_, Shaking> {
        self.shaking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to send with, if there is something.
    pub(super) fn session(&self, now: Duration) -> Option<Arc<Session>> {
        self.sessions.load().current.as_ref().filter(|session| session.may_send(now)).cloned()
    }

    /// Lets a packet wait for a session. Returns how many are lost by it.
    pub(super) fn wait(&self, packet: Vec<u8>) -> u64 {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(packet)
    }

    pub(super) fn take_waiting(&self) -> VecDeque<Vec<u8>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Something was sent that the other side can read.
    pub(super) fn sent(&self, data: bool, now: Duration) {
        Due::never(&self.due.keepalive);
        if data {
            Due::set_if_never(&self.due.handshake, now + KEEPALIVE + RETRY);
        }
        self.heard_or_said(now);
    }

    /// Something authentic has come.
    pub(super) fn received(&self, data: bool, now: Duration) {
        Due::never(&self.due.handshake);
        if data {
            Due::set_if_never(&self.due.keepalive, now + KEEPALIVE);
        }
        self.heard_or_said(now);
    }

    pub(super) fn heard_or_said(&self, now: Duration) {
        let interval = self.keepalive.load(Ordering::Relaxed);
        if interval != 0 {
            Due::set(&self.due.persistent, now + Duration::from_secs(interval.into()));
        }
    }

    /// Whether an empty packet is to be sent now.
    pub(super) fn is_keepalive_due(&self, now: Duration) -> bool {
        let asked = Due::has_come(&self.due.keepalive, now);
        Due::has_come(&self.due.persistent, now) || asked
    }

    /// Whether the other side has not been heard for too long after something was sent.
    pub(super) fn is_doubtful(&self, now: Duration) -> bool {
        Due::has_come(&self.due.handshake, now)
    }

    /// Whether anything can become due without a packet.
    pub(super) fn is_idle(&self) -> bool {
        !self.due.is_any()
            && self.sessions.load().iter().next().is_none()
            && self.shaking().begun.is_none()
    }
}

/// It holds secrets.
impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wireguard peer {} at {}", self.public_key, self.endpoint())
    }
}
