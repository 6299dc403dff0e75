//! Where a packet comes from and goes to, as one node sees it.

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU64};

use flannel_lease::{Lease, RawJson, Subnet};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    Pod,
    Host,
    Peer(&'a Peer),
    World,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Peer {
    pub subnets: Vec<IpNet>,
    pub public: Vec<IpAddr>,
    pub macs: Vec<String>,
    /// The hash of its machine id, where it tells it.
    #[serde(skip)]
    pub machine: Option<NonZeroU64>,
    #[serde(skip)]
    pub probe_port: Option<NonZeroU16>,
    /// The type of its backend; empty for a reservation.
    #[serde(skip)]
    pub backend: String,
}

impl<'a> End<'a> {
    pub fn place(ip: IpAddr, hosts: &[IpAddr], own: &[IpNet], peers: &'a [Peer]) -> Self {
        if hosts.contains(&ip) {
            return Self::Host;
        }
        if own.iter().any(|own| own.contains(&ip)) {
            return Self::Pod;
        }
        let has_it = |peer: &&Peer| peer.subnets.iter().any(|net| net.contains(&ip));
        peers.iter().find(has_it).map_or(Self::World, Self::Peer)
    }
}

impl Peer {
    pub fn of_lease(lease: &Lease) -> Self {
        let attrs = &lease.attrs;
        let mac = |data: &RawJson| {
            let data: serde_json::Value = serde_json::from_str(data.as_str()).ok()?;
            data["VtepMAC"].as_str().map(str::to_ascii_lowercase)
        };
        let data = [&attrs.backend_data, &attrs.backend_v6_data].into_iter().flatten();
        Self {
            subnets: lease.subnet.nets().collect(),
            public: attrs.public_addresses().collect(),
            macs: data.filter_map(mac).collect(),
            machine: attrs.machine,
            probe_port: attrs.probe_port,
            backend: attrs.backend_type.to_string(),
        }
    }

    /// Name of the node in requests.
    pub fn subnet(&self) -> Option<Subnet> {
        let (mut v4, mut v6) = (None, None);
        for net in &self.subnets {
            match net {
                IpNet::V4(net) => v4 = v4.or(Some(*net)),
                IpNet::V6(net) => v6 = v6.or(Some(*net)),
            }
        }
        Subnet::new(v4, v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_pods_of_this_node_or_of_another_or_of_nobody() {
        let peers = [Peer { subnets: vec!["10.244.2.0/24".parse().unwrap()], ..Peer::default() }];
        let own = ["10.244.1.0/24".parse().unwrap()];
        let hosts = [IpAddr::from([10, 244, 1, 1])];
        let end = |last: [u8; 4]| End::place(last.into(), &hosts, &own, &peers);
        assert!(matches!(end([10, 244, 1, 1]), End::Host), "the bridge's own");
        assert!(matches!(end([10, 244, 1, 2]), End::Pod));
        assert!(matches!(end([10, 244, 2, 2]), End::Peer(peer) if *peer == peers[0]));
        assert!(matches!(end([10, 244, 3, 2]), End::World));
        let (v4, v6) = ("10.244.2.0/24".parse().unwrap(), "fd00::/64".parse().unwrap());
        let subnet = Subnet::new(Some(v4), Some(v6)).unwrap();
        let peer = Peer { subnets: subnet.nets().collect(), ..Peer::default() };
        assert_eq!(peer.subnet(), Some(subnet));
    }
}
