//! What arrives from pod to pod, and what does not.

use std::net::SocketAddr;
use std::time::Duration;

use flannel_entries::tunnel::{Features, Peer};
use flannel_tunnel::DropReason;

use crate::net::{MB, net, peer, underlay};

#[test]
fn pods_reach_each_other_and_every_byte_arrives() {
    let net = net([Features::default(); 2]);
    let in_use = net.datapaths[0].in_use();
    assert!(in_use.tso && in_use.uso && in_use.udp_gso && in_use.udp_gro, "{in_use}");
    net.check_both_ways();
    let (_, counted) = &net.datapaths[0].peers()[0];
    assert!(counted.sent_bytes > 20 * MB && counted.received_bytes > 20 * MB, "{counted:?}");
    assert!(counted.sent_packets > 20 * MB / 1472);
}

#[test]
fn without_any_one_feature_the_others_carry_it() {
    let all = Features::default();
    for without in [
        Features { tun_offload: false, ..all },
        Features { udp_gso: false, ..all },
        Features { udp_gro: false, ..all },
        Features { multi_queue: false, ..all },
        Features {
            tun_offload: false,
            udp_gso: false,
            udp_gro: false,
            multi_queue: false,
            lanes: 1,
        },
    ] {
        let net = net([without, all]);
        let in_use = net.datapaths[0].in_use();
        assert!(without.tun_offload || !in_use.tso && !in_use.uso, "{in_use}");
        assert!(without.udp_gso || !in_use.udp_gso, "{in_use}");
        assert!(without.udp_gro || !in_use.udp_gro, "{in_use}");
        assert!(without.multi_queue || in_use.lanes == 1, "{in_use}");
        net.check_both_ways();
    }
}

#[test]
fn strangers_and_forgers_are_dropped_and_counted() {
    let net = net([Features::default(); 2]);
    let node1 = &net.datapaths[0];
    // Node 2 loses its lease; what it goes on sending comes from a stranger.
    node1.replace([]);
    assert!(net.lab.ping(&net.pods[1], &net.pods[0]).is_err());
    assert!(node1.totals().drops(DropReason::UnknownSender) > 0);
    // Its address has a lease again, of another subnet.
    node1.replace([Peer { endpoint: underlay(2), ..peer(3) }]);
    assert!(net.lab.ping(&net.pods[1], &net.pods[0]).is_err());
    let (_, counted) = &node1.peers()[0];
    assert!(counted.drops(DropReason::WrongSource) > 0, "{counted:?}");
}

#[test]
fn a_table_is_swapped_under_traffic_without_a_lost_packet() {
    let net = net([Features::default(); 2]);
    net.lab.ping(&net.pods[0], &net.pods[1]).unwrap();
    let stream = net.lab.stream(&net.pods[0], &net.pods[1], 500).unwrap();
    for round in 0..20_u16 {
        let others = (0..10_000_u32).map(|number| Peer {
            subnet: format!("10.{}.{}.0/24", 100 + number / 256, number % 256).parse().unwrap(),
            endpoint: SocketAddr::from(([172, 16, round as u8, number as u8], 8285)),
        });
        let peers: Vec<Peer> = std::iter::once(peer(2)).chain(others).collect();
        net.datapaths[0].replace(peers);
        std::thread::sleep(Duration::from_millis(10));
    }
    let report = stream.stop();
    assert_eq!(report.lost, 0, "{report:?}");
}
