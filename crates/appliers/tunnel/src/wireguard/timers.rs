//! Handles what becomes due without a packet: repeated handshakes, keepalives, sessions that are too old.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::Timespec;

use super::device::Wireguard;
use super::peer::{GIVE_UP, Peer, RETRY, Sessions};

/// Interval at which timers are checked, while there is something to check.
pub(crate) const TIMER_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

impl Wireguard {
    pub(crate) fn check_timers(&self) {
        if self.is_idle.swap(true, Ordering::Relaxed) {
            return;
        }
        for peer in self.all_peers() {
            self.look_at(&peer);
            if !peer.is_idle() {
                self.is_idle.store(false, Ordering::Relaxed);
            }
        }
    }

    fn look_at(&self, peer: &Arc<Peer>) {
        let now = self.now();
        let mut handshake = peer.handshake.lock();
        let unanswered = handshake.begun.is_some()
            && handshake.last_try.is_some_and(|last| now >= last + RETRY + handshake.jitter);
        let hopeless = unanswered && now >= handshake.first_try + GIVE_UP;
        if hopeless {
            self.abandon(&mut handshake);
            peer.waiting.lock().take();
        }
        let sessions = Sessions::clone(&peer.sessions.load());
        if sessions.iter().any(|session| !session.is_good(now)) {
            let Sessions { current, previous, next } = sessions;
            let [current, previous, next] = [current, previous, next]
                .map(|session| session.filter(|session| session.is_good(now)));
            self.set_sessions(peer, Sessions { current, previous, next });
        }
        drop(handshake);
        if unanswered && !hopeless {
            self.initiate(peer);
        }
        if peer.is_doubtful(now) {
            self.initiate(peer);
        }
        if peer.is_keepalive_due(now) {
            if peer.session(now).is_some() {
                self.send_waiting(peer, true);
            } else {
                self.initiate(peer);
            }
        }
    }
}
