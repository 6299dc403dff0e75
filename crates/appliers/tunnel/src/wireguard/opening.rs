//! Handles what comes from the underlay: packets are opened in place, and messages of the handshake answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::device::{IndexTarget, Wireguard};
use super::handshake;
use super::messages::{COOKIE, DATA, DATA_HEADER, INITIATION, RESPONSE, kind, word};
use super::peer::{KEEPALIVE, Peer, RETRY, Sessions};
use super::session::Session;

const BETWEEN_INITIATIONS: Duration = Duration::from_millis(20);

/// A packet that was opened, in the buffer it was received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenedPacket {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) peer: u64,
}

impl Wireguard {
    /// Opens datagrams of `segment` bytes each (the last may be shorter; 0 for a single one) from one sender, and
    /// adds where the packets are. Returns how many datagrams were neither a peer's packet nor a message for us.
    pub(crate) fn open(
        &self,
        from: SocketAddr,
        received: &mut [u8],
        segment: usize,
        opened: &mut Vec<OpenedPacket>,
    ) -> u64 {
        let now = self.now();
        let segment = if segment == 0 { received.len().max(1) } else { segment };
        let mut strange = 0;
        // Datagrams that come together are mostly of one session.
        let mut latest: Option<(u32, IndexTarget)> = None;
        let (mut at, mut heard) = (0, SessionReceipts::default());
        for message in received.chunks_mut(segment) {
            let start = at;
            at += message.len();
            match kind(message) {
                Some(DATA) => {
                    let index = word(message, 4);
                    if latest.as_ref().is_none_or(|(known, _)| *known != index) {
                        heard.tell(self, from, now);
                        latest = self.find(index).map(|found| (index, found));
                    }
                    let Some((_, IndexTarget { peer, session: Some(session) })) = &latest else {
                        self.on_unknown_session(from);
                        strange += 1;
                        continue;
                    };
                    let is_good = session.is_good(now);
                    let Some(len) = is_good.then(|| session.open(message)).flatten() else {
                        strange += 1;
                        continue;
                    };
                    heard.note(peer, session, len > 0);
                    if len > 0 {
                        let (at, peer) = (start + DATA_HEADER, peer.number);
                        opened.push(OpenedPacket { at, len, peer });
                    }
                }
                Some(INITIATION) => self.on_initiation(from, message, now),
                Some(RESPONSE) => self.on_response(from, message, now),
                Some(COOKIE) => {
                    if let Some(found) = self.find(word(message, 4)) {
                        found.peer.handshake.lock().marks.take_cookie(message, now);
                    }
                }
                _ => strange += 1,
            }
        }
        heard.tell(self, from, now);
        strange
    }

    /// Handles a packet of an unknown session, after a restart of either side: its peer is asked for another at once.
    fn on_unknown_session(&self, from: SocketAddr) {
        if let Some(peer) = self.peer_at(from)
            && peer.session(self.now()).is_none()
        {
            self.initiate(&peer);
        }
    }

    fn on_initiation(&self, from: SocketAddr, message: &[u8], now: Duration) {
        let own = self.identity.load();
        if !own.is_meant(message) {
            return;
        }
        if self.handshakes.lock().pass(Instant::now()).is_none() {
            let mut cookies = self.cookies.lock();
            if !cookies.has_cookie(message, from, now) {
                if let Some(reply) = cookies.reply(&own, message, from, now) {
                    self.transmit(from, &reply);
                }
                return;
            }
        }
        let Some(offered) = handshake::read_initiation(&own, message) else { return };
        let Some(peer) = self.peer(offered.peer) else { return };
        let mut handshake = peer.handshake.lock();
        let flood = handshake.answered.is_some_and(|last| now < last + BETWEEN_INITIATIONS);
        if offered.timestamp <= handshake.latest || flood {
            return;
        }
        handshake.latest = offered.timestamp;
        handshake.answered = Some(now);
        let Some(index) = self.new_index(&peer) else { return };
        let psk = peer.preshared_key.load();
        let Some((keys, remote, answer)) =
            offered.answer(psk.as_deref(), index, &mut handshake.marks, now)
        else {
            self.forget_index(index);
            return;
        };
        let next = Some(Arc::new(Session::new(index, remote, false, keys, now)));
        let current = peer.sessions.load().current.clone();
        self.set_sessions(&peer, Sessions { current, previous: None, next });
        drop(handshake);
        self.is_idle.store(false, Ordering::Relaxed);
        peer.move_to(from);
        self.transmit(from, &answer);
    }

    fn on_response(&self, from: SocketAddr, message: &[u8], now: Duration) {
        let index = word(message, 8);
        if !self.identity.load().is_meant(message) {
            return;
        }
        let Some(IndexTarget { peer, session: None }) = self.find(index) else { return };
        let mut handshake = peer.handshake.lock();
        let Some(begun) = handshake.begun.as_mut().filter(|begun| begun.index == index) else {
            return;
        };
        let Some((keys, remote)) = begun.finish(message) else { return };
        handshake.begun = None;
        let sessions = Sessions::clone(&peer.sessions.load());
        let previous = sessions.next.or(sessions.current);
        let current = Some(Arc::new(Session::new(index, remote, true, keys, now)));
        self.set_sessions(&peer, Sessions { current, previous, next: None });
        drop(handshake);
        peer.move_to(from);
        peer.received(false, now);
        // The other side uses the session when it has seen a packet of it.
        self.send_waiting(&peer, true);
    }

    /// Notes the first packet of a session that the other side began: it has our answer, and the session is used.
    fn confirm(&self, peer: &Arc<Peer>, session: &Arc<Session>) {
        let handshake = peer.handshake.lock();
        let sessions = Sessions::clone(&peer.sessions.load());
        if !sessions.next.as_ref().is_some_and(|next| Arc::ptr_eq(next, session)) {
            return;
        }
        let Sessions { current, next, .. } = sessions;
        self.set_sessions(peer, Sessions { current: next, previous: current, next: None });
        drop(handshake);
        self.send_waiting(peer, false);
    }
}

/// What was received from one peer by one session: recorded once for all packets that came together.
#[derive(Default)]
struct SessionReceipts {
    of: Option<(Arc<Peer>, Arc<Session>)>,
    data: bool,
}

impl SessionReceipts {
    fn note(&mut self, peer: &Arc<Peer>, session: &Arc<Session>, data: bool) {
        if self.of.is_none() {
            self.of = Some((Arc::clone(peer), Arc::clone(session)));
        }
        self.data |= data;
    }

    fn tell(&mut self, wireguard: &Wireguard, from: SocketAddr, now: Duration) {
        let Some((peer, session)) = self.of.take() else { return };
        peer.move_to(from);
        peer.received(std::mem::take(&mut self.data), now);
        wireguard.is_idle.store(false, Ordering::Relaxed);
        if peer.sessions.load().next.as_ref().is_some_and(|next| Arc::ptr_eq(next, &session)) {
            wireguard.confirm(&peer, &session);
        }
        if session.is_old_to_receive(now, KEEPALIVE + RETRY) {
            wireguard.initiate(&peer);
        }
    }
}
