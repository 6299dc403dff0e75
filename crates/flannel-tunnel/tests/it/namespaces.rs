//! Two nodes, each with a pod, and nothing between them but datapaths.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use flannel_lab::{Lab, Pod};
use flannel_tunnel::{Config, Datapath, DropReason, Features, OwnAddresses, Peer};

const MB: u64 = 1 << 20;

struct Net {
    lab: Lab,
    pods: Vec<Pod>,
    datapaths: Vec<Datapath>,
}

fn underlay(node: u16) -> SocketAddr {
    SocketAddr::from(([192, 168, 100, node as u8], 8285))
}

fn peer(node: u16) -> Peer {
    Peer { subnet: format!("10.244.{node}.0/24").parse().unwrap(), endpoint: underlay(node) }
}

fn config(node: u16, features: Features) -> Config {
    let own = OwnAddresses { v4: Some(Ipv4Addr::new(10, 244, node as u8, 0)), v6: None };
    Config { device: "flannel0".into(), bind: vec![underlay(node)], own, features }
}

fn prepare(lab: &Lab, node: u16) {
    let node_ = lab.node(node);
    node_.ip(&format!("addr add 10.244.{node}.0/32 dev flannel0")).unwrap();
    node_.ip("link set flannel0 mtu 1472 up").unwrap();
    node_.ip("route add 10.244.0.0/16 dev flannel0").unwrap();
}

fn net(features: [Features; 2]) -> Net {
    let lab = Lab::builder().nodes(2).wire(true).bare().start().unwrap();
    let mut datapaths = Vec::new();
    for (node, features) in [1, 2].into_iter().zip(features) {
        let env = format!(
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.{node}.1/24\nFLANNEL_MTU=1472\n\
             FLANNEL_IPMASQ=false\n"
        );
        lab.node(node).write_file("/run/flannel/subnet.env", &env).unwrap();
        let config = config(node, features);
        let datapath = lab.node(node).in_netns(|| Datapath::start(config)).unwrap().unwrap();
        datapath.replace([peer(3 - node)]);
        prepare(&lab, node);
        datapaths.push(datapath);
    }
    let pods = lab.pod_on_every_node().unwrap();
    Net { lab, pods, datapaths }
}

impl Net {
    fn check_both_ways(&self) {
        self.lab.ping(&self.pods[0], &self.pods[1]).unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            self.lab.tcp_transfer(&self.pods[from], &self.pods[to], 20 * MB).unwrap();
        }
    }
}

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
    assert!(node1.counters().drops(DropReason::UnknownSender) > 0);
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
