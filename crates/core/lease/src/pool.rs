//! The range subnets are handed out from: equal blocks of one network, from a first to a last one.

use ipnet::{Ipv4Net, Ipv6Net};

use crate::net::Net;

/// Subnets of one length inside one network, numbered from 0 (`first`) to `capacity - 1` (`last`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool<N: Net> {
    network: N,
    first: N,
    last: N,
}

pub type Pool4 = Pool<Ipv4Net>;
pub type Pool6 = Pool<Ipv6Net>;

impl<N: Net> Pool<N> {
    /// Subnets from the one around `min` to the one around `max`, both inside `network`, as the caller has checked.
    pub(crate) fn new(network: N, subnet_len: u8, min: u128, max: u128) -> Self {
        debug_assert!(network.start() <= min && min <= max && max <= network.end());
        Self { network, first: N::around(min, subnet_len), last: N::around(max, subnet_len) }
    }

    pub fn network(&self) -> N {
        self.network
    }

    pub fn subnet_len(&self) -> u8 {
        self.first.prefix_len()
    }

    pub fn first(&self) -> N {
        self.first
    }

    pub fn last(&self) -> N {
        self.last
    }

    pub fn capacity(&self) -> u128 {
        ((self.last.start() - self.first.start()) >> self.shift()) + 1
    }

    /// Whether `net` is one of the pool's subnets: right length, on a boundary, inside the range.
    pub fn accepts(&self, net: N) -> bool {
        let inside = self.first.start() <= net.start() && net.start() <= self.last.start();
        inside && net == N::around(net.start(), self.subnet_len())
    }

    pub fn index_of(&self, net: N) -> Option<u128> {
        self.accepts(net).then(|| (net.start() - self.first.start()) >> self.shift())
    }

    pub fn nth(&self, index: u128) -> Option<N> {
        (index < self.capacity())
            .then(|| N::around(self.first.start() + (index << self.shift()), self.subnet_len()))
    }

    /// The indices (first, one past the last) of the pool's subnets that `net`, of any length, overlaps.
    pub(crate) fn covered_by(&self, net: N) -> Option<(u128, u128)> {
        let start = net.start().max(self.first.start());
        let end = net.end().min(self.last.end());
        let index = |address: u128| (address - self.first.start()) >> self.shift();
        (start <= end).then(|| (index(start), index(end) + 1))
    }

    fn shift(&self) -> u8 {
        N::BITS - self.subnet_len()
    }
}
