//! Simulated peers: leases as other nodes would write them, and the entries they make.

use std::net::Ipv4Addr;

use anyhow::Context;
use flannel_backend::{Node, NodeMemory, Underlay, WantedBy, create, peer_wishes};
use flannel_common::IfName;
use flannel_entries::facts::{Facts, KernelVersion};
use flannel_entries::kernel::{Entry, Ownership};
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig};

/// Large enough for any number of peers here.
pub(crate) const CONFIG: &str = r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#;
/// Our own subnet, before all peers'.
const OWN: &str = "10.0.1.0-24";

/// Peer number `n` (from 0) as it stands in etcd.
pub(crate) fn lease(n: u32) -> (String, String) {
    let [_, a, b, c] = n.to_be_bytes();
    let subnet = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 16, 0, 0)) + (n << 8));
    let public = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + n);
    let value = format!(
        r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:00:00:{a:02x}:{b:02x}:{c:02x}"}}}}"#
    );
    (format!("{subnet}-24"), value)
}

/// The subnet of peer number `n`.
pub(crate) fn subnet(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 16, 0, 0)) + (n << 8))
}

pub(crate) struct Desired {
    pub(crate) ownership: Ownership,
    pub(crate) base: Vec<Entry>,
    pub(crate) peers: flannel_wanted::Desired<WantedBy, Entry>,
}

/// What the daemon would ask of the kernel for these peers.
pub(crate) fn desired(count: u32) -> anyhow::Result<Desired> {
    let network = NetworkConfig::parse(CONFIG)?;
    let backend = create(&network.backend)?;
    let address = Some(Ipv4Addr::new(192, 168, 100, 1));
    let node = Node {
        underlay: Underlay {
            link: IfName::new("eth0")?,
            mtu: 1500,
            v4: address,
            v6: None,
            public_v4: address,
            public_v6: None,
            why: String::new(),
        },
        network,
        kernel: KernelVersion { major: 6, minor: 1 },
        paths: Default::default(),
        connected: Vec::new(),
        answers: Default::default(),
    };
    let facts = Facts::default();
    let past = NodeMemory { announced: None, facts: &facts, taken: &[] };
    let own = Lease { subnet: OWN.parse()?, attrs: backend.announce(&node, &past) };
    let peers = (0..count)
        .map(|n| {
            let (key, value) = lease(n);
            let attrs = LeaseAttrs::from_json(value.as_bytes())?;
            let peer = Lease { subnet: key.parse()?, attrs };
            let wishes = peer_wishes(&*backend, &node, &own, &peer);
            let wishes = wishes.with_context(|| format!("peer {key}"))?;
            Ok((WantedBy::Peer(peer.subnet), wishes.kernel))
        })
        .collect::<anyhow::Result<_>>()?;
    let ownership = flannel_backend::ownership(&*backend, &node, &[]);
    Ok(Desired { ownership, base: backend.base(&node, &own).kernel, peers })
}
