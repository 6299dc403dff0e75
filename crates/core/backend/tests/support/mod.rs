//! A node and leases, as the backends are given them.

#![allow(dead_code, reason = "every test has its own copy, and not all need all of it")]

use std::net::{Ipv4Addr, Ipv6Addr};

use flannel_backend::{Answers, Backend, Node, Stack, Underlay, create};
use flannel_common::IfName;
use flannel_entries::facts::KernelVersion;
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig};

/// 192.168.100.1 and fd00:100::1 on eth0, as far as the network has these families.
pub(crate) fn node_of(network: NetworkConfig, answers: Answers) -> (Box<dyn Backend>, Node) {
    let underlay = underlay(1, Stack::of(&network));
    node_at(underlay, network, answers)
}

pub(crate) fn node_at(
    underlay: Underlay,
    network: NetworkConfig,
    answers: Answers,
) -> (Box<dyn Backend>, Node) {
    let backend = create(&network.backend).unwrap();
    let node = Node {
        underlay,
        network,
        kernel: KernelVersion { major: 6, minor: 1 },
        paths: Default::default(),
        connected: Vec::new(),
        answers,
    };
    (backend, node)
}

/// A card with an address of each of these families.
pub(crate) fn underlay(number: u8, families: Stack) -> Underlay {
    let v4 = Some(Ipv4Addr::new(192, 168, 100, number)).filter(|_| families.v4);
    let v6 = Some(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0, number.into()));
    let v6 = v6.filter(|_| families.v6);
    Underlay {
        link: IfName::new("eth0").unwrap(),
        mtu: 1500,
        v4,
        v6,
        public_v4: v4,
        public_v6: v6,
        why: String::new(),
    }
}

pub(crate) fn lease(subnet: &str, attrs: &str) -> Lease {
    Lease {
        subnet: subnet.parse().unwrap(),
        attrs: LeaseAttrs::from_json(attrs.as_bytes()).unwrap(),
    }
}
