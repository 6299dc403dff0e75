//! One peer: its sessions, the handshake under way, waiting packets, and timers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use flannel_common::{PresharedKey, PublicKey};
use flannel_entries::tunnel::WireguardPeer;
use parking_lot::Mutex;

use super::handshake::{MessageMacs, PendingHandshake, Timestamp};
use super::session::Session;
use super::waiting::{WaitingBytes, WaitingPackets};

/// Time to wait for an answer to a handshake, and time after which to give up.
pub(super) const RETRY: Duration = Duration::from_secs(5);
pub(super) const GIVE_UP: Duration = Duration::from_secs(90);
/// Time after which a peer that has only received sends an empty packet.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(10);

/// Sessions of a peer. They change together.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    /// Session that packets are sent with.
    pub(super) current: Option<Arc<Session>>,
    /// Former session, of which packets may still be under way.
    pub(super) previous: Option<Arc<Session>>,
    /// Session that the other side began, used once that side uses it: only then it is known to have our answer.
    pub(super) next: Option<Arc<Session>>,
}

impl Sessions {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.current.iter().chain(&self.previous).chain(&self.next)
    }
}

#[derive(Default)]
pub(super) struct HandshakeState {
    pub(super) marks: MessageMacs,
    pub(super) begun: Option<PendingHandshake>,
    /// Time of the first attempt, and of the last.
    pub(super) first_try: Duration,
    pub(super) last_try: Option<Duration>,
    /// Random part of the pause, so that two sides do not begin together for ever.
    pub(super) jitter: Duration,
    /// Latest initiation of the other side: an older one is a replay.
    pub(super) latest: Timestamp,
    /// Time when the last of them was answered.
    pub(super) answered: Option<Duration>,
}

pub(crate) struct Peer {
    /// Different for each peer, so that packets find out quickly whether two are the same.
    pub(crate) number: u64,
    pub(crate) public_key: PublicKey,
    pub(super) preshared_key: ArcSwapOption<PresharedKey>,
    endpoint: ArcSwap<SocketAddr>,
    pub(super) keepalive: AtomicU16,
    pub(super) sessions: ArcSwap<Sessions>,
    pub(super) handshake: Mutex<HandshakeState>,
    pub(super) waiting: Mutex<WaitingPackets>,
    pub(super) due: PeerTimers,
}

/// Timers, in milliseconds of the device's clock; 0 for never.
#[derive(Default)]
pub(super) struct PeerTimers {
    /// Acknowledge received packets by an empty one.
    keepalive: AtomicU64,
    /// Doubt that the other side is still there.
    handshake: AtomicU64,
    persistent: AtomicU64,
}

impl PeerTimers {
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
    /// Makes a peer. `waiting` counts the bytes that wait for sessions with any peer of the device.
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
            handshake: Mutex::new(HandshakeState {
                marks: MessageMacs::new(config.public_key),
                ..HandshakeState::default()
            }),
            waiting: Mutex::new(WaitingPackets::new(waiting)),
            due: PeerTimers::default(),
        };
        peer.configure(None, config, now);
        peer
    }

    /// Applies another config. A peer that has moved by itself stays there, unless another address is announced.
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
                0 => PeerTimers::never(&self.due.persistent),
                _ => PeerTimers::set(&self.due.persistent, now),
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

    /// Session to send with, if there is one.
    pub(super) fn session(&self, now: Duration) -> Option<Arc<Session>> {
        self.sessions.load().current.as_ref().filter(|session| session.may_send(now)).cloned()
    }

    /// Notes that something was sent that the other side can read.
    pub(super) fn sent(&self, data: bool, now: Duration) {
        PeerTimers::never(&self.due.keepalive);
        if data {
            PeerTimers::set_if_never(&self.due.handshake, now + KEEPALIVE + RETRY);
        }
        self.heard_or_said(now);
    }

    /// Notes that something authentic was received.
    pub(super) fn received(&self, data: bool, now: Duration) {
        PeerTimers::never(&self.due.handshake);
        if data {
            PeerTimers::set_if_never(&self.due.keepalive, now + KEEPALIVE);
        }
        self.heard_or_said(now);
    }

    pub(super) fn heard_or_said(&self, now: Duration) {
        let interval = self.keepalive.load(Ordering::Relaxed);
        if interval != 0 {
            PeerTimers::set(&self.due.persistent, now + Duration::from_secs(interval.into()));
        }
    }

    pub(super) fn is_keepalive_due(&self, now: Duration) -> bool {
        let asked = PeerTimers::has_come(&self.due.keepalive, now);
        PeerTimers::has_come(&self.due.persistent, now) || asked
    }

    /// Whether the other side has been silent for too long after something was sent.
    pub(super) fn is_doubtful(&self, now: Duration) -> bool {
        PeerTimers::has_come(&self.due.handshake, now)
    }

    /// Whether nothing can become due without a packet.
    pub(super) fn is_idle(&self) -> bool {
        !self.due.is_any()
            && self.sessions.load().iter().next().is_none()
            && self.handshake.lock().begun.is_none()
    }
}
