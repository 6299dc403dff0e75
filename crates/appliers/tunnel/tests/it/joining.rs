//! What arrives in many packets is handed over in few, and means the same.

use proptest::prelude::*;

use crate::build::{Packet, Transport, VNET, peer_address, pipeline};

const PSH: u8 = 8;
const ACK: u8 = 16;
const SYN: u8 = 2;

fn segment(v6: bool, port: u16, sequence: u32, id: u16, flags: u8, payload: Vec<u8>) -> Packet {
    let options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let transport = Transport::Tcp { ports: (80, port), sequence, flags, options };
    Packet { id, ..Packet::back(v6, transport, payload) }
}

/// A stream in segments of 1,000 bytes, the last one shorter.
fn stream(v6: bool, port: u16, bytes: &[u8]) -> Vec<Packet> {
    let chunks = bytes.chunks(1000).zip(0_u16..);
    chunks
        .map(|(chunk, index)| {
            segment(v6, port, u32::from(index) * 1000, 50 + index, ACK, chunk.to_vec())
        })
        .collect()
}

fn receive(packets: &[Packet]) -> Vec<Vec<u8>> {
    let v6 = packets[0].src.is_ipv6();
    let bytes: Vec<Vec<u8>> = packets.iter().map(Packet::bytes).collect();
    let messages: Vec<_> = bytes.iter().map(|one| (peer_address(v6), one.as_slice(), 0)).collect();
    pipeline().receive(&messages)
}

/// What a receiver makes of what was written: by port, its bytes in the order they came.
fn delivered(writes: &[Vec<u8>], v6: bool, port: u16) -> Vec<u8> {
    let ip = if v6 { 40 } else { 20 };
    let of_port = writes.iter().filter(|write| write[VNET + ip + 2..][..2] == port.to_be_bytes());
    of_port.flat_map(|write| write[VNET + ip + 32..].to_vec()).collect()
}

proptest! {
    #[test]
    fn streams_that_arrive_mixed_are_each_delivered_whole_and_in_order(
        v6: bool,
        lens in prop::collection::vec(1_usize..20_000, 1..4),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
        damage in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let bytes: Vec<Vec<u8>> = lens.iter().map(|len| (0..*len).map(|at| (at / 3) as u8).collect()).collect();
        let mut streams: Vec<std::collections::VecDeque<Packet>> = bytes
            .iter()
            .zip(1_u16..)
            .map(|(bytes, port)| stream(v6, port, bytes).into())
            .collect();
        let mut packets = Vec::new();
        for pick in picks {
            let at = pick.index(streams.len());
            packets.extend(streams[at].pop_front());
        }
        packets.extend(streams.into_iter().flatten());
        // Damage one packet in a way that nothing but its checksum tells: it must not be hidden in a large one.
        let mut wire: Vec<Vec<u8>> = packets.iter().map(Packet::bytes).collect();
        if let Some(damage) = damage {
            let packet = damage.get(&wire).clone();
            let at = wire.iter().position(|one| *one == packet).unwrap();
            *wire[at].last_mut().unwrap() ^= 1;
        }
        let messages: Vec<_> = wire.iter().map(|one| (peer_address(v6), one.as_slice(), 0)).collect();
        let writes = pipeline().receive(&messages);
        for (bytes, port) in bytes.iter().zip(1_u16..) {
            let got = delivered(&writes, v6, port);
            if damage.is_none() {
                prop_assert_eq!(&got, bytes);
            }
            prop_assert_eq!(got.len(), bytes.len());
        }
        if damage.is_some() {
            let spoilt = writes.iter().filter(|write| write[0] == 0 && !intact(&write[VNET..]));
            prop_assert_eq!(spoilt.count(), 1, "the damaged packet goes on alone, for the kernel to drop");
        }
    }

    #[test]
    fn what_was_joined_is_cut_into_what_arrived(v6: bool, len in 2_000_usize..60_000) {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 5) as u8).collect();
        let packets = stream(v6, 9, &bytes);
        let writes = receive(&packets);
        // Sent on by another node, it leaves as it came, one hop older.
        let peer = flannel_entries::tunnel::Peer {
            subnet: if v6 { "fd00:1::/64" } else { "10.244.1.0/24" }.parse().unwrap(),
            endpoint: "192.168.100.1:8285".parse().unwrap(),
        };
        let mut other = flannel_tunnel::testing::Pipeline::new(Default::default(), &[peer]);
        let reads: Vec<&[u8]> = writes.iter().map(Vec::as_slice).collect();
        let again = other.send(&reads).datagrams();
        let expected: Vec<Vec<u8>> =
            packets.into_iter().map(|one| Packet { ttl: one.ttl - 1, ..one }.bytes()).collect();
        prop_assert_eq!(again, expected);
    }
}

fn intact(packet: &[u8]) -> bool {
    let v6 = packet[0] >> 4 == 6;
    let (ip, addresses) = if v6 { (40, 8..40) } else { (20, 12..20) };
    let mut covered = packet[addresses].to_vec();
    covered.extend_from_slice(&((packet.len() - ip) as u32).to_be_bytes());
    covered.extend_from_slice(&[0, 0, 0, 6]);
    covered.extend_from_slice(&packet[ip..]);
    crate::build::checksum(&covered) == [0, 0]
}

#[test]
fn segments_that_follow_each_other_become_one_write() {
    let bytes = vec![5; 40_500];
    for v6 in [false, true] {
        let writes = receive(&stream(v6, 9, &bytes));
        assert_eq!(writes.len(), 1);
        assert_eq!(u16::from_ne_bytes([writes[0][4], writes[0][5]]), 1000, "the size of a segment");
        assert_eq!(delivered(&writes, v6, 9), bytes);
    }
}

#[test]
fn datagrams_that_the_kernel_joined_are_told_apart() {
    let wire: Vec<u8> = stream(false, 9, &[5; 5_500]).iter().flat_map(Packet::bytes).collect();
    let writes = pipeline().receive(&[(peer_address(false), &wire, 1052)]);
    assert_eq!(delivered(&writes, false, 9), [5; 5_500]);
    assert_eq!(writes.len(), 1);
}

#[test]
fn nothing_is_joined_across_a_gap_a_push_or_a_flag() {
    let one = |sequence, id, flags| segment(false, 9, sequence, id, flags, vec![1; 1000]);
    let count = |packets: &[Packet]| receive(packets).len();
    assert_eq!(count(&[one(0, 1, ACK), one(1000, 2, ACK)]), 1);
    assert_eq!(count(&[one(0, 1, ACK), one(2000, 2, ACK)]), 2, "a segment is missing");
    assert_eq!(count(&[one(1000, 1, ACK), one(0, 2, ACK)]), 2, "the order is another");
    assert_eq!(
        count(&[one(0, 1, ACK | PSH), one(1000, 2, ACK)]),
        2,
        "the first is to be delivered at once"
    );
    assert_eq!(count(&[one(0, 1, ACK), one(1000, 2, ACK | PSH), one(2000, 3, ACK)]), 2);
    assert_eq!(count(&[one(0, 1, ACK), one(1000, 2, ACK | SYN)]), 2);
    assert_eq!(count(&[one(0, 1, ACK), one(1000, 9, ACK)]), 2, "another identification");
    let older = Packet { ttl: 9, ..one(1000, 2, ACK) };
    assert_eq!(count(&[one(0, 1, ACK), older]), 2, "another TTL");
}

#[test]
fn datagrams_of_one_flow_become_one_write() {
    let packet = |id: u16, len: usize| Packet {
        id,
        ..Packet::back(false, Transport::Udp { ports: (53, 9) }, vec![3; len])
    };
    let writes =
        receive(&[packet(1, 64), packet(2, 64), packet(3, 64), packet(4, 20), packet(5, 64)]);
    let kinds: Vec<u8> = writes.iter().map(|write| write[1]).collect();
    assert_eq!(kinds, [5, 0], "four at once, and one that cannot follow a shorter one");
}
