//! The table of peers, found by the addresses of their pods. It never changes: a changed peer means a new table that is
//! swapped in, and packets of one batch see one table.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use flannel_entries::tunnel::{OwnAddresses, Peer};
use ipnet::IpNet;

use crate::counters::Counters;
use crate::lookup::{Lookup, Prefix, Slot};
use crate::wireguard;

/// A peer, and its state while it stays the same. It outlives the tables it is in.
pub(crate) struct PeerState {
    pub(crate) peer: Peer,
    pub(crate) counters: Counters,
    /// State of a peer whose packets are encrypted. It knows where the peer is.
    pub(crate) wireguard: Option<Arc<wireguard::Peer>>,
    /// Longest inner packet that its path carries, once a longer one was refused; else 0.
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

pub(crate) struct Table {
    /// Source addresses of our ICMP errors.
    pub(crate) own: OwnAddresses,
    peers: Vec<Arc<PeerState>>,
    v4: Lookup,
    v6: Lookup,
    /// Made when a packet is dropped for the first time, so that the reason is right.
    senders: OnceLock<HashMap<(IpAddr, u16), u32>>,
}

impl Table {
    /// The next table. Peers that were in the former one just as they are now keep their counters.
    pub(crate) fn next(
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

    pub(crate) fn build(own: OwnAddresses, peers: Vec<Arc<PeerState>>) -> Self {
        #[cfg(test)]
        tests::BUILT.set(tests::BUILT.get() + 1);
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (state, index) in peers.iter().zip(0_u32..) {
            match prefix(state.peer.subnet) {
                (BITS_V4, prefix) => v4.push((prefix, index)),
                (_, prefix) => v6.push((prefix, index)),
            }
        }
        let (v4, v6) = (Lookup::new(BITS_V4, &v4), Lookup::new(BITS_V6, &v6));
        Self { own, v4, v6, senders: OnceLock::new(), peers }
    }

    /// The next table after a change of few peers among many, and the states that go. `None`: it must be built again.
    pub(crate) fn changed(
        &self,
        put: impl IntoIterator<Item = (Peer, Option<Arc<wireguard::Peer>>)>,
        gone: impl IntoIterator<Item = IpNet>,
    ) -> Option<(Self, Vec<Arc<PeerState>>)> {
        let mut next = Self {
            own: self.own,
            peers: self.peers.clone(),
            v4: self.v4.clone(),
            v6: self.v6.clone(),
            senders: OnceLock::new(),
        };
        let mut departed = Vec::new();
        for subnet in gone {
            let mut slot = next.slot(subnet)?;
            let Some(index) = slot.get() else { continue };
            slot.set(None);
            departed.push(next.peers.swap_remove(index as usize));
            if let Some(moved) = next.peers.get(index as usize).map(|state| state.peer.subnet) {
                next.slot(moved)?.set(Some(index));
            }
        }
        for (peer, wireguard) in put {
            let end = u32::try_from(next.peers.len()).ok()?;
            let mut slot = next.slot(peer.subnet)?;
            let index = slot.get();
            slot.set(index.or(Some(end)));
            let Some(place) = index.and_then(|index| next.peers.get_mut(index as usize)) else {
                next.peers.push(Arc::new(PeerState::new(peer, wireguard)));
                continue;
            };
            if place.peer != peer || !place.is_of(wireguard.as_ref()) {
                let state = Arc::new(PeerState::new(peer, wireguard));
                departed.push(std::mem::replace(place, state));
            }
        }
        Some((next, departed))
    }

    fn slot(&mut self, subnet: IpNet) -> Option<Slot<'_>> {
        match prefix(subnet) {
            (BITS_V4, prefix) => self.v4.slot_mut(BITS_V4, prefix),
            (bits, prefix) => self.v6.slot_mut(bits, prefix),
        }
    }

    pub(crate) fn peers(&self) -> &[Arc<PeerState>] {
        &self.peers
    }

    #[inline]
    pub(crate) fn find(&self, v6: bool, address: u128) -> Option<(u32, &PeerState)> {
        let index = if v6 { self.v6.get(address) } else { self.v4.get(address) }?;
        Some((index, self.peers.get(index as usize)?))
    }

    /// Peer of exactly this subnet.
    pub(crate) fn peer_of(&self, subnet: IpNet) -> Option<&PeerState> {
        let (bits, Prefix { address, .. }) = prefix(subnet);
        let (_, state) = self.find(bits == BITS_V6, address)?;
        (state.peer.subnet.trunc() == subnet.trunc()).then_some(state)
    }

    /// A peer that sends from this address, of which there may be several.
    pub(crate) fn sender(&self, from: SocketAddr) -> Option<u32> {
        let senders = || {
            let senders = self.peers.iter().map(|state| sender(state.peer.endpoint));
            senders.zip(0..).collect()
        };
        self.senders.get_or_init(senders).get(&sender(from)).copied()
    }
}

const BITS_V4: u8 = 32;
const BITS_V6: u8 = 128;

/// Number of address bits of the family, and the subnet's prefix.
fn prefix(subnet: IpNet) -> (u8, Prefix) {
    let len = subnet.prefix_len();
    match subnet.network() {
        IpAddr::V4(ip) => (BITS_V4, Prefix { address: u32::from(ip).into(), len }),
        IpAddr::V6(ip) => (BITS_V6, Prefix { address: ip.into(), len }),
    }
}

/// Identity of a datagram's sender: without the scope that an IPv6 address was received with.
pub(crate) fn sender(from: SocketAddr) -> (IpAddr, u16) {
    (from.ip(), from.port())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// Number of tables that this thread has built from all their peers.
        pub(crate) static BUILT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    const OWN: OwnAddresses = OwnAddresses { v4: None, v6: None };

    fn peer(number: u8, endpoint: u8) -> Peer {
        let subnet = format!("10.1.{number}.0/24").parse().expect("a subnet");
        Peer { subnet, endpoint: ([192, 0, 2, endpoint], 8285).into() }
    }

    fn found(table: &Table) -> Vec<Option<Peer>> {
        let at = |number: u8| u128::from(0x0a01_0005 | u32::from(number) << 8);
        (0..=u8::MAX).map(|number| Some(table.find(false, at(number))?.1.peer)).collect()
    }

    fn next_table(former: &Table, peers: impl IntoIterator<Item = Peer>) -> Table {
        Table::next(former, OWN, peers.into_iter().map(|peer| (peer, None)))
    }

    #[test]
    fn one_lease_of_many_changes_its_slot_and_leaves_the_others_their_state() {
        let all = (0..=u8::MAX).map(|number| peer(number, number));
        let former = next_table(&Table::build(OWN, Vec::new()), all);
        let (next, departed) =
            former.changed([(peer(7, 99), None)], [peer(9, 9).subnet]).expect("no rebuilding");
        assert_eq!(departed.iter().map(|it| it.peer).collect::<Vec<_>>(), [peer(9, 9), peer(7, 7)]);
        let mut wanted = found(&former);
        (wanted[7], wanted[9]) = (Some(peer(7, 99)), None);
        assert_eq!(found(&next), wanted);
        let of_255 = |table: &Table| table.peer_of(peer(255, 0).subnet).map(std::ptr::from_ref);
        assert_eq!(of_255(&next), of_255(&former));
        for left in [peer(7, 7), peer(9, 9)] {
            assert_eq!(next.sender(left.endpoint), None);
        }
    }

    #[test]
    fn nested_and_doubled_subnets_are_built_again() {
        let wide = Peer { subnet: "10.1.0.0/16".parse().expect("a subnet"), ..peer(0, 1) };
        for peers in [vec![wide, peer(1, 1)], vec![peer(1, 1), peer(1, 2)]] {
            let table = next_table(&Table::build(OWN, Vec::new()), peers);
            assert!(table.changed([(peer(1, 3), None)], []).is_none());
        }
    }

    proptest! {
        #[test]
        fn a_changed_table_finds_what_one_built_again_finds(
            before: std::collections::BTreeMap<u8, u8>,
            put: std::collections::BTreeMap<u8, u8>,
            gone: std::collections::BTreeSet<u8>,
        ) {
            let peers = |map: &std::collections::BTreeMap<u8, u8>| -> Vec<Peer> {
                map.iter().map(|(number, endpoint)| peer(*number, *endpoint)).collect()
            };
            let former = next_table(&Table::build(OWN, Vec::new()), peers(&before));
            let mut after = before.clone();
            after.retain(|number, _| !gone.contains(number));
            after.extend(&put);
            let subnets = gone.iter().map(|number| peer(*number, 0).subnet);
            let put = peers(&put).into_iter().map(|peer| (peer, None));
            if let Some((next, _)) = former.changed(put, subnets) {
                let built = next_table(&former, peers(&after));
                prop_assert_eq!(found(&next), found(&built));
                prop_assert_eq!(next.peers().len(), built.peers().len());
            }
        }
    }
}
