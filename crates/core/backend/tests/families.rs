//! Packets of one family in those of the other: every network over every underlay.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

use std::net::IpAddr;

use flannel_backend::{
    Answers, Backend, Node, NodeMemory, PeerProblem, Stack, Wishes, peer_wishes,
};
use flannel_common::{Family, PrivateKey};
use flannel_entries::facts::Facts;
use flannel_entries::kernel::{Entry, Route};
use flannel_lease::{Lease, NetworkConfig};

const DUAL: Stack = Stack { v4: true, v6: true };
const STACKS: [Stack; 3] = [Stack::V4, Stack::V6, DUAL];

/// All that carry packets of one family in those of the other.
const BACKENDS: [&str; 6] = [
    r#""Type":"vxlan""#,
    r#""Type":"wireguard""#,
    r#""Type":"wireguard","Mode":"auto""#,
    r#""Type":"wireguard","Mode":"ipv4""#,
    r#""Type":"wireguard","Mode":"ipv6""#,
    r#""Type":"ipip""#,
];

struct Peer {
    backend: Box<dyn Backend>,
    node: Node,
    lease: Lease,
}

fn network(backend: &str, families: Stack) -> NetworkConfig {
    let (v4, v6) = (families.v4, families.v6);
    let ranges = r#""Network":"10.244.0.0/16","IPv6Network":"fd00:244::/56""#;
    let config =
        format!(r#"{{{ranges},"EnableIPv4":{v4},"EnableIPv6":{v6},"Backend":{{{backend}}}}}"#);
    NetworkConfig::parse(&config).unwrap()
}

/// A node whose card has addresses of these families; `None` where the backend can do nothing with it.
fn peer(number: u8, backend: &str, families: Stack, card: Stack) -> Option<Peer> {
    let network = network(backend, families);
    let key = PrivateKey::from_random([number; 32]);
    let answers = Answers { private_key: Some(key), ..Answers::default() };
    let possible = flannel_backend::create(&network.backend).unwrap().underlays(&network);
    let has = |stack: &Stack| (card.v4 || !stack.v4) && (card.v6 || !stack.v6);
    let chosen = possible.into_iter().find(has)?;
    let (backend, node) = support::node_at(support::underlay(number, chosen), network, answers);
    backend.check(&node).unwrap();
    let memory = NodeMemory { announced: None, facts: &Facts::default(), taken: &[] };
    let attrs = backend.announce(&node, &memory);
    let v4 = format!("10.244.{number}.0/24").parse().unwrap();
    let v6 = format!("fd00:244:0:{number}::/64").parse().unwrap();
    let subnet = flannel_lease::Subnet::new(
        Some(v4).filter(|_| families.v4),
        Some(v6).filter(|_| families.v6),
    );
    Some(Peer { backend, node, lease: Lease { subnet: subnet.unwrap(), attrs } })
}

impl Peer {
    fn to(&self, other: &Self) -> Result<Wishes, PeerProblem> {
        peer_wishes(&*self.backend, &self.node, &self.lease, &other.lease)
    }

    /// The families it announces an address of.
    fn at(&self) -> Vec<Family> {
        self.lease.attrs.public_addresses().map(Family::of).collect()
    }
}

/// Where the packets go to, by the family of what is in them.
fn ways(wishes: &Wishes) -> Vec<(Family, IpAddr)> {
    let entries = &wishes.kernel;
    let routes = entries.iter().filter_map(|entry| match entry {
        Entry::Route(route) => Some(route),
        _ => None,
    });
    let endpoint = |route: &Route| {
        entries.iter().find_map(|entry| match entry {
            // By the MAC that the gateway has.
            Entry::Fdb(fdb) if fdb.link == route.link => {
                let neighbour = entries.iter().any(|entry| {
                    matches!(entry, Entry::Neighbour(n) if Some(n.ip) == route.via && n.mac == fdb.mac)
                });
                neighbour.then_some(fdb.dst)
            }
            Entry::WireguardPeer(peer) if peer.link == route.link => {
                peer.allowed.contains(&route.dst).then(|| peer.endpoint.ip())
            }
            _ => None,
        })
    };
    let to = |route: &Route| match (endpoint(route), route.via.unwrap()) {
        (Some(endpoint), _) => endpoint,
        // The gateway of a tunnel is the peer itself.
        (None, IpAddr::V6(via)) if via.segments()[..6] == [0; 6] => {
            IpAddr::V4(via.to_ipv4().unwrap())
        }
        (None, via) => via,
    };
    let wireguard = |route: &Route| match route.via {
        None => endpoint(route).unwrap(),
        Some(_) => to(route),
    };
    routes.map(|route| (Family::of(route.dst.addr()), wireguard(route))).collect()
}

#[test]
fn two_nodes_that_have_one_family_in_common_reach_each_other_in_every_family_of_pods() {
    for backend in BACKENDS {
        for families in STACKS {
            for (card, other) in STACKS.iter().flat_map(|c| STACKS.iter().map(move |o| (*c, *o))) {
                let case = format!("{backend}, {families:?} over {card:?} and {other:?}");
                let (one, two) =
                    (peer(1, backend, families, card), peer(2, backend, families, other));
                let (Some(one), Some(two)) = (one, two) else {
                    let over_one_alone = ["Mode\":\"ipv", "ipip"];
                    assert!(over_one_alone.iter().any(|it| backend.contains(it)), "{case}");
                    continue;
                };
                let common: Vec<Family> =
                    one.at().into_iter().filter(|family| two.at().contains(family)).collect();
                if common.is_empty() {
                    assert!(matches!(one.to(&two), Err(PeerProblem::Apart(_))), "{case}");
                    assert!(matches!(two.to(&one), Err(PeerProblem::Apart(_))), "{case}");
                    continue;
                }
                let there = ways(&one.to(&two).unwrap());
                let back = ways(&two.to(&one).unwrap());
                let used = Family::BOTH.into_iter().filter(|family| families.has(*family));
                let inner =
                    |ways: &[(Family, IpAddr)]| ways.iter().map(|w| w.0).collect::<Vec<_>>();
                assert_eq!(inner(&there), used.collect::<Vec<_>>(), "{case}");
                for ((family, to), (_, from)) in there.iter().zip(&back) {
                    let outer = Family::of(*to);
                    assert!(common.contains(&outer), "{case}: {family} to {to}");
                    assert_eq!(outer, Family::of(*from), "{case}: both ways are of one family");
                    // As the Go flannel does it, where that is possible.
                    if !backend.contains("Mode") && common.contains(family) {
                        assert_eq!(outer, *family, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn nodes_of_one_cluster_have_one_family_in_common() {
    // A network of one family, and nodes that have both: they announce that one, as they always have.
    for backend in [r#""Type":"vxlan""#, r#""Type":"wireguard""#] {
        let both = peer(1, backend, Stack::V4, DUAL).unwrap();
        assert_eq!(both.at(), [Family::V4]);
        let v6 = peer(2, backend, Stack::V4, Stack::V6).unwrap();
        assert_eq!(v6.at(), [Family::V6]);
        let problem = both.to(&v6).unwrap_err();
        assert_eq!(problem, PeerProblem::Apart(Family::V6));
        assert!(problem.to_string().contains("give all nodes an address of one"), "{problem}");
    }
}

fn lines(wishes: Wishes) -> Vec<String> {
    wishes.kernel.iter().map(ToString::to_string).collect()
}

#[test]
fn ipv4_of_pods_over_ipv6() {
    let vxlan = |number| peer(number, BACKENDS[0], Stack::V4, Stack::V6).unwrap();
    let (one, two) = (vxlan(1), vxlan(2));
    assert_eq!((one.lease.attrs.public_ip, &one.lease.attrs.backend_data), (None, &None));
    let base = lines(one.backend.base(&one.node, &one.lease));
    assert!(
        base[0].starts_with("device flannel-v6.1 (vxlan id 1 local fd00:100::1 dev eth0 mtu 1430")
    );
    assert_eq!(base[2], "address 10.244.1.0/32 dev flannel-v6.1");
    let entries = lines(one.to(&two).unwrap());
    assert!(entries[0].starts_with("neighbour 10.244.2.0 lladdr "), "{entries:?}");
    assert!(entries[1].ends_with("dst fd00:100::2 dev flannel-v6.1"), "{entries:?}");
    assert_eq!(entries[2], "route 10.244.2.0/24 via 10.244.2.0 dev flannel-v6.1 onlink");
    assert!(one.backend.remarks(&one.node)[0].contains("IPv4 of pods travels over IPv6"));
}

#[test]
fn ipv6_of_pods_over_ipv4() {
    let ipip = |number| peer(number, BACKENDS[5], DUAL, Stack::V4).unwrap();
    let (one, two) = (ipip(1), ipip(2));
    assert_eq!(
        lines(one.backend.base(&one.node, &one.lease)),
        [
            "device flannel.ipip (ipip local 192.168.100.1 mtu 1480)",
            "address 10.244.1.0/32 dev flannel.ipip",
            "device flannel.sit (sit local 192.168.100.1 mtu 1480)",
            "address fd00:244:0:1::/128 dev flannel.sit",
            "sysctl net.ipv6.conf.flannel.sit.disable_ipv6=0",
        ]
    );
    let to = |gateway: &str| {
        [
            "route 10.244.2.0/24 via 192.168.100.2 dev flannel.ipip onlink".to_owned(),
            format!("route fd00:244:0:2::/64 via {gateway} dev flannel.sit metric 1024 onlink"),
        ]
    };
    assert_eq!(lines(one.to(&two).unwrap()), to("::c0a8:6402"));
    // A node that has both sends over IPv4 all the same: to every peer in one way.
    let both = peer(1, BACKENDS[5], DUAL, DUAL).unwrap();
    assert_eq!(both.at(), [Family::V4]);
    assert_eq!(lines(both.to(&two).unwrap()), to("::c0a8:6402"));

    // A device of its own for each family, both over the one that there is.
    let wireguard = |number| peer(number, BACKENDS[1], DUAL, Stack::V4).unwrap();
    let entries = lines(wireguard(1).to(&wireguard(2)).unwrap());
    assert!(entries[1].contains("endpoint 192.168.100.2:51820"), "{entries:?}");
    assert!(entries[3].contains("endpoint 192.168.100.2:51821"), "{entries:?}");
    assert!(entries[3].ends_with("dev flannel-wg-v6"), "{entries:?}");
}

#[test]
fn ipip_needs_a_card_with_ipv4() {
    for families in STACKS {
        assert!(peer(1, BACKENDS[5], families, Stack::V6).is_none());
    }
}

#[test]
fn backends_that_carry_each_family_in_its_own_ask_for_a_card_that_has_them_all() {
    for kind in ["host-gw", "udp", "alloc", "extension"] {
        for families in STACKS {
            let network = network(&format!(r#""Type":"{kind}""#), families);
            let backend = flannel_backend::create(&network.backend).unwrap();
            assert_eq!(backend.underlays(&network), [families], "{kind}");
        }
    }
}
