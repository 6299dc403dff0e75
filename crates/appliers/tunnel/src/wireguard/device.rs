//! The WireGuard device: its identity, its peers, and the sessions that messages belong to.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use flannel_common::{PublicKey, Throttle, random_bytes};
use flannel_entries::tunnel::{WireguardDevice, WireguardPeer};
use ipnet::IpNet;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::handshake::{self, Cookies, Identity};
use super::messages::padded;
use super::peer::{HandshakeState, Peer, RETRY, Sessions};
use super::session::{HandedSession, Session};
use super::waiting::WaitingBytes;
use crate::sys::udp::UdpSocket;

/// Start of the device's clock, which is not zero, so that what is older than this process has an age.
const CLOCK_START: Duration = Duration::from_secs(24 * 3600);
/// Handshakes in a second that are answered at once.
const MAX_HANDSHAKES: u32 = 1000;
/// Largest random part of the pause between attempts, in milliseconds.
const MAX_JITTER_MS: u64 = 333;

pub(crate) struct Wireguard {
    pub(super) identity: ArcSwap<Identity>,
    mtu: AtomicUsize,
    epoch: Instant,
    peers: RwLock<Peers>,
    indices: RwLock<HashMap<u32, IndexTarget>>,
    /// Sockets for everything besides packets of the device, one of each family.
    sockets: ArcSwap<Vec<Arc<UdpSocket>>>,
    pub(super) cookies: Mutex<Cookies>,
    /// Handshakes beyond these are looked at only if their sender has proved its address.
    pub(super) handshakes: Mutex<Throttle>,
    waiting: WaitingBytes,
    numbers: AtomicU64,
    /// Whether no peer has anything due, so that timers are not checked.
    pub(super) is_idle: AtomicBool,
}

#[derive(Default)]
struct Peers {
    by_key: HashMap<PublicKey, (WireguardPeer, Arc<Peer>)>,
    by_endpoint: HashMap<SocketAddr, Arc<Peer>>,
}

impl Peers {
    /// Forgets where a peer was announced, unless another one has that endpoint by now.
    fn forget_endpoint(&mut self, endpoint: SocketAddr, peer: &Arc<Peer>) {
        if self.by_endpoint.get(&endpoint).is_some_and(|known| Arc::ptr_eq(known, peer)) {
            self.by_endpoint.remove(&endpoint);
        }
    }
}

/// What an index stands for: a session, or a handshake that has been begun.
#[derive(Clone)]
pub(super) struct IndexTarget {
    pub(super) peer: Arc<Peer>,
    pub(super) session: Option<Arc<Session>>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct HandedPeer {
    pub(super) config: WireguardPeer,
    pub(super) endpoint: SocketAddr,
    pub(super) latest: [u8; 12],
    pub(super) current: Option<HandedSession>,
    pub(super) previous: Option<HandedSession>,
    pub(super) next: Option<HandedSession>,
}

impl Wireguard {
    pub(crate) fn new(config: &WireguardDevice) -> Self {
        Self {
            identity: ArcSwap::from_pointee(Identity::new(config.private_key.clone())),
            mtu: AtomicUsize::new(config.mtu as usize),
            epoch: Instant::now(),
            peers: RwLock::default(),
            indices: RwLock::default(),
            sockets: ArcSwap::default(),
            cookies: Mutex::default(),
            handshakes: Mutex::new(Throttle::with_burst(MAX_HANDSHAKES, Duration::from_secs(1))),
            waiting: WaitingBytes::default(),
            numbers: AtomicU64::new(0),
            is_idle: AtomicBool::new(false),
        }
    }

    pub(super) fn now(&self) -> Duration {
        CLOCK_START + self.epoch.elapsed()
    }

    /// Applies another key. What was encrypted for the former one is still read; what is sent waits for new sessions.
    pub(crate) fn configure(&self, config: &WireguardDevice) {
        self.mtu.store(config.mtu as usize, Ordering::Relaxed);
        if self.identity.load().private == config.private_key {
            return;
        }
        self.identity.store(Arc::new(Identity::new(config.private_key.clone())));
        for peer in self.all_peers() {
            let mut handshake = peer.handshake.lock();
            self.abandon(&mut handshake);
            handshake.last_try = None;
            peer.sessions.load().iter().for_each(|session| session.retire());
        }
    }

    pub(crate) fn set_sockets(&self, sockets: Vec<Arc<UdpSocket>>) {
        self.sockets.store(Arc::new(sockets));
    }

    /// Peers that are not among `peers`.
    pub(crate) fn others(&self, peers: &[WireguardPeer]) -> Vec<PublicKey> {
        let wanted: HashSet<PublicKey> = peers.iter().map(|peer| peer.public_key).collect();
        self.peers.read().by_key.keys().filter(|key| !wanted.contains(key)).copied().collect()
    }

    pub(crate) fn allowed_of<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a PublicKey>,
    ) -> HashSet<IpNet> {
        let all = self.peers.read();
        let known = keys.into_iter().filter_map(|key| all.by_key.get(key));
        known.flat_map(|(config, _)| config.allowed.iter().copied()).collect()
    }

    /// Adds or changes peers; `gone` are removed when nothing leads to them any more. Returns those with a new key, to
    /// be greeted when packets find them: what they have for us waits until both have agreed upon a session.
    pub(crate) fn put(&self, put: &[WireguardPeer], gone: &[PublicKey]) -> Vec<Arc<Peer>> {
        let now = self.now();
        let mut all = self.peers.write();
        let gone = gone.iter().filter_map(|key| all.by_key.get(key));
        let left: HashSet<IpNet> = gone.flat_map(|(gone, _)| gone.allowed.clone()).collect();
        let another_key =
            |config: &WireguardPeer| config.allowed.iter().any(|net| left.contains(net));
        let greeted: Vec<bool> = put.iter().map(another_key).collect();
        let mut to_greet = Vec::new();
        for (config, greet) in put.iter().zip(greeted) {
            let peer = match all.by_key.remove(&config.public_key) {
                Some((former, peer)) => {
                    peer.configure(Some(&former), config, now);
                    all.forget_endpoint(former.endpoint, &peer);
                    peer
                }
                None => {
                    let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                    let peer = Arc::new(Peer::new(number, config, &self.waiting, now));
                    to_greet.extend(greet.then(|| Arc::clone(&peer)));
                    peer
                }
            };
            all.by_endpoint.insert(config.endpoint, Arc::clone(&peer));
            all.by_key.insert(config.public_key, (config.clone(), peer));
        }
        self.is_idle.store(false, Ordering::Relaxed);
        to_greet
    }

    pub(crate) fn remove(&self, gone: &[PublicKey]) {
        let mut all = self.peers.write();
        for key in gone {
            if let Some((config, peer)) = all.by_key.remove(key) {
                all.forget_endpoint(config.endpoint, &peer);
                let mut handshake = peer.handshake.lock();
                self.abandon(&mut handshake);
                self.set_sessions(&peer, Sessions::default());
            }
        }
    }

    pub(crate) fn peers(&self) -> Vec<(WireguardPeer, Arc<Peer>)> {
        let mut peers: Vec<_> = self.peers.read().by_key.values().cloned().collect();
        peers.sort_by_key(|(config, _)| config.public_key);
        peers
    }

    pub(super) fn all_peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().by_key.values().map(|(_, peer)| Arc::clone(peer)).collect()
    }

    pub(crate) fn peer(&self, key: PublicKey) -> Option<Arc<Peer>> {
        self.peers.read().by_key.get(&key).map(|(_, peer)| Arc::clone(peer))
    }

    pub(super) fn peer_at(&self, endpoint: SocketAddr) -> Option<Arc<Peer>> {
        self.peers.read().by_endpoint.get(&endpoint).cloned()
    }

    pub(super) fn find(&self, index: u32) -> Option<IndexTarget> {
        self.indices.read().get(&index).cloned()
    }

    /// Time since the last session with a peer was agreed upon.
    pub(crate) fn session_age(&self, peer: &Peer) -> Option<Duration> {
        let now = self.now();
        peer.sessions.load().iter().map(|session| session.age(now)).min()
    }

    pub(super) fn new_index(&self, peer: &Arc<Peer>) -> Option<u32> {
        loop {
            let index = u32::from_le_bytes(random_bytes().ok()?);
            let mut indices = self.indices.write();
            if let std::collections::hash_map::Entry::Vacant(free) = indices.entry(index) {
                free.insert(IndexTarget { peer: Arc::clone(peer), session: None });
                return Some(index);
            }
        }
    }

    pub(super) fn forget_index(&self, index: u32) {
        self.indices.write().remove(&index);
    }

    pub(super) fn abandon(&self, handshake: &mut HandshakeState) {
        if let Some(begun) = handshake.begun.take() {
            self.forget_index(begun.index);
        }
    }

    /// Sets the sessions of a peer, whose handshake state the caller holds: one change comes after the other.
    pub(super) fn set_sessions(&self, peer: &Arc<Peer>, next: Sessions) {
        let mut indices = self.indices.write();
        let former = peer.sessions.swap(Arc::new(next.clone()));
        for session in former.iter() {
            indices.remove(&session.local);
        }
        for session in next.iter() {
            let found = IndexTarget { peer: Arc::clone(peer), session: Some(Arc::clone(session)) };
            indices.insert(session.local, found);
        }
    }

    /// Begins a handshake, unless one was begun just now.
    pub(crate) fn initiate(&self, peer: &Arc<Peer>) {
        let now = self.now();
        let mut handshake = peer.handshake.lock();
        if handshake.last_try.is_some_and(|last| now < last + RETRY) {
            return;
        }
        if handshake.begun.is_none() {
            handshake.first_try = now;
        }
        self.abandon(&mut handshake);
        let Some(index) = self.new_index(peer) else { return };
        let psk = peer.preshared_key.load();
        let begun = handshake::begin(
            &self.identity.load(),
            peer.public_key,
            psk.as_deref(),
            index,
            &mut handshake.marks,
            SystemTime::now(),
            now,
        );
        let Some((begun, message)) = begun else {
            self.forget_index(index);
            return;
        };
        handshake.begun = Some(begun);
        handshake.last_try = Some(now);
        handshake.jitter = jitter();
        drop(handshake);
        peer.heard_or_said(now);
        self.is_idle.store(false, Ordering::Relaxed);
        self.transmit(peer.endpoint(), &message);
    }

    /// Sends a message of our own. A lost one is repeated in time.
    pub(super) fn transmit(&self, to: SocketAddr, message: &[u8]) {
        let sockets = self.sockets.load();
        if let Some(socket) = sockets.iter().find(|socket| socket.v6 == to.is_ipv6()) {
            let _ = socket.send_to(to, message);
        }
    }

    /// Sends what has waited for a session, or an empty packet to show that there is one.
    pub(super) fn send_waiting(&self, peer: &Arc<Peer>, show: bool) {
        let now = self.now();
        let Some(session) = peer.session(now) else { return };
        let waiting = peer.waiting.lock().take();
        let data = !waiting.is_empty();
        for packet in waiting {
            let message = session.message(&packet, self.padded(packet.len()));
            self.transmit(peer.endpoint(), &message);
        }
        if !data && show {
            self.transmit(peer.endpoint(), &session.message(&[], 0));
        }
        if data || show {
            peer.sent(data, now);
        }
    }

    pub(super) fn padded(&self, len: usize) -> usize {
        padded(len, self.mtu.load(Ordering::Relaxed))
    }

    /// Takes out what the next process goes on with. No session is left here: should none come, new ones are made.
    pub(crate) fn hand_over(&self) -> Vec<HandedPeer> {
        let now = self.now();
        let over =
            |session: &Option<Arc<Session>>| session.as_ref().map(|session| session.hand_over(now));
        let peers = self.peers().into_iter();
        peers
            .map(|(config, peer)| {
                let mut handshake = peer.handshake.lock();
                // An answer to a handshake begun here would find the other process, which knows nothing of it.
                self.abandon(&mut handshake);
                handshake.last_try = None;
                let sessions = peer.sessions.load_full();
                self.set_sessions(&peer, Sessions::default());
                HandedPeer {
                    config,
                    endpoint: peer.endpoint(),
                    latest: handshake.latest,
                    current: over(&sessions.current),
                    previous: over(&sessions.previous),
                    next: over(&sessions.next),
                }
            })
            .collect()
    }

    pub(crate) fn adopt(&self, handed: Vec<HandedPeer>) {
        let now = self.now();
        let configs: Vec<WireguardPeer> = handed.iter().map(|peer| peer.config.clone()).collect();
        self.put(&configs, &[]);
        for HandedPeer { config, endpoint, latest, current, previous, next } in handed {
            let Some(peer) = self.peer(config.public_key) else { continue };
            let mut handshake = peer.handshake.lock();
            handshake.latest = latest;
            let [current, previous, next] = [current, previous, next].map(|session| {
                session.and_then(|handed| Session::adopt(handed, now)).map(Arc::new)
            });
            self.set_sessions(&peer, Sessions { current, previous, next });
            peer.move_to(endpoint);
        }
    }
}

fn jitter() -> Duration {
    let number = u16::from_le_bytes(random_bytes().unwrap_or_default());
    Duration::from_millis(u64::from(number) % MAX_JITTER_MS)
}
