//! Which traffic rules flags, network config and backend ask for.

use flannel_backend::{Backend, Encapsulation, Node, OuterPackets, Stack};
use flannel_common::IfName;
use flannel_entries::facts::Facts;
use flannel_entries::rules::{FamilyRules, Mode, NodeRules, TunnelGuard, TunnelPackets};
use flannel_lease::Subnet;
use ipnet::IpNet;

use crate::options;

/// A node whose pods each have an interface with the node's address is not guarded by interfaces.
const MOST_POD_LINKS: usize = 8;

/// The rules of a node with this subnet. `pod_links`: the interfaces that its pods are behind.
pub fn wanted_rules(
    wishes: &options::Traffic,
    backend: &dyn Backend,
    node: &Node,
    subnet: Subnet,
    pod_links: &[IfName],
) -> NodeRules {
    let config = &node.network;
    let exclude = |v4: bool| {
        let all = config.masquerade_exclude.iter();
        all.filter(|net| net.addr().is_ipv4() == v4).copied().collect()
    };
    let family = |network: Option<IpNet>, subnet: Option<IpNet>| {
        let (network, subnet) = (network?, subnet?);
        let exclude = exclude(network.addr().is_ipv4());
        let guard = guard(backend, node, network, subnet, pod_links);
        Some(FamilyRules { network, subnet, exclude, guard })
    };
    let v4 = config.v4.map(|source| source.network().into());
    let v6 = config.v6.map(|source| source.network().into());
    NodeRules {
        v4: family(v4, subnet.v4().map(IpNet::V4)),
        v6: family(v6, subnet.v6().map(IpNet::V6)),
        masquerade: wishes.ip_masq,
        random_fully: wishes.random_fully,
        forward: wishes.forward_rules,
        mode: if config.nftables { Mode::Nftables } else { Mode::Iptables },
    }
}

/// The interfaces that this node's pods are behind: those with an address of its subnet, except the backend's own.
pub fn pod_links(facts: &Facts, subnet: &Subnet, devices: &[IfName]) -> Vec<IfName> {
    let of_pods = |addr: &IpNet| match addr {
        IpNet::V4(addr) => subnet.v4().is_some_and(|subnet| subnet.contains(&addr.addr())),
        IpNet::V6(addr) => subnet.v6().is_some_and(|subnet| subnet.contains(&addr.addr())),
    };
    let mut links: Vec<IfName> = facts
        .interfaces
        .iter()
        .filter(|it| !it.loopback && !devices.contains(&it.name))
        .filter(|it| it.addresses.iter().any(|address| of_pods(&address.addr)))
        .map(|it| it.name)
        .collect();
    links.sort();
    if links.len() > MOST_POD_LINKS { Vec::new() } else { links }
}

fn guard(
    backend: &dyn Backend,
    node: &Node,
    network: IpNet,
    subnet: IpNet,
    pod_links: &[IfName],
) -> TunnelGuard {
    let Encapsulation::Tunnel(tunnel) = backend.encapsulation(Stack::of(&node.network)) else {
        return TunnelGuard::none(network);
    };
    let is_ipv4 = network.addr().is_ipv4();
    let packets = tunnel.entrances.into_iter().filter_map(|packets| match packets {
        OuterPackets::Udp(port) => Some(TunnelPackets::Udp(port)),
        OuterPackets::Ipv4Protocol(number) => is_ipv4.then_some(TunnelPackets::Protocol(number)),
    });
    // Where nodes have addresses inside the network, theirs are not to be taken for pods'.
    let has_nodes = node.underlay.addresses().iter().any(|ip| network.contains(ip));
    TunnelGuard {
        pods: if has_nodes { subnet } else { network },
        pod_links: pod_links.iter().map(ToString::to_string).collect(),
        packets: packets.collect(),
        forgeable: !tunnel.encrypted,
    }
}

#[cfg(test)]
mod tests {
    use flannel_backend::{Answers, Underlay};
    use flannel_entries::facts::{Interface, InterfaceAddress};
    use flannel_lease::NetworkConfig;

    use super::*;

    fn node(config: &str, address: &str) -> Node {
        Node {
            network: NetworkConfig::parse(config).unwrap(),
            underlay: Underlay {
                link: IfName::new("eth0").unwrap(),
                why: String::new(),
                mtu: 1500,
                v4: Some(address.parse().unwrap()),
                public_v4: Some(address.parse().unwrap()),
                v6: None,
                public_v6: None,
            },
            kernel: Default::default(),
            paths: Default::default(),
            connected: Vec::new(),
            answers: Answers::default(),
        }
    }

    fn v4_guard(backend: &str, address: &str) -> TunnelGuard {
        let config = format!(r#"{{"Network": "10.244.0.0/16", "Backend": {backend}}}"#);
        let node = node(&config, address);
        let backend = flannel_backend::create(&node.network.backend).unwrap();
        let wishes = options::Traffic {
            ip_masq: true,
            random_fully: true,
            forward_rules: true,
            resync: std::time::Duration::from_secs(5),
        };
        let subnet = "10.244.1.0-24".parse().unwrap();
        wanted_rules(&wishes, &*backend, &node, subnet, &[]).v4.unwrap().guard
    }

    #[test]
    fn every_tunnel_is_guarded_and_what_proves_its_sender_on_its_own_node_alone() {
        for (backend, packets, forgeable) in [
            (r#"{"Type": "vxlan"}"#, vec![TunnelPackets::Udp(8472)], true),
            (r#"{"Type": "vxlan", "Port": 4789}"#, vec![TunnelPackets::Udp(4789)], true),
            (r#"{"Type": "udp"}"#, vec![TunnelPackets::Udp(8285)], true),
            (r#"{"Type": "ipip"}"#, vec![TunnelPackets::Protocol(4)], true),
            (r#"{"Type": "wireguard"}"#, vec![TunnelPackets::Udp(51820)], false),
            (r#"{"Type": "host-gw"}"#, vec![], false),
        ] {
            let guard = v4_guard(backend, "192.168.0.1");
            assert_eq!((&guard.packets, guard.forgeable), (&packets, forgeable), "{backend}");
            assert_eq!(guard.pods, "10.244.0.0/16".parse().unwrap());
        }
    }

    #[test]
    fn nodes_inside_the_network_are_not_taken_for_pods() {
        let guard = v4_guard(r#"{"Type": "vxlan"}"#, "10.244.200.1");
        assert_eq!(guard.pods, "10.244.1.0/24".parse().unwrap());
    }

    #[test]
    fn pods_are_behind_the_bridge_that_has_an_address_of_the_subnet() {
        let interface = |name: &str, addr: &str| Interface {
            index: 1,
            name: IfName::new(name).unwrap(),
            mac: None,
            mtu: 1500,
            up: true,
            loopback: false,
            master: None,
            addresses: vec![InterfaceAddress {
                addr: addr.parse().unwrap(),
                permanent: true,
                temporary: false,
                deprecated: false,
                duplicate: false,
            }],
        };
        let interfaces = [
            ("flannel.1", "10.244.1.0/32"),
            ("cni0", "10.244.1.1/24"),
            ("docker0", "172.17.0.1/16"),
        ];
        let facts = Facts {
            interfaces: interfaces.map(|(name, addr)| interface(name, addr)).to_vec(),
            ..Facts::default()
        };
        let subnet = "10.244.1.0-24".parse().unwrap();
        let own = [IfName::new("flannel.1").unwrap()];
        assert_eq!(pod_links(&facts, &subnet, &own), [IfName::new("cni0").unwrap()]);
    }
}
