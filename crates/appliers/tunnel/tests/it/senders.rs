//! Who may send into the pod network, and what is counted.

use std::net::{Ipv4Addr, SocketAddr};

use flannel_tunnel::DropReason;

use crate::build::{Packet, Transport, peer_address, pipeline};

fn datagram(src: Ipv4Addr) -> Vec<u8> {
    let packet = Packet::back(false, Transport::Udp { ports: (1, 2) }, vec![0; 50]);
    Packet { src: src.into(), ..packet }.bytes()
}

#[test]
fn a_packet_from_a_lease_with_a_source_in_its_subnet_is_delivered_and_counted() {
    let mut node = pipeline();
    let packet = datagram(Ipv4Addr::new(10, 244, 2, 7));
    let writes = node.receive(&[(peer_address(false), &packet, 0)]);
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0][10..], packet, "unchanged: the TTL was taken by the sender");
    let counted = node.peer_counters("10.244.2.0/24".parse().unwrap());
    assert_eq!((counted.received_packets, counted.received_bytes), (1, packet.len() as u64));
}

#[test]
fn defect_49_a_packet_from_an_address_without_a_lease_is_dropped_and_counted() {
    let mut node = pipeline();
    let stranger: SocketAddr = "192.168.100.66:8285".parse().unwrap();
    let packet = datagram(Ipv4Addr::new(10, 244, 2, 7));
    assert!(node.receive(&[(stranger, &packet, 0)]).is_empty());
    assert_eq!(node.counters().drops(DropReason::UnknownSender), 1);
}

#[test]
fn a_packet_from_another_port_of_a_lease_holder_is_dropped_and_counted() {
    let mut node = pipeline();
    // As a pod of that node sends it, which leaves from the node's address.
    let pod = SocketAddr::new(peer_address(false).ip(), 40_000);
    let packet = datagram(Ipv4Addr::new(10, 244, 2, 7));
    assert!(node.receive(&[(pod, &packet, 0)]).is_empty());
    assert_eq!(node.counters().drops(DropReason::UnknownSender), 1);
    let counted = node.peer_counters("10.244.2.0/24".parse().unwrap());
    assert_eq!((counted.received_packets, counted.drops(DropReason::WrongSource)), (0, 0));
}

#[test]
fn a_source_outside_of_the_senders_subnet_is_dropped_and_counted() {
    let mut node = pipeline();
    // One of another peer, one of ours, one from the Internet.
    for src in [[10, 244, 3, 7], [10, 244, 1, 7], [8, 8, 8, 8]] {
        let packet = datagram(src.into());
        assert!(node.receive(&[(peer_address(false), &packet, 0)]).is_empty(), "{src:?}");
    }
    let counted = node.peer_counters("10.244.2.0/24".parse().unwrap());
    assert_eq!(counted.drops(DropReason::WrongSource), 3);
    assert_eq!(counted.received_packets, 0);
}

#[test]
fn what_is_no_packet_is_dropped_and_counted() {
    let mut node = pipeline();
    let whole = datagram(Ipv4Addr::new(10, 244, 2, 7));
    for bytes in [&[][..], &whole[..19], &whole[..whole.len() - 1], &[0x75; 40], &[0x45; 20]] {
        let writes = node.receive(&[(peer_address(false), bytes, 0)]);
        assert!(writes.is_empty(), "{bytes:?}");
    }
    // An empty datagram is no packet at all.
    assert_eq!(node.counters().drops(DropReason::Malformed), 4);
}

#[test]
fn what_follows_a_packet_in_its_datagram_is_left_out() {
    let packet = datagram(Ipv4Addr::new(10, 244, 2, 7));
    let longer = [&packet[..], &[9; 30]].concat();
    let writes = pipeline().receive(&[(peer_address(false), &longer, 0)]);
    assert_eq!(writes[0][10..], packet);
}

#[test]
fn what_is_sent_is_counted_by_peer() {
    let mut node = pipeline();
    let packet = Packet::out(false, Transport::Udp { ports: (1, 2) }, vec![0; 50]).plain();
    node.send(&[&packet, &packet]);
    // The pipeline hands over; whoever sends counts what was taken.
    assert_eq!(node.counters(), pipeline().counters());
}
