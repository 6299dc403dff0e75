//! Free subnets of a pool as intervals: each operation costs the logarithm of the number of leases.

use std::collections::BTreeMap;

use crate::net::{Net, host_mask};
use crate::pool::Pool;

/// Lowest free subnets of which a random one is taken: the pool fills from below, and hosts seldom choose the same one.
pub const CANDIDATES: u128 = 100;

#[derive(Clone, Debug)]
pub struct FreeMap<N: Net> {
    pool: Pool<N>,
    /// First index → one past the last, of runs of free subnets; runs never touch each other.
    free: BTreeMap<u128, u128>,
    free_count: u128,
    /// Occupied subnets (start, length), with the number of leases on them: leases may overlap.
    held: BTreeMap<(u128, u8), u32>,
}

impl<N: Net> FreeMap<N> {
    pub fn new(pool: Pool<N>) -> Self {
        let capacity = pool.capacity();
        Self {
            pool,
            free: BTreeMap::from([(0, capacity)]),
            free_count: capacity,
            held: BTreeMap::new(),
        }
    }

    pub fn pool(&self) -> &Pool<N> {
        &self.pool
    }

    pub fn free(&self) -> u128 {
        self.free_count
    }

    pub fn is_free(&self, net: N) -> bool {
        self.pool.index_of(net).is_some_and(|index| {
            self.free.range(..=index).next_back().is_some_and(|(_, &end)| index < end)
        })
    }

    /// `net` may have any length and may lie partly or wholly outside the pool.
    pub fn occupy(&mut self, net: N) {
        let Some((first, end)) = self.pool.covered_by(net) else { return };
        *self.held.entry((net.start(), net.prefix_len())).or_default() += 1;
        self.cut(first, end);
    }

    /// Undoes one `occupy` of the same network; without one it does nothing.
    pub fn release(&mut self, net: N) {
        let Some((first, end)) = self.pool.covered_by(net) else { return };
        let key = (net.start(), net.prefix_len());
        let Some(times) = self.held.get_mut(&key) else { return };
        *times -= 1;
        if *times == 0 {
            self.held.remove(&key);
        }
        let len = net.prefix_len().min(self.pool.subnet_len());
        if self.covered_whole(net.start(), len) {
            return;
        }
        self.join(first, end);
        let whole = N::around(net.start(), len);
        let inside: Vec<(u128, u8)> = self
            .held
            .range((whole.start(), 0)..=(whole.end(), u8::MAX))
            .map(|(key, _)| *key)
            .collect();
        for (start, len) in inside {
            if let Some((first, end)) = self.pool.covered_by(N::around(start, len)) {
                self.cut(first, end);
            }
        }
    }

    /// One of the lowest free subnets, each as likely as the others; it is not occupied by this.
    pub fn pick(&self, rng: &mut fastrand::Rng) -> Option<N> {
        let candidates = self.free_count.min(CANDIDATES);
        if candidates == 0 {
            return None;
        }
        let mut skip = rng.u128(0..candidates);
        for (&first, &end) in &self.free {
            if skip < end - first {
                return self.pool.nth(first + skip);
            }
            skip -= end - first;
        }
        None
    }

    /// Whether something held covers all of the `len` bits long network around `start`.
    fn covered_whole(&self, start: u128, len: u8) -> bool {
        (0..=len).any(|len| self.held.contains_key(&(start & !host_mask::<N>(len), len)))
    }

    fn cut(&mut self, first: u128, end: u128) {
        while let Some((&run_first, &run_end)) =
            self.free.range(..end).next_back().filter(|(_, run_end)| **run_end > first)
        {
            self.free.remove(&run_first);
            if run_first < first {
                self.free.insert(run_first, first);
            }
            if end < run_end {
                self.free.insert(end, run_end);
            }
            self.free_count -= run_end.min(end) - run_first.max(first);
        }
    }

    /// Makes the indices from `first` up to `end`, none of them free, one free run with its neighbours.
    fn join(&mut self, mut first: u128, mut end: u128) {
        self.free_count += end - first;
        let left = self.free.range(..first).next_back().filter(|(_, left_end)| **left_end == first);
        if let Some((&left_first, _)) = left {
            self.free.remove(&left_first);
            first = left_first;
        }
        if let Some(right_end) = self.free.remove(&end) {
            end = right_end;
        }
        self.free.insert(first, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NetworkConfig;

    #[test]
    fn runs_grow_together_again_whatever_the_order_of_releases() {
        let pool = NetworkConfig::parse(r#"{"Network":"10.5.0.0/16"}"#)
            .unwrap()
            .v4
            .unwrap()
            .pool()
            .unwrap();
        let nets: Vec<_> = (0..pool.capacity()).filter_map(|index| pool.nth(index)).collect();
        let mut free = FreeMap::new(pool);
        nets.iter().for_each(|net| free.occupy(*net));
        assert!(free.free.is_empty());
        nets.iter()
            .step_by(2)
            .chain(nets.iter().skip(1).step_by(2))
            .for_each(|net| free.release(*net));
        assert_eq!(free.free, BTreeMap::from([(0, pool.capacity())]));
        assert!(free.held.is_empty());
    }
}
