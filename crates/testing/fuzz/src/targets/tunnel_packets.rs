//! Packets of the datapath, both ways: what the TUN device hands over and what comes from the wire.

use flannel_entries::tunnel::{OwnAddresses, Peer};
use flannel_tunnel::testing::Pipeline;

use super::parts;

pub(crate) fn run(bytes: &[u8]) {
    let own = OwnAddresses { v4: Some([10, 244, 1, 0].into()), v6: "fd00:1::".parse().ok() };
    let peer = |subnet: &str, endpoint: &str| Peer {
        subnet: subnet.parse().expect("a subnet"),
        endpoint: endpoint.parse().expect("an endpoint"),
    };
    let peers = [
        peer("10.244.2.0/24", "192.168.100.2:8285"),
        peer("10.244.3.0/24", "192.168.100.3:8285"),
        peer("fd00:2::/64", "[fd00:100::2]:8285"),
    ];
    let mut node = Pipeline::new(own, &peers);
    let (mut reads, mut messages) = (Vec::new(), Vec::new());
    for (kind, part) in parts(bytes) {
        match kind % 8 {
            0..4 => reads.push(part),
            4 => node.limit_paths(u32::from(kind) * 8),
            other => {
                let from = peers[usize::from(other) - 5].endpoint;
                messages.push((from, part, usize::from(kind >> 3) * 64));
            }
        }
    }
    // The pipeline checks what the kernel relies on.
    let sent = node.send(&reads);
    let received = node.receive(&messages);
    // Nothing is made from nothing.
    let taken: usize = messages.iter().map(|(_, bytes, _)| bytes.len()).sum();
    let written: usize = received.iter().map(|write| write.len() - 10).sum();
    assert!(written <= taken, "{written} bytes from {taken}");
    // What was sent to a peer comes in there, if it comes from a subnet of ours.
    let back =
        [peer("10.244.1.0/24", "192.168.100.1:8285"), peer("fd00:1::/64", "192.168.100.1:8285")];
    let mut other = Pipeline::new(OwnAddresses::default(), &back);
    let datagrams = sent.datagrams();
    let from = "192.168.100.1:8285".parse().expect("an address");
    let messages: Vec<_> = datagrams.iter().map(|one| (from, one.as_slice(), 0)).collect();
    let received = other.receive(&messages);
    assert!(received.len() <= datagrams.len());
}
