//! The pipeline without a kernel, for fuzzers and tests: bytes in, bytes out.

use std::net::SocketAddr;
use std::time::Instant;

use flannel_entries::tunnel::{OwnAddresses, Peer};

use crate::counters::{CounterSnapshot, Counters};
use crate::inbound::Inbound;
use crate::outbound::{BatchContext, Outbound, Piece};
use crate::table::Table;
use crate::vnet;

pub use crate::wireguard::testing::WireguardNode;

/// Both directions of one node.
pub struct Pipeline {
    table: Table,
    counters: Counters,
    outbound: Outbound,
    inbound: Inbound,
}

/// What became of a batch from the device.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages, each the datagrams that the kernel is to cut it into.
    pub messages: Vec<(SocketAddr, Vec<Vec<u8>>)>,
    /// Errors for the device, with the header before them.
    pub answers: Vec<Vec<u8>>,
}

impl Sent {
    /// All datagrams, in order.
    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        self.messages.iter().flat_map(|(_, datagrams)| datagrams.clone()).collect()
    }
}

impl Pipeline {
    pub fn new(own: OwnAddresses, peers: &[Peer]) -> Self {
        let empty = Table::build(own, Vec::new());
        Self {
            table: Table::next(&empty, own, peers.iter().map(|peer| (*peer, None))),
            counters: Counters::default(),
            outbound: Outbound::new(crate::outbound::MAX_SEGMENTS, true),
            inbound: Inbound::new(true, true),
        }
    }

    /// As if the path to every peer took packets of this length only.
    pub fn limit_paths(&self, mtu: u32) {
        for state in self.table.peers() {
            state.set_path_mtu(Some(mtu));
        }
    }

    /// A batch of reads from the device, each a header (`struct virtio_net_hdr`) and a packet.
    pub fn send(&mut self, reads: &[&[u8]]) -> Sent {
        let mut buffer = reads.concat();
        let judge =
            BatchContext { table: &self.table, counters: &self.counters, now: Instant::now() };
        let mut at = 0;
        for read in reads {
            self.outbound.take(judge, &mut buffer, at..at + read.len());
            at += read.len();
        }
        let mut sent = Sent::default();
        for message in self.outbound.messages() {
            let bytes = |pieces: &[Piece]| Piece::concat(pieces, &buffer, &self.outbound.headers);
            let datagrams: Vec<Vec<u8>> = message.datagrams().map(bytes).collect();
            // What the kernel relies on.
            assert_eq!(datagrams.len(), message.packets);
            assert_eq!(datagrams.iter().map(Vec::len).sum::<usize>(), message.len);
            assert!(message.len <= 65_507 && message.packets <= crate::outbound::MAX_SEGMENTS);
            let (last, others) = datagrams.split_last().expect("no message is empty");
            assert!(others.iter().all(|datagram| datagram.len() == message.segment));
            assert!(last.len() <= message.segment);
            sent.messages.push((message.state(&self.table).peer.endpoint, datagrams));
        }
        sent.answers = self.outbound.answers().map(<[u8]>::to_vec).collect();
        self.outbound.clear();
        sent
    }

    /// A batch of messages from the wire: the sender, bytes, and how long each datagram in them is (0 for one).
    /// Returns what is written to the device, headers included.
    pub fn receive(&mut self, messages: &[(SocketAddr, &[u8], usize)]) -> Vec<Vec<u8>> {
        let mut buffer: Vec<u8> =
            messages.iter().flat_map(|(_, bytes, _)| bytes.iter().copied()).collect();
        let mut at = 0;
        for (from, bytes, segment) in messages {
            let range = at..at + bytes.len();
            self.inbound.take(&self.table, &self.counters, *from, &buffer, range, *segment);
            at += bytes.len();
        }
        self.inbound.finish(&mut buffer);
        let writes = self.inbound.writes().iter().map(|write| {
            let mut bytes = write.vnet.to_vec();
            for (at, len) in &write.pieces {
                bytes.extend_from_slice(&buffer[*at as usize..][..*len as usize]);
            }
            assert!(bytes.len() <= vnet::LEN + 65_535);
            bytes
        });
        let writes = writes.collect();
        self.inbound.clear();
        writes
    }

    /// Of packets that belong to no peer.
    pub fn counters(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    pub fn peer_counters(&self, subnet: ipnet::IpNet) -> CounterSnapshot {
        let states = self.table.peers().iter();
        let mut found = states.filter(|state| state.peer.subnet == subnet);
        found.next().map(|state| state.counters.snapshot()).unwrap_or_default()
    }
}
