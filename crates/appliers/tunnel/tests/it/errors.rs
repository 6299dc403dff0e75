//! What the sender of a packet is told when it goes no further.

use std::net::{IpAddr, Ipv4Addr};

use flannel_tunnel::DropReason;

use crate::build::{Packet, Transport, VNET, checksum, pipeline};

fn udp(v6: bool) -> Packet {
    Packet::out(v6, Transport::Udp { ports: (4000, 53) }, vec![0xab; 600])
}

/// Checks all that is the same in every error, and returns type, code and the word that follows.
fn check_error(answer: &[u8], about: &Packet) -> (u8, u8, u32) {
    let packet = &answer[VNET..];
    let ip = if about.src.is_ipv6() { 40 } else { 20 };
    let body = &packet[ip..];
    match (about.src, about.dst) {
        (IpAddr::V4(src), _) => {
            assert_eq!(packet[..2], [0x45, 0]);
            assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
            assert_eq!((packet[8], packet[9]), (8, 1), "TTL and protocol");
            assert_eq!(checksum(&packet[..20]), [0, 0]);
            assert_eq!(packet[12..16], [10, 244, 1, 0], "from the node's own address");
            assert_eq!(packet[16..20], src.octets());
            assert_eq!(checksum(body), [0, 0]);
            assert_eq!(body[8..], about.bytes()[..28], "the header and eight bytes are quoted");
        }
        (IpAddr::V6(src), _) => {
            assert_eq!(packet[6], 58);
            assert_eq!(packet[24..40], src.octets());
            let reply =
                Packet { src: "fd00:1::".parse().unwrap(), dst: about.src, ..about.clone() };
            let mut covered = reply.pseudo_header(body.len());
            *covered.last_mut().unwrap() = 58;
            covered.extend_from_slice(body);
            assert_eq!(checksum(&covered), [0, 0]);
            assert!(packet.len() <= 1280);
            assert_eq!(body[8..], about.bytes()[..body.len() - 8]);
        }
    }
    (body[0], body[1], u32::from_be_bytes([body[4], body[5], body[6], body[7]]))
}

#[test]
fn a_destination_of_no_peer_is_unreachable() {
    let mut node = pipeline();
    let lost = Packet { dst: Ipv4Addr::new(10, 244, 99, 1).into(), ..udp(false) };
    let sent = node.send(&[&lost.plain()]);
    assert!(sent.messages.is_empty());
    assert_eq!(check_error(&sent.answers[0], &lost), (3, 0, 0));
    let lost = Packet { dst: "fd00:99::1".parse().unwrap(), ..udp(true) };
    let sent = node.send(&[&lost.plain()]);
    assert_eq!(check_error(&sent.answers[0], &lost), (1, 0, 0));
    assert_eq!(node.counters().drops(DropReason::NoRoute), 2);
}

#[test]
fn a_packet_too_long_for_its_path_is_answered_with_the_length_that_fits() {
    for (v6, path, expected) in [
        (false, 500, (3, 4, 500)),
        (true, 1400, (2, 0, 1400)),
        // No IPv6 host has to send less than this.
        (true, 500, (2, 0, 1280)),
    ] {
        let mut node = pipeline();
        node.limit_paths(path);
        let long = Packet { payload: vec![0xab; 1400], ..udp(v6) };
        let sent = node.send(&[&long.plain()]);
        assert!(sent.messages.is_empty());
        assert_eq!(check_error(&sent.answers[0], &long), expected);
    }
}

#[test]
fn a_packet_too_long_that_may_be_fragmented_is_sent_by_itself() {
    let v4 = Packet { dont_fragment: false, ..udp(false) }.plain();
    // One that every link has to carry, if need be in fragments of ours.
    let v6 = udp(true).plain();
    for packet in [v4, v6] {
        let mut node = pipeline();
        node.limit_paths(500);
        let sent = node.send(&[&packet, &packet]);
        assert_eq!(sent.messages.len(), 2);
        assert!(sent.answers.is_empty());
    }
}

#[test]
fn defect_49_the_ttl_is_taken_once_and_its_end_is_told() {
    for v6 in [false, true] {
        let mut node = pipeline();
        let sent = node.send(&[&udp(v6).plain()]);
        assert_eq!(sent.datagrams(), [Packet { ttl: 62, ..udp(v6) }.bytes()]);
        let old = Packet { ttl: 1, ..udp(v6) };
        let sent = node.send(&[&old.plain()]);
        assert!(sent.messages.is_empty());
        let kind = if v6 { 3 } else { 11 };
        assert_eq!(check_error(&sent.answers[0], &old), (kind, 0, 0));
    }
}

#[test]
fn no_error_is_sent_about_errors_or_later_fragments_or_to_groups() {
    let nowhere: IpAddr = Ipv4Addr::new(10, 244, 99, 1).into();
    let error = Packet { dst: nowhere, ..Packet::out(false, Transport::Icmp, vec![0; 20]) };
    let mut error = error.plain();
    error[VNET + 20] = 3;
    let mut fragment = Packet { dst: nowhere, ..udp(false) }.plain();
    fragment[VNET + 7] = 9;
    let group =
        Packet { src: Ipv4Addr::new(224, 0, 0, 9).into(), dst: nowhere, ..udp(false) }.plain();
    let mut node = pipeline();
    let sent = node.send(&[&error, &fragment, &group]);
    assert!(sent.answers.is_empty());
    assert_eq!(node.counters().drops(DropReason::NoRoute), 3);
}

#[test]
fn a_ping_that_goes_nowhere_is_told_so() {
    let nowhere: IpAddr = Ipv4Addr::new(10, 244, 99, 1).into();
    let ping = Packet { dst: nowhere, ..Packet::out(false, Transport::Icmp, vec![0; 20]) };
    let mut bytes = ping.plain();
    bytes[VNET + 20] = 8;
    let sent = pipeline().send(&[&bytes]);
    assert_eq!(sent.answers[0][VNET + 20..VNET + 22], [3, 0]);
}

#[test]
fn a_flood_that_goes_nowhere_is_not_answered_by_another() {
    let lost = Packet { dst: Ipv4Addr::new(10, 244, 99, 1).into(), ..udp(false) }.plain();
    let reads = vec![lost.as_slice(); 1000];
    assert_eq!(pipeline().send(&reads).answers.len(), 100);
}
