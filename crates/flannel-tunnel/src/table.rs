//! Who is where: the peers, found by the addresses of their pods.
//!
//! A table never changes. Whoever changes a peer builds the next table and swaps it in; packets of one batch
//! see one table.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::icmp::OwnAddresses;
use crate::lookup::{Lookup, Prefix};
use crate::wireguard;

/// One subnet and where its packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    pub subnet: IpNet,
    /// Also where its packets must come from, address and port.
    pub endpoint: SocketAddr,
}

/// A peer, and what is known of it while it stays the same. It outlives the tables it is in.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub(crate) peer: Peer,
    pub(crate) counters: Counters,
    /// Of a peer whose packets are encrypted. It knows where the peer is.
    pub(crate) wireguard: Option<Arc<wireguard::Peer>>,
    /// The longest inner packet that its path takes, once a longer one was refused; else 0.
    path_mtu: AtomicU32,
}

impl PeerState {
    fn new(peer: Peer, wireguard: Option<Arc<wireguard::Peer>>) -> Self {
        Self { peer, counters: Counters::default(), wireguard, path_mtu: AtomicU32::new(0) }
    }

    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.wireguard.as_ref().map_or(self.peer.endpoint, |peer| peer.endpoint())
    }

    fn is_of(&self, wireguard: Option<&Arc<wireguard::Peer>>) -> bool {
        let number = |peer: &Arc<wireguard::Peer>| peer.number;
        self.wireguard.as_ref().map(number) == wireguard.map(number)
    }

    pub(crate) fn path_mtu(&self) -> Option<usize> {
        match self.path_mtu.load(Ordering::Relaxed) {
            0 => None,
            mtu => Some(mtu as usize),
        }
    }

    pub(crate) fn set_path_mtu(&self, mtu: Option<u32>) {
        self.path_mtu.store(mtu.unwrap_or(0), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    /// Where errors come from that we send.
    pub(crate) own: OwnAddresses,
    peers: Vec<Arc<PeerState>>,
    v4: Lookup,
    v6: Lookup,
    /// Asked only about packets that are dropped, so that the reason is told right.
    senders: HashMap<(IpAddr, u16), u32>,
}

impl Table {
    pub(crate) fn empty(own: OwnAddresses) -> Self {
        Self::build(own, Vec::new())
    }

    /// Peers that were in the former table as they are now keep their counters.
    pub(crate) fn next(
        former: &Self,
        own: OwnAddresses,
        peers: impl IntoIterator<Item = Peer>,
    ) -> Self {
        Self::next_sealed(former, own, peers.into_iter().map(|peer| (peer, None)))
    }

    /// The same for peers whose packets are encrypted, each with what it is encrypted by.
    pub(crate) fn next_sealed(
        former: &Self,
        own: OwnAddresses,
        peers: impl IntoIterator<Item = (Peer, Option<Arc<wireguard::Peer>>)>,
    ) -> Self {
        let known: HashMap<IpNet, &Arc<PeerState>> =
            former.peers.iter().map(|state| (state.peer.subnet, state)).collect();
        let state = |(peer, wireguard): (Peer, Option<_>)| match known.get(&peer.subnet) {
            Some(state) if state.peer == peer && state.is_of(wireguard.as_ref()) => {
                Arc::clone(state)
            }
            _ => Arc::new(PeerState::new(peer, wireguard)),
        };
        Self::build(own, peers.into_iter().map(state).collect())
    }

    fn build(own: OwnAddresses, peers: Vec<Arc<PeerState>>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (state, index) in peers.iter().zip(0_u32..) {
            let subnet = state.peer.subnet.trunc();
            let len = subnet.prefix_len();
            match subnet.network() {
                IpAddr::V4(ip) => v4.push((Prefix { address: u32::from(ip).into(), len }, index)),
                IpAddr::V6(ip) => v6.push((Prefix { address: ip.into(), len }, index)),
            }
        }
        let senders = peers.iter().map(|state| sender(state.peer.endpoint)).zip(0..).collect();
        Self { own, v4: Lookup::new(32, &v4), v6: Lookup::new(128, &v6), senders, peers }
    }

    pub(crate) fn peers(&self) -> &[Arc<PeerState>] {
        &self.peers
    }

    #[inline]
    pub(crate) fn find(&self, v6: bool, address: u128) -> Option<(u32, &PeerState)> {
        let index = if v6 { self.v6.get(address) } else { self.v4.get(address) }?;
        Some((index, self.peers.get(index as usize)?))
    }

    /// A peer that sends from there, of which there may be several.
    pub(crate) fn sender(&self, from: SocketAddr) -> Option<u32> {
        self.senders.get(&sender(from)).copied()
    }
}

/// What a datagram's sender is known by: without the scope that an IPv6 address was received with.
pub(crate) fn sender(from: SocketAddr) -> (IpAddr, u16) {
    (from.ip(), from.port())
}
