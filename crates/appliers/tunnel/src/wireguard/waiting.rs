//! Packets that wait for a session with their peer, bounded for each peer and for all of them together: while many
//! peers do not answer, pods go on sending to each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest number of packets that wait for one peer; further ones replace the oldest.
const MAX_PACKETS: usize = 1024;
/// Largest number of bytes that wait for all peers of a device.
const MAX_BYTES: usize = 32 << 20;

/// Sum of the bytes that wait for the peers of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingBytes(Arc<AtomicUsize>);

impl WaitingBytes {
    /// Adds to the sum, unless it would become too large.
    fn reserve(&self, bytes: usize) -> bool {
        let add = |sum: usize| sum.checked_add(bytes).filter(|sum| *sum <= MAX_BYTES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct WaitingPackets {
    packets: VecDeque<Vec<u8>>,
    sum: WaitingBytes,
}

impl WaitingPackets {
    pub(super) fn new(sum: &WaitingBytes) -> Self {
        Self { packets: VecDeque::new(), sum: sum.clone() }
    }

    /// Adds a packet, in the place of this peer's oldest where there is no room for more: other peers' packets stay.
    /// Returns how many are lost by it, which may be the packet itself.
    pub(super) fn push(&mut self, packet: Vec<u8>) -> u64 {
        let mut lost = 0;
        if self.packets.len() >= MAX_PACKETS {
            lost += self.drop_oldest();
        }
        while !self.sum.reserve(packet.len()) {
            if self.packets.is_empty() {
                return lost + 1;
            }
            lost += self.drop_oldest();
        }
        self.packets.push_back(packet);
        lost
    }

    pub(super) fn take(&mut self) -> VecDeque<Vec<u8>> {
        let packets = std::mem::take(&mut self.packets);
        self.sum.release(packets.iter().map(Vec::len).sum());
        packets
    }

    fn drop_oldest(&mut self) -> u64 {
        self.packets.pop_front().map_or(0, |packet| {
            self.sum.release(packet.len());
            1
        })
    }
}

impl Drop for WaitingPackets {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_peer_gives_way_to_the_newest() {
        let mut waiting = WaitingPackets::new(&WaitingBytes::default());
        let lost: u64 = (0..MAX_PACKETS + 2).map(|at| waiting.push(vec![at as u8; 4])).sum();
        let taken = waiting.take();
        assert_eq!((lost, taken.len(), taken[0][0]), (2, MAX_PACKETS, 2));
    }

    #[test]
    fn what_waits_for_all_peers_together_is_bounded_and_given_back() {
        let sum = WaitingBytes::default();
        let mut peers: Vec<_> = (0..100).map(|_| WaitingPackets::new(&sum)).collect();
        let packet = || vec![0; 1400];
        let mut lost = 0;
        for _ in 0..MAX_PACKETS {
            lost += peers.iter_mut().map(|peer| peer.push(packet())).sum::<u64>();
        }
        let kept: usize = peers.iter().map(|peer| peer.packets.len()).sum();
        assert_eq!(kept, MAX_BYTES / 1400, "as much as there is room for");
        assert_eq!(kept as u64 + lost, 100 * MAX_PACKETS as u64);
        assert!(peers.iter().all(|peer| !peer.packets.is_empty()), "nobody is left without");
        // Who comes last gets nothing, until others have gone.
        let mut late = WaitingPackets::new(&sum);
        assert_eq!(late.push(packet()), 1);
        drop(peers);
        assert_eq!((late.push(packet()), sum.0.load(Ordering::Relaxed)), (0, 1400));
    }
}
