//! A node and leases, as the backends are given them.

use flannel_backend::{Answers, Backend, Node, Underlay, create};
use flannel_kernel::{IfName, KernelVersion};
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig};

/// 192.168.100.1 and fd00:100::1 on eth0, as far as the network has these families.
pub(crate) fn node_of(network: NetworkConfig, answers: Answers) -> (Box<dyn Backend>, Node) {
    let backend = create(&network.backend).unwrap();
    let (v4, v6) = (network.v4.is_some(), network.v6.is_some());
    let node = Node {
        underlay: Underlay {
            link: IfName::new("eth0").unwrap(),
            mtu: 1500,
            v4: Some([192, 168, 100, 1].into()).filter(|_| v4),
            v6: Some("fd00:100::1".parse().unwrap()).filter(|_| v6),
            public_v4: Some([192, 168, 100, 1].into()).filter(|_| v4),
            public_v6: Some("fd00:100::1".parse().unwrap()).filter(|_| v6),
            why: String::new(),
        },
        network,
        kernel: KernelVersion { major: 6, minor: 1 },
        paths: Default::default(),
        connected: Vec::new(),
        answers,
    };
    (backend, node)
}

pub(crate) fn lease(subnet: &str, attrs: &str) -> Lease {
    Lease {
        subnet: subnet.parse().unwrap(),
        attrs: LeaseAttrs::from_json(attrs.as_bytes()).unwrap(),
    }
}
