//! Large packets leave as the packets that they stand for.

use proptest::prelude::*;

use crate::build::{Packet, Transport, pipeline};

const FIN: u8 = 1;
const PSH: u8 = 8;
const ACK: u8 = 16;
const CWR: u8 = 128;

/// What a text book sends, one router further.
fn expected(large: &Packet, segment: usize) -> Vec<Vec<u8>> {
    let chunks: Vec<&[u8]> =
        if large.payload.is_empty() { vec![&[]] } else { large.payload.chunks(segment).collect() };
    let count = chunks.len();
    let mut offset = 0;
    let packet = |(index, chunk): (usize, &[u8])| {
        let mut one = large.clone();
        one.payload = chunk.to_vec();
        one.ttl -= 1;
        one.id = one.id.wrapping_add(index as u16);
        if let Transport::Tcp { sequence, flags, .. } = &mut one.transport {
            *sequence = sequence.wrapping_add(offset);
            if index + 1 < count {
                *flags &= !(FIN | PSH);
            }
            if index > 0 {
                *flags &= !CWR;
            }
        }
        offset += chunk.len() as u32;
        one.bytes()
    };
    chunks.into_iter().enumerate().map(packet).collect()
}

proptest! {
    #[test]
    fn large_tcp_packets_are_cut_as_text_books_cut_them(
        v6: bool,
        len in 1_usize..64_000,
        segment in 200_usize..1500,
        sequence: u32,
        flags in prop::sample::select(vec![ACK, ACK | PSH, ACK | FIN, ACK | PSH | FIN | CWR]),
        options in 0_usize..10,
        id: u16,
    ) {
        let transport = Transport::Tcp { ports: (4000, 80), sequence, flags, options: vec![1; options * 4] };
        let payload = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        let large = Packet { id, ..Packet::out(v6, transport, payload) };
        let sent = pipeline().send(&[&large.large(segment)]);
        prop_assert_eq!(sent.datagrams(), expected(&large, segment));
        prop_assert!(sent.answers.is_empty());
    }

    #[test]
    fn large_udp_packets_are_cut_as_text_books_cut_them(v6: bool, len in 1_usize..60_000, segment in 20_usize..1400) {
        let payload = (0..len).map(|at| (at * 3 + at / 255) as u8).collect();
        let large = Packet::out(v6, Transport::Udp { ports: (4000, 53) }, payload);
        let sent = pipeline().send(&[&large.large(segment)]);
        prop_assert_eq!(sent.datagrams(), expected(&large, segment));
    }

    #[test]
    fn checksums_that_the_kernel_left_out_are_filled_in(v6: bool, len in 0_usize..1400) {
        for transport in [
            Transport::Tcp { ports: (1, 2), sequence: 9, flags: ACK, options: vec![] },
            Transport::Udp { ports: (1, 2) },
        ] {
            let packet = Packet::out(v6, transport, (0..len).map(|at| at as u8).collect());
            let mut read = packet.large(0);
            read[1] = 0; // Nothing to cut.
            let sent = pipeline().send(&[&read]);
            prop_assert_eq!(sent.datagrams(), expected(&packet, 2000));
        }
    }
}

#[test]
fn packets_of_one_size_to_one_peer_go_out_in_one_message_in_order() {
    let packets: Vec<Vec<u8>> = (0..10_u16)
        .map(|id| Packet {
            id,
            ..Packet::out(false, Transport::Udp { ports: (1, 2) }, vec![0; 100])
        })
        .map(|packet| packet.plain())
        .collect();
    let reads: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let sent = pipeline().send(&reads);
    assert_eq!(sent.messages.len(), 1);
    let ids: Vec<u8> = sent.datagrams().iter().map(|datagram| datagram[5]).collect();
    assert_eq!(ids, (0..10).collect::<Vec<u8>>());
}

#[test]
fn a_longer_packet_begins_a_message_and_a_shorter_one_ends_it() {
    let packet =
        |len: usize| Packet::out(false, Transport::Udp { ports: (1, 2) }, vec![0; len]).plain();
    let packets = [packet(100), packet(100), packet(50), packet(50), packet(200)];
    let reads: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let sizes: Vec<usize> =
        pipeline().send(&reads).messages.iter().map(|(_, all)| all.len()).collect();
    assert_eq!(sizes, [3, 1, 1]);
}

#[test]
fn packets_to_two_peers_in_turn_make_two_messages() {
    let to = |last: u8| {
        let packet = Packet::out(false, Transport::Udp { ports: (1, 2) }, vec![0; 100]);
        Packet { dst: std::net::Ipv4Addr::new(10, 244, last, 9).into(), ..packet }.plain()
    };
    let packets = [to(2), to(3), to(2), to(3), to(2)];
    let reads: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let sent = pipeline().send(&reads);
    let sizes: Vec<usize> = sent.messages.iter().map(|(_, all)| all.len()).collect();
    assert_eq!(sizes, [3, 2]);
}

#[test]
fn no_message_is_longer_than_udp_takes() {
    let transport = Transport::Tcp { ports: (1, 2), sequence: 0, flags: ACK, options: vec![1; 12] };
    let large = Packet::out(false, transport, vec![1; 45 * 1420]).large(1420);
    let sent = pipeline().send(&[&large, &large]);
    // 44 packets of 1,472 bytes are what fits; what is left goes with what comes next.
    let sizes: Vec<usize> = sent.messages.iter().map(|(_, all)| all.len()).collect();
    assert_eq!(sizes, [44, 44, 2]);
}
