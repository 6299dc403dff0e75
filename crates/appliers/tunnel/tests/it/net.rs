//! Two nodes, each with a pod, and nothing between them but datapaths.

use std::net::{Ipv4Addr, SocketAddr};

use flannel_entries::tunnel::{Features, OwnAddresses, Peer, TunnelDevice};
use flannel_lab::{Lab, Pod};
use flannel_tunnel::Datapath;

pub(crate) const MB: u64 = 1 << 20;

pub(crate) struct Net {
    pub(crate) lab: Lab,
    pub(crate) pods: Vec<Pod>,
    pub(crate) datapaths: Vec<Datapath>,
}

pub(crate) fn underlay(node: u16) -> SocketAddr {
    SocketAddr::from(([192, 168, 100, node as u8], 8285))
}

pub(crate) fn peer(node: u16) -> Peer {
    Peer { subnet: format!("10.244.{node}.0/24").parse().unwrap(), endpoint: underlay(node) }
}

fn config(node: u16, features: Features) -> TunnelDevice {
    let own = OwnAddresses { v4: Some(Ipv4Addr::new(10, 244, node as u8, 0)), v6: None };
    TunnelDevice {
        device: "flannel0".into(),
        bind: vec![underlay(node)],
        own,
        features,
        wireguard: None,
    }
}

fn prepare(lab: &Lab, node: u16) {
    let node_ = lab.node(node);
    node_.ip(&format!("addr add 10.244.{node}.0/32 dev flannel0")).unwrap();
    node_.ip("link set flannel0 mtu 1472 up").unwrap();
    node_.ip("route add 10.244.0.0/16 dev flannel0").unwrap();
}

pub(crate) fn net(features: [Features; 2]) -> Net {
    let lab = Lab::builder().nodes(2).wire(true).bare().start().unwrap();
    let mut datapaths = Vec::new();
    for (node, features) in [1, 2].into_iter().zip(features) {
        lab.node(node).write_subnet_env(1472).unwrap();
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
    pub(crate) fn check_both_ways(&self) {
        self.lab.ping(&self.pods[0], &self.pods[1]).unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            self.lab.tcp_transfer(&self.pods[from], &self.pods[to], 20 * MB).unwrap();
        }
    }
}
