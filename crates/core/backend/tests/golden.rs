//! Leases as the Go flannel writes them, and the entries it makes of them, as `ip` and `bridge` show
//! them on node 192.168.100.1.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

use flannel_backend::{
    Answers, Backend, LinkIdentity, Node, NodeMemory, PeerProblem, create, judge_config, ownership,
    peer_wishes,
};
use flannel_common::{Family, IfName, Mac};
use flannel_entries::facts::{Facts, Interface, KernelVersion, Path};
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, SubnetOrigin};

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56","Backend":{"Type":"vxlan"}}"#;
const OWN_DUAL: (&str, &str) = (
    "10.244.69.0-24&fd00:244:0:24::-64",
    r#"{"PublicIP":"192.168.100.1","PublicIPv6":"fd00:100::1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"42:93:f4:6d:36:2d"},"BackendV6Data":{"VNI":1,"VtepMAC":"8a:51:e7:82:69:2f"}}"#,
);
const PEER_DUAL: (&str, &str) = (
    "10.244.48.0-24&fd00:244:0:34::-64",
    r#"{"PublicIP":"192.168.100.2","PublicIPv6":"fd00:100::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"62:7a:ce:83:b3:87"},"BackendV6Data":{"VNI":1,"VtepMAC":"5e:01:a1:53:37:33"}}"#,
);

fn name(text: &str) -> IfName {
    IfName::new(text).unwrap()
}

fn node(config: &str) -> (Box<dyn Backend>, Node) {
    node_of(NetworkConfig::parse(config).unwrap())
}

fn node_of(network: NetworkConfig) -> (Box<dyn Backend>, Node) {
    support::node_of(network, Answers::default())
}

fn lease((subnet, attrs): (&str, &str)) -> Lease {
    support::lease(subnet, attrs)
}

fn peer(config: &str, own: (&str, &str), peer: (&str, &str)) -> Result<Vec<String>, PeerProblem> {
    let (backend, node) = node(config);
    let entries = peer_wishes(&*backend, &node, &lease(own), &lease(peer))?.kernel;
    Ok(entries.iter().map(ToString::to_string).collect())
}

fn base(config: &str, own: (&str, &str)) -> Vec<String> {
    let (backend, node) = node(config);
    backend.base(&node, &lease(own)).kernel.iter().map(ToString::to_string).collect()
}

#[test]
fn vxlan_dual_stack_peer() {
    assert_eq!(
        peer(DUAL, OWN_DUAL, PEER_DUAL).unwrap(),
        [
            "neighbour 10.244.48.0 lladdr 62:7a:ce:83:b3:87 dev flannel.1",
            "fdb 62:7a:ce:83:b3:87 dst 192.168.100.2 dev flannel.1",
            "route 10.244.48.0/24 via 10.244.48.0 dev flannel.1 onlink",
            "neighbour fd00:244:0:34:: lladdr 5e:01:a1:53:37:33 dev flannel-v6.1",
            "fdb 5e:01:a1:53:37:33 dst fd00:100::2 dev flannel-v6.1",
            "route fd00:244:0:34::/64 via fd00:244:0:34:: dev flannel-v6.1 metric 1024 onlink",
        ]
    );
}

#[test]
fn vxlan_dual_stack_base() {
    assert_eq!(
        base(DUAL, OWN_DUAL),
        [
            "device flannel.1 (vxlan id 1 local 192.168.100.1 dev eth0 mtu 1450 address 42:93:f4:6d:36:2d)",
            "sysctl net.ipv6.conf.flannel.1.accept_ra=0",
            "address 10.244.69.0/32 dev flannel.1",
            "device flannel-v6.1 (vxlan id 1 local fd00:100::1 dev eth0 mtu 1430 address 8a:51:e7:82:69:2f)",
            "sysctl net.ipv6.conf.flannel-v6.1.accept_ra=0",
            "address fd00:244:0:24::/128 dev flannel-v6.1",
            "sysctl net.ipv6.conf.flannel-v6.1.disable_ipv6=0",
        ]
    );
}

#[test]
fn defect_36_the_mtu_for_pods_fits_through_the_tunnels_of_both_families() {
    for (config, mtu) in [
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#, 1450),
        (DUAL, 1430),
        (
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/56","Backend":{"Type":"vxlan"}}"#,
            1430,
        ),
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}"#, 1350),
        // No more than the card carries.
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","MTU":9000}}"#, 1450),
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipip"}}"#, 1480),
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#, 1500),
        (r#"{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}"#, 1500),
    ] {
        let (backend, node) = node(config);
        assert_eq!(backend.mtu(&node), mtu, "{config}");
    }
}

#[test]
fn vxlan_options_name_the_device_and_shape_it() {
    let config = r#"{"Network":"10.244.0.0/16","SubnetLen":26,"SubnetMin":"10.244.10.0","SubnetMax":"10.244.99.0","Backend":{"Type":"vxlan","VNI":7,"Port":4789,"GBP":true,"Learning":true}}"#;
    let own = (
        "10.244.31.0-26",
        r#"{"PublicIP":"192.168.100.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":7,"VtepMAC":"4a:b4:b2:b9:51:98"}}"#,
    );
    let other = (
        "10.244.23.0-26",
        r#"{"PublicIP":"192.168.100.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":7,"VtepMAC":"02:d3:52:ab:e4:cd"}}"#,
    );
    assert_eq!(
        base(config, own)[0],
        "device flannel.7 (vxlan id 7 local 192.168.100.1 dev eth0 dstport 4789 mtu 1450 address 4a:b4:b2:b9:51:98)"
    );
    assert_eq!(
        peer(config, own, other).unwrap()[2],
        "route 10.244.23.0/26 via 10.244.23.0 dev flannel.7 onlink"
    );
}

const IPIP: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipip","DirectRouting":true}}"#;

#[test]
fn ipip_base_and_peers_near_and_far() {
    let of = |number: u8| {
        let attrs = format!(r#"{{"PublicIP":"192.168.100.{number}","BackendType":"ipip"}}"#);
        Lease {
            subnet: format!("10.244.{number}.0-24").parse().unwrap(),
            attrs: LeaseAttrs::from_json(attrs.as_bytes()).unwrap(),
        }
    };
    let (backend, mut node) = node(IPIP);
    let base: Vec<String> =
        backend.base(&node, &of(1)).kernel.iter().map(ToString::to_string).collect();
    assert_eq!(
        base,
        [
            "device flannel.ipip (ipip local 192.168.100.1 mtu 1480)",
            "address 10.244.1.0/32 dev flannel.ipip",
        ]
    );
    let near = Path { link: name("eth0"), gateway: None, source: None };
    let far = Path { gateway: Some([192, 168, 100, 254].into()), ..near.clone() };
    let entries = |node: &Node| {
        let entries = peer_wishes(&*backend, node, &of(1), &of(2)).unwrap().kernel;
        entries.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let through_the_tunnel = ["route 10.244.2.0/24 via 192.168.100.2 dev flannel.ipip onlink"];
    assert_eq!(entries(&node), through_the_tunnel);
    node.paths.insert([192, 168, 100, 2].into(), far);
    assert_eq!(entries(&node), through_the_tunnel);
    node.paths.insert([192, 168, 100, 2].into(), near);
    assert_eq!(entries(&node), ["route 10.244.2.0/24 via 192.168.100.2 dev eth0 onlink"]);
}

#[test]
fn ipip_sends_from_the_address_that_the_node_has_not_from_the_one_it_announces() {
    let (backend, mut node) = node(IPIP);
    node.underlay.public_v4 = Some([203, 0, 113, 7].into());
    let own = ("10.244.1.0-24", r#"{"PublicIP":"203.0.113.7","BackendType":"ipip"}"#);
    let device = backend.base(&node, &lease(own)).kernel[0].to_string();
    assert!(device.contains("ipip local 192.168.100.1"), "{device}");
}

#[test]
fn direct_routing_leaves_the_tunnel_out_for_peers_on_the_same_link() {
    let config = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","DirectRouting":true}}"#;
    let own = ("10.244.5.0-24", OWN_DUAL.1);
    let other = ("10.244.96.0-24", PEER_DUAL.1);
    let (backend, mut node) = node(config);
    assert!(backend.wants_paths());
    let entries = |node: &Node| -> Vec<String> {
        let entries = peer_wishes(&*backend, node, &lease(own), &lease(other)).unwrap().kernel;
        entries.iter().map(ToString::to_string).collect()
    };
    let tunnelled = entries(&node);
    assert_eq!(tunnelled.len(), 3, "a path that is not known is not direct");
    let mut path = Path { link: name("eth0"), gateway: None, source: None };
    node.paths.insert([192, 168, 100, 2].into(), path.clone());
    assert_eq!(entries(&node), ["route 10.244.96.0/24 via 192.168.100.2 dev eth0"]);
    path.gateway = Some([192, 168, 100, 254].into());
    node.paths.insert([192, 168, 100, 2].into(), path);
    assert_eq!(entries(&node), tunnelled);
}

#[test]
fn host_gw_routes_through_the_peer_itself() {
    let config = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56","Backend":{"Type":"host-gw"}}"#;
    let own = (
        OWN_DUAL.0,
        r#"{"PublicIP":"192.168.100.1","PublicIPv6":"fd00:100::1","BackendType":"host-gw"}"#,
    );
    let other = (
        PEER_DUAL.0,
        r#"{"PublicIP":"192.168.100.2","PublicIPv6":"fd00:100::2","BackendType":"host-gw"}"#,
    );
    assert_eq!(
        peer(config, own, other).unwrap(),
        [
            "route 10.244.48.0/24 via 192.168.100.2 dev eth0",
            "route fd00:244:0:34::/64 via fd00:100::2 dev eth0 metric 1024",
        ]
    );
}

#[test]
fn host_gw_reaches_a_peer_in_the_families_that_it_has() {
    let config = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56","Backend":{"Type":"host-gw"}}"#;
    let half = r#"{"PublicIP":"192.168.100.2","BackendType":"host-gw"}"#;
    let routes = peer(config, OWN_DUAL, (PEER_DUAL.0, half)).unwrap();
    assert_eq!(routes, ["route 10.244.48.0/24 via 192.168.100.2 dev eth0"]);
    let none = r#"{"PublicIP":"0.0.0.0","BackendType":"host-gw"}"#;
    assert!(peer(config, OWN_DUAL, (PEER_DUAL.0, none)).is_err());
}

#[test]
fn host_gw_names_the_gateway_that_stands_between() {
    let config = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
    let (backend, mut node) = node(config);
    let gateway = Some([192, 168, 100, 254].into());
    node.paths
        .insert([192, 168, 100, 2].into(), Path { link: name("eth0"), gateway, source: None });
    let own = lease(("10.244.1.0-24", r#"{"PublicIP":"192.168.100.1","BackendType":"host-gw"}"#));
    let other = lease(("10.244.2.0-24", r#"{"PublicIP":"192.168.100.2","BackendType":"host-gw"}"#));
    let problem = peer_wishes(&*backend, &node, &own, &other).unwrap_err();
    assert!(problem.to_string().contains("behind the gateway 192.168.100.254"), "{problem}");
}

#[test]
fn host_gw_refuses_a_public_address_that_is_not_the_interfaces() {
    let (backend, mut node) = node(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#);
    assert_eq!(backend.check(&node), Ok(()));
    node.underlay.public_v4 = Some([203, 0, 113, 9].into());
    let error = backend.check(&node).unwrap_err().to_string();
    assert!(error.contains("203.0.113.9") && error.contains("192.168.100.1"), "{error}");
}

#[test]
fn alloc_announces_itself_and_writes_nothing() {
    let config = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}"#;
    let (backend, node) = node(config);
    let facts = Facts::default();
    let attrs = backend.announce(&node, &NodeMemory { announced: None, facts: &facts, taken: &[] });
    assert_eq!(attrs.to_json(), r#"{"PublicIP":"192.168.100.1","PublicIPv6":null}"#);
    let own = ("10.244.1.0-24", r#"{"PublicIP":"192.168.100.1"}"#);
    assert_eq!(peer(config, own, ("10.244.2.0-24", PEER_DUAL.1)).unwrap(), [""; 0]);
}

#[test]
fn defect_52_every_backend_announces_the_public_address_that_the_node_was_given() {
    for kind in ["extension", "vxlan", "ipip", "udp", "wireguard"] {
        let config = format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"{kind}"}}}}"#);
        let (backend, mut node) = node(&config);
        node.underlay.public_v4 = Some([203, 0, 113, 9].into());
        let memory = NodeMemory { announced: None, facts: &Facts::default(), taken: &[] };
        let attrs = backend.announce(&node, &memory);
        assert_eq!(attrs.public_ip, Some([203, 0, 113, 9].into()), "{kind}");
    }
}

#[test]
fn defect_54_no_backend_stumbles_over_a_network_without_ipv4() {
    for kind in ["vxlan", "host-gw", "udp", "alloc"] {
        let config = format!(
            r#"{{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/56","Backend":{{"Type":"{kind}"}}}}"#
        );
        let (backend, node) = node(&config);
        let facts = Facts::default();
        let attrs =
            backend.announce(&node, &NodeMemory { announced: None, facts: &facts, taken: &[] });
        assert_eq!(attrs.public_ip, None);
        let own = Lease { subnet: "fd00:244:0:24::-64".parse().unwrap(), attrs };
        backend.base(&node, &own);
        let other = Lease {
            subnet: "fd00:244:0:34::-64".parse().unwrap(),
            attrs: LeaseAttrs {
                public_ipv6: Some("fd00:100::2".parse().unwrap()),
                backend_type: own.attrs.backend_type.clone(),
                ..lease(PEER_DUAL).attrs
            },
        };
        assert!(peer_wishes(&*backend, &node, &own, &other).is_ok(), "{kind}");
    }
}

#[test]
fn behind_a_nat_the_tunnel_sends_from_the_address_the_node_has() {
    let (backend, mut node) = node(DUAL);
    node.underlay.public_v4 = Some([203, 0, 113, 9].into());
    let facts = Facts::default();
    let attrs = backend.announce(&node, &NodeMemory { announced: None, facts: &facts, taken: &[] });
    assert_eq!(attrs.public_ip, node.underlay.public_v4);
    let device = backend.base(&node, &lease(OWN_DUAL)).kernel[0].to_string();
    assert!(device.contains("local 192.168.100.1 "), "{device}");
}

#[test]
fn a_node_keeps_its_mac_over_restart_and_reboot() {
    let (backend, node) = node(DUAL);
    let mac = |announced: Option<&LeaseAttrs>, facts: &Facts| {
        let attrs = backend.announce(&node, &NodeMemory { announced, facts, taken: &[] });
        attrs.backend_data.unwrap().as_str().to_owned()
    };
    let nothing = Facts::default();
    let device = Facts {
        interfaces: vec![Interface {
            index: 3,
            name: name("flannel.1"),
            mac: Some(Mac([2, 0, 0, 0, 0, 7])),
            mtu: 1450,
            up: true,
            loopback: false,
            master: None,
            addresses: vec![],
        }],
        ..Facts::default()
    };
    let announced = lease(OWN_DUAL).attrs;
    assert!(mac(Some(&announced), &device).contains("42:93:f4:6d:36:2d"), "the store's first");
    assert!(mac(None, &device).contains("02:00:00:00:00:07"), "then the existing device's");
    // It stands in leases and devices: no later version may give another one.
    assert!(
        mac(None, &nothing).contains("9e:81:dc:23:43:33"),
        "then its address's: {}",
        mac(None, &nothing)
    );
}

/// Whoever has another address cannot have it by that.
#[test]
fn a_new_vtep_gets_a_mac_that_belongs_to_its_address_and_leaves_it_when_it_moves() {
    let (backend, here) = node(DUAL);
    let (_, mut there) = node(DUAL);
    there.underlay.public_v4 = Some([192, 168, 100, 77].into());
    let facts = Facts::default();
    let announce = |node: &Node, announced: Option<&LeaseAttrs>, taken: &[LinkIdentity]| {
        backend.announce(node, &NodeMemory { announced, facts: &facts, taken })
    };
    let mac = |attrs: &LeaseAttrs| backend.link_identities(attrs)[0];
    let new = announce(&here, None, &[]);
    assert!(backend.is_derived(&mac(&new), &new));
    let thief = LeaseAttrs { public_ip: there.underlay.public_v4, ..new.clone() };
    assert!(!backend.is_derived(&mac(&new), &thief), "the MAC is copied, the address is another");
    let second = announce(&here, None, &[mac(&new)]);
    assert_ne!(mac(&second), mac(&new), "somebody else has announced it");
    assert!(backend.is_derived(&mac(&second), &second), "it has another of its own");
    assert_eq!(mac(&announce(&here, Some(&second), &[])), mac(&second), "which it keeps");
    let moved = announce(&there, Some(&new), &[]);
    assert!(backend.is_derived(&mac(&moved), &moved));
    let given = lease(OWN_DUAL).attrs;
    assert_eq!(mac(&announce(&there, Some(&given), &[])), mac(&given), "it belongs to no address");
}

#[test]
fn kernels_with_the_checksum_bug_get_the_offload_switched_off() {
    let (backend, mut node) = node(DUAL);
    let offloads = |node: &Node| {
        let entries = backend.base(node, &lease(OWN_DUAL)).kernel;
        entries.iter().filter(|e| e.to_string().starts_with("checksum offload off")).count()
    };
    assert_eq!(offloads(&node), 0);
    node.kernel = KernelVersion { major: 5, minor: 4 };
    assert_eq!(offloads(&node), 2);
}

#[test]
fn large_networks_spread_their_routes_over_metrics() {
    let own = ("10.0.1.0-24", OWN_DUAL.1);
    let large = r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#;
    let entries = peer(large, own, ("10.77.200.0-24", PEER_DUAL.1)).unwrap();
    assert_eq!(entries[2], "route 10.77.200.0/24 via 10.77.200.0 dev flannel.1 metric 300 onlink");
}

/// Where the store assigns subnets, their number follows from the length that it gave this one.
#[test]
fn networks_whose_subnets_are_assigned_spread_their_routes_by_the_subnets_length() {
    let route = |network: &str, subnet: &str| {
        let config = format!(r#"{{"Network":"{network}","Backend":{{"Type":"host-gw"}}}}"#);
        let (backend, node) = node_of(NetworkConfig::read(&config, SubnetOrigin::Store).unwrap());
        let own = lease(("10.0.255.0-28", r#"{"PublicIP":"192.168.100.1"}"#));
        let peer = r#"{"PublicIP":"192.168.100.2","BackendType":"host-gw"}"#;
        let entries = peer_wishes(&*backend, &node, &own, &lease((subnet, peer))).unwrap().kernel;
        entries[0].to_string()
    };
    for (network, subnet, metric) in [
        ("10.0.0.0/8", "10.77.200.0-24", " metric 300"),
        ("10.0.0.0/12", "10.7.3.0-24", " metric 103"),
        ("10.0.0.0/13", "10.7.3.0-24", ""),
        ("10.0.0.0/16", "10.0.3.0-24", ""),
        ("10.0.0.0/16", "10.0.3.32-28", " metric 150"),
        ("10.0.0.0/16", "10.0.3.32-27", ""),
        ("10.0.0.0/16", "10.0.3.32-30", " metric 300"),
    ] {
        let dst = subnet.replace('-', "/");
        let expected = format!("route {dst} via 192.168.100.2 dev eth0{metric}");
        assert_eq!(route(network, subnet), expected, "{network}");
    }
}

#[test]
fn routes_of_the_go_flannel_are_known_by_their_length_only_where_all_have_one() {
    let config = DUAL.replace("vxlan", "host-gw");
    let lengths = |network: NetworkConfig| -> Vec<Option<u8>> {
        let (backend, node) = node_of(network);
        ownership(&*backend, &node, &[]).legacy.iter().map(|legacy| legacy.subnet_len).collect()
    };
    assert_eq!(lengths(NetworkConfig::parse(&config).unwrap()), [Some(24), Some(64)]);
    assert_eq!(lengths(NetworkConfig::read(&config, SubnetOrigin::Store).unwrap()), [None, None]);
}

#[test]
fn peers_that_cannot_be_used_are_refused_by_name() {
    fn refused(subnet: &str, attrs: &str) -> PeerProblem {
        peer(DUAL, OWN_DUAL, (subnet, attrs)).unwrap_err()
    }
    let host_gw = r#"{"PublicIP":"192.168.100.2","BackendType":"host-gw"}"#;
    assert!(matches!(refused("10.244.48.0-24", host_gw), PeerProblem::OtherBackend { .. }));
    assert_eq!(refused("10.9.48.0-24", PEER_DUAL.1), PeerProblem::OutsideNetwork);
    assert_eq!(refused("0.0.0.0-0", PEER_DUAL.1), PeerProblem::OverlapsOurs);
    assert_eq!(refused("10.244.69.128-25", PEER_DUAL.1), PeerProblem::OverlapsOurs);
    assert_eq!(refused("10.244.48.0-24", OWN_DUAL.1), PeerProblem::OurAddress);
    for data in [r#""x""#, "{}", r#"{"VtepMAC":"nonsense"}"#, r#"{"VtepMAC":"ff:ff:ff:ff:ff:ff"}"#]
    {
        let attrs =
            format!(r#"{{"PublicIP":"192.168.100.2","BackendType":"vxlan","BackendData":{data}}}"#);
        assert!(matches!(refused("10.244.48.0-24", &attrs), PeerProblem::Data(_)), "{data}");
    }
    let nowhere = r#"{"PublicIP":"0.0.0.0","BackendType":"vxlan","BackendData":{"VtepMAC":"62:7a:ce:83:b3:87"}}"#;
    assert_eq!(refused("10.244.48.0-24", nowhere), PeerProblem::NoAddress(Family::V4));
    for ip in ["255.255.255.255", "169.254.169.254", "127.0.0.1", "10.244.48.7", "224.0.0.1"] {
        let attrs = nowhere.replace("0.0.0.0", ip);
        let problem = refused("10.244.48.0-24", &attrs);
        assert!(matches!(problem, PeerProblem::UnusableAddress(..)), "{ip}: {problem:?}");
        assert!(problem.to_string().contains(ip), "{problem}");
    }
}

#[test]
fn a_peer_without_an_ipv6_address_is_reached_over_ipv4_in_both_families() {
    let v4_only = r#"{"PublicIP":"192.168.100.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"62:7a:ce:83:b3:87"}}"#;
    let entries = peer(DUAL, OWN_DUAL, (PEER_DUAL.0, v4_only)).unwrap();
    // A neighbour and a route for each family, where both go to, once, and what this node sends IPv6 from.
    assert_eq!(entries.len(), 7, "{entries:?}");
    assert!(entries.contains(&"address fd00:244:0:24::/128 dev flannel.1".to_owned()));
    let elsewhere = |entry: &&String| !entry.contains("flannel.1");
    assert_eq!(entries.iter().find(elsewhere), None);
    assert_eq!(peer(DUAL, OWN_DUAL, ("10.244.48.0-24", v4_only)).unwrap().len(), 3);
}

#[test]
fn one_family_that_works_is_better_than_none() {
    let half = r#"{"PublicIP":"192.168.100.2","PublicIPv6":"fd00:100::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"62:7a:ce:83:b3:87"}}"#;
    assert_eq!(peer(DUAL, OWN_DUAL, (PEER_DUAL.0, half)).unwrap().len(), 3);
}

#[test]
fn impossible_options_are_refused_with_the_fix() {
    let refused = |backend: &str| {
        let config = format!(
            r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/56","Backend":{backend}}}"#
        );
        let network = NetworkConfig::parse(&config).unwrap();
        match create(&network.backend) {
            Ok(_) => node(&config).0.check(&node(&config).1).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    assert!(refused(r#"{"Type":"vxlan","VNI":10000}"#).contains("9999 or less"));
    assert!(refused(r#"{"Type":"vxlan","VNI":10000000}"#).contains("9999999 or less"));
    assert!(refused(r#"{"Type":"vxlan","MTU":1300}"#).contains("1280"));
    assert!(refused(r#"{"Type":"vxlan","Port":65536}"#).contains("Port"));
    let known = "ipip, ipsec, udp, aws-vpc, ali-vpc, gce, tencent-vpc, extension, alloc";
    assert!(refused(r#"{"Type":"carrier-pigeon"}"#).contains(known));
}

#[test]
fn what_is_wrong_on_every_node_is_found_without_one() {
    let config = |more: &str| format!(r#"{{"Network":"10.244.0.0/16"{more}}}"#);
    let dual = r#","EnableIPv6":true,"IPv6Network":"fd00:244::/56""#;
    for (more, said) in [
        (r#","Backend":{"Type":"azure"}"#.to_owned(), "'azure' is not part of this release"),
        (r#","Backend":{"Type":"vxlam"}"#.to_owned(), "did you mean vxlan?"),
        (r#","Backend":{"Type":"hostgw"}"#.to_owned(), "did you mean host-gw?"),
        (r#","Backend":{"Type":"x\u001b"}"#.to_owned(), r"unknown Backend.Type 'x\u{1b}': use one"),
        (r#","Backend":{"Type":"vxlan","VNI":16777216}"#.to_owned(), "out of range"),
        (r#","Backend":{"Type":"vxlan","VNI":"1"}"#.to_owned(), "not a whole number"),
        (r#","Backend":{"Type":"vxlan","Port":-1}"#.to_owned(), "out of range"),
        (r#","Backend":{"Type":"vxlan","MTU":117}"#.to_owned(), "raise it to 118 or more"),
        (format!(r#"{dual},"Backend":{{"Type":"vxlan","VNI":10000}}"#), "9999 or less with IPv6"),
        (format!(r#"{dual},"Backend":{{"Type":"vxlan","MTU":1349}}"#), "raise it to 1350 or more"),
    ] {
        let error = judge_config(&config(&more), SubnetOrigin::Pool).expect_err(&more).to_string();
        assert!(error.contains(said), "{more}: {error}");
    }
    let judged =
        judge_config(&config(r#","Backend":{"Type":"host-gw","VNI":1}"#), SubnetOrigin::Pool)
            .unwrap();
    assert_eq!(judged.remarks.len(), 1, "host-gw has no options: {:?}", judged.remarks);
}

#[test]
fn a_reservation_is_nothing_to_warn_of_until_its_node_comes() {
    let reserved = r#"{"PublicIP":"192.168.100.2","PublicIPv6":null}"#;
    for config in [DUAL, &DUAL.replace("vxlan", "host-gw")] {
        let problem = peer(config, OWN_DUAL, (PEER_DUAL.0, reserved)).unwrap_err();
        assert_eq!(problem, PeerProblem::Unclaimed);
        assert!(problem.is_expected());
    }
    // One that names another backend is another matter, and so is one that overlaps ours.
    let other = r#"{"PublicIP":"192.168.100.2","BackendType":"ipip"}"#;
    assert!(!peer(DUAL, OWN_DUAL, (PEER_DUAL.0, other)).unwrap_err().is_expected());
    let ours = peer(DUAL, OWN_DUAL, ("10.244.69.0-25", reserved)).unwrap_err();
    assert!(ours.is_clash());
}

#[test]
fn an_mtu_beyond_what_the_card_carries_is_remarked_on() {
    let remarks = |mtu: u32| {
        let config =
            format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"vxlan","MTU":{mtu}}}}}"#);
        let (backend, node) = node(&config);
        backend.remarks(&node)
    };
    for fits in [0, 1300, 1500] {
        assert_eq!(remarks(fits), [""; 0], "{fits}");
    }
    let said = remarks(9000);
    assert_eq!(said.len(), 1);
    for part in
        ["Backend.MTU is 9000", "eth0 carries 1500", "1450 for pods", "raise the MTU of eth0"]
    {
        assert!(said[0].contains(part), "{said:?}");
    }
}

const UDP: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#;
/// As the Go flannel writes it: the backend is not named.
const GO_UDP: (&str, &str) =
    ("10.244.48.0-24", r#"{"PublicIP":"192.168.100.2","PublicIPv6":null}"#);
const OWN_UDP: (&str, &str) = ("10.244.69.0-24", r#"{"PublicIP":"192.168.100.1"}"#);

fn tunnel_of(config: &str, other: Option<(&str, &str)>) -> Result<Vec<String>, PeerProblem> {
    use flannel_wanted::KeyedEntry as _;
    let (backend, node) = node(config);
    let wishes = match other {
        Some(other) => peer_wishes(&*backend, &node, &lease(OWN_UDP), &lease(other))?,
        None => backend.base(&node, &lease(OWN_UDP)),
    };
    Ok(wishes.tunnel.iter().map(|entry| entry.describe()).collect())
}

#[test]
fn udp_base_is_the_go_flannels() {
    for config in [UDP, r#"{"Network":"10.244.0.0/16"}"#] {
        assert_eq!(
            base(config, OWN_UDP),
            [
                "device flannel0 (tun mtu 1472)",
                "sysctl net.ipv6.conf.flannel0.accept_ra=0",
                "sysctl net.ipv4.conf.flannel0.accept_local=1",
                "address 10.244.69.0/32 dev flannel0",
                "route 10.244.0.0/16 dev flannel0",
            ]
        );
        assert_eq!(tunnel_of(config, None).unwrap(), ["tunnel flannel0 on UDP 192.168.100.1:8285"]);
    }
}

#[test]
fn udp_has_another_device_for_another_port() {
    let config = UDP.replace(r#""udp""#, r#""udp","Port":9000"#);
    assert_eq!(tunnel_of(&config, None).unwrap(), ["tunnel flannel9000 on UDP 192.168.100.1:9000"]);
    let peer = tunnel_of(&config, Some(GO_UDP)).unwrap();
    assert_eq!(peer, ["tunnel to 10.244.48.0/24 at 192.168.100.2:9000"]);
}

#[test]
fn udp_speaks_to_nodes_that_name_no_backend_and_to_its_own_kind() {
    let tunnel = ["tunnel to 10.244.48.0/24 at 192.168.100.2:8285"];
    assert_eq!(tunnel_of(UDP, Some(GO_UDP)).unwrap(), tunnel);
    let ours = r#"{"PublicIP":"192.168.100.2","BackendType":"udp"}"#;
    assert_eq!(tunnel_of(UDP, Some((GO_UDP.0, ours))).unwrap(), tunnel);
    assert_eq!(peer(UDP, OWN_UDP, GO_UDP).unwrap(), ["route 10.244.48.0/24 dev flannel0"]);
    let other = r#"{"PublicIP":"192.168.100.2","BackendType":"vxlan"}"#;
    let problem = tunnel_of(UDP, Some((GO_UDP.0, other))).unwrap_err();
    assert!(matches!(problem, PeerProblem::OtherBackend { .. }), "{problem}");
}

#[test]
fn udp_carries_ipv4_on_a_card_whose_only_ipv6_address_is_that_of_its_link() {
    use flannel_wanted::KeyedEntry as _;
    let (backend, mut node) = node(&DUAL.replace("vxlan", "udp"));
    let local = Some("fe80::1".parse().unwrap());
    (node.underlay.v6, node.underlay.public_v6) = (local, local);
    backend.check(&node).unwrap();
    let device = &backend.base(&node, &lease(OWN_DUAL)).tunnel[0];
    assert_eq!(device.describe(), "tunnel flannel0 on UDP 192.168.100.1:8285");
    let [remark] = &backend.remarks(&node)[..] else { panic!("one remark") };
    assert!(remark.contains("eth0 has no IPv6 address") && remark.contains("IPv4 is carried"));
    // Of peers, neither those that have an address nor those that are like this node.
    for theirs in ["fd00:100::2", "fe80::2"] {
        let attrs = format!(
            r#"{{"PublicIP":"192.168.100.2","PublicIPv6":"{theirs}","BackendType":"udp"}}"#
        );
        let peer = lease((PEER_DUAL.0, &attrs));
        let wishes = peer_wishes(&*backend, &node, &lease(OWN_DUAL), &peer).unwrap();
        assert_eq!((wishes.tunnel.len(), wishes.kernel.len()), (1, 1), "{theirs}");
    }
    (node.underlay.v4, node.underlay.public_v4, node.network.v4) = (None, None, None);
    let error = backend.check(&node).unwrap_err().to_string();
    assert!(error.contains("eth0 has no IPv6 address"), "{error}");
}

#[test]
fn udp_carries_each_family_over_its_own() {
    let config = DUAL.replace("vxlan", "udp");
    let (backend, node) = node(&config);
    assert_eq!(backend.mtu(&node), 1452, "what fits over either family");
    let peer = peer_wishes(
        &*backend,
        &node,
        &lease(OWN_DUAL),
        &lease((
            PEER_DUAL.0,
            r#"{"PublicIP":"192.168.100.2","PublicIPv6":"fd00:100::2","BackendType":"udp"}"#,
        )),
    );
    assert_eq!(peer.unwrap().tunnel.len(), 2);
}
