//! Who has which address on the underlay: pure arithmetic from a node's number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::error::{LabError, Result};
use crate::spec::{Families, LabSpec};

/// Nodes that fit a /24 next to the gateway and the store.
const NODES_OF_A_24: u16 = 250;
/// Ports of a Linux bridge are 1023; some are left for the store.
const NODES_OF_A_BRIDGE: u16 = 1000;

/// The kernel's neighbour table is shared by all namespaces of a machine and takes 1024 entries by
/// default, the host's own among them. Labs with more nodes than this get lasting entries, which do
/// not count.
const NODES_THAT_MAY_ASK: u16 = 16;

/// The addresses of a whole lab.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    nodes: u16,
    segments: u8,
    families: Families,
    mtu: u32,
    wire: bool,
    segment_of: std::collections::BTreeMap<u16, u8>,
}

/// The underlay device of one participant, and the switch port it is plugged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// The switch's end of the cable.
    pub port: String,
    /// Which underlay network it is in, from 0.
    pub segment: u8,
    /// Its hardware address, the same whenever the device is recreated.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u32,
    /// Whether it carries packets of its MTU only.
    pub wire: bool,
    /// Its IPv4 address and network.
    pub v4: Option<Ipv4Net>,
    /// Its IPv6 address and network.
    pub v6: Option<Ipv6Net>,
    /// The IPv4 gateway, which is the switch.
    pub gateway4: Option<Ipv4Addr>,
    /// The IPv6 gateway, which is the switch.
    pub gateway6: Option<Ipv6Addr>,
}

/// One underlay network as the switch has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) bridge: String,
    pub(crate) mac: [u8; 6],
    pub(crate) v4: Option<Ipv4Net>,
    pub(crate) v6: Option<Ipv6Net>,
}

impl Plan {
    pub(crate) fn new(spec: &LabSpec) -> Result<Self> {
        let refuse = |why: String| Err(LabError::Spec(why));
        if spec.nodes == 0 {
            return refuse("a lab needs at least one node".into());
        }
        if spec.nodes > NODES_OF_A_BRIDGE {
            return refuse(format!("{} nodes: at most {NODES_OF_A_BRIDGE} fit", spec.nodes));
        }
        if spec.segments == 0 || spec.segments > 100 {
            return refuse(format!("{} segments: 1 to 100 are possible", spec.segments));
        }
        if spec.segments > 1 && spec.nodes > NODES_OF_A_24 {
            return refuse(format!("more than {NODES_OF_A_24} nodes only fit one segment"));
        }
        if let Some((node, segment)) =
            spec.segment_of.iter().find(|&(_, &segment)| segment >= spec.segments)
        {
            return refuse(format!(
                "node {node} in segment {segment}: segments are 0 to {}",
                spec.segments - 1
            ));
        }
        Ok(Self {
            nodes: spec.nodes,
            segments: spec.segments,
            families: spec.underlay,
            mtu: spec.underlay_mtu,
            wire: spec.wire,
            segment_of: spec.segment_of.clone(),
        })
    }

    pub(crate) fn node(&self, number: u16) -> Nic {
        let segment = self.segment_of.get(&number).copied().unwrap_or_else(|| {
            // In blocks: the first nodes share the first segment.
            let index = u32::from(number.saturating_sub(1)) * u32::from(self.segments);
            u8::try_from(index / u32::from(self.nodes)).unwrap_or(0)
        });
        let [high, low] = number.to_be_bytes();
        let v4 = if self.wide() {
            let index = number.saturating_sub(1);
            let host = u8::try_from(index % NODES_OF_A_24 + 1).unwrap_or(1);
            Ipv4Addr::new(192, 168, u8::try_from(index / NODES_OF_A_24).unwrap_or(0), host)
        } else {
            Ipv4Addr::new(192, 168, 100 + segment, low)
        };
        // Beyond the /24 the numbers would meet those of the gateway and the store.
        let page = u16::from(number > NODES_OF_A_24);
        let v6 = address6(segment, page, number);
        self.nic(format!("p{number}"), [2, 0xfa, 0, 0, high, low], segment, v4, v6)
    }

    /// The members of the store sit at the upper end of the first segment: .253, .252, .251.
    pub(crate) fn etcd(&self, member: u8) -> Nic {
        let host = 253 - member;
        let v4 = Ipv4Addr::new(192, 168, 100, host);
        let v6 = address6(0, 0, host.into());
        self.nic(format!("s{member}"), [2, 0xfa, 0, 0xff, 0, member], 0, v4, v6)
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        (0..self.segments).map(|segment| Segment {
            bridge: bridge(segment),
            mac: [2, 0xfa, 0, 0xfe, 0, segment],
            v4: self.families.v4().then(|| self.net4(gateway4(segment))),
            v6: self.families.v6().then(|| net6(gateway6(segment))),
        })
    }

    /// What `ip -batch` must do on a node of a large lab so that it need not ask for its neighbours.
    /// Beyond a /24 even lasting entries would be too many.
    pub(crate) fn neighbours(&self, own: &Nic, etcd_members: u8) -> Vec<String> {
        if self.nodes <= NODES_THAT_MAY_ASK || self.wide() {
            return Vec::new();
        }
        let nodes = (1..=self.nodes).map(|number| self.node(number));
        let others = nodes.chain((0..etcd_members).map(|member| self.etcd(member)));
        let others = others.filter(|other| other.segment == own.segment && other.port != own.port);
        let mut pairs: Vec<_> = others.map(|other| (other.addresses(), other.mac)).collect();
        pairs.extend(self.segments().nth(own.segment.into()).map(|segment| {
            let v4 = segment.v4.map(|net| IpAddr::V4(net.addr()));
            let v6 = segment.v6.map(|net| IpAddr::V6(net.addr()));
            (v4.into_iter().chain(v6).collect(), segment.mac)
        }));
        let line = |address: IpAddr, mac| {
            format!("neigh replace {address} lladdr {} dev eth0 nud permanent", mac_text(mac))
        };
        pairs
            .into_iter()
            .flat_map(|(addresses, mac)| addresses.into_iter().map(move |a| line(a, mac)))
            .collect()
    }

    fn nic(&self, port: String, mac: [u8; 6], segment: u8, v4: Ipv4Addr, v6: Ipv6Addr) -> Nic {
        let (has4, has6) = (self.families.v4(), self.families.v6());
        Nic {
            port,
            segment,
            mac,
            mtu: self.mtu,
            wire: self.wire,
            v4: has4.then(|| self.net4(v4)),
            v6: has6.then(|| net6(v6)),
            gateway4: has4.then(|| gateway4(segment)),
            gateway6: has6.then(|| gateway6(segment)),
        }
    }

    fn wide(&self) -> bool {
        self.nodes > NODES_OF_A_24
    }

    fn net4(&self, address: Ipv4Addr) -> Ipv4Net {
        let length = if self.wide() { 16 } else { 24 };
        Ipv4Net::new_assert(address, length)
    }
}

impl Nic {
    /// Its addresses without their networks.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let v4 = self.v4.map(|net| IpAddr::V4(net.addr()));
        let v6 = self.v6.map(|net| IpAddr::V6(net.addr()));
        v4.into_iter().chain(v6).collect()
    }

    /// The name of the bridge its port belongs to.
    pub(crate) fn bridge(&self) -> String {
        bridge(self.segment)
    }

    /// What `ip -batch` must do inside the namespace to give the device its addresses and routes.
    /// IPv6 addresses skip duplicate detection, so they can be used at once.
    pub(crate) fn configure(&self) -> Vec<String> {
        let mut lines = vec!["link set dev lo up".to_owned(), "link set dev eth0 up".to_owned()];
        lines.extend(self.address_lines());
        lines
    }

    pub(crate) fn address_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(net) = self.v4 {
            lines.push(format!("addr replace {net} dev eth0"));
        }
        if let Some(net) = self.v6 {
            lines.push(format!("addr replace {net} dev eth0 nodad"));
        }
        if let Some(gateway) = self.gateway4 {
            lines.push(format!("route replace default via {gateway} dev eth0"));
        }
        if let Some(gateway) = self.gateway6 {
            lines.push(format!("route replace ::/0 via {gateway} dev eth0"));
        }
        lines
    }
}

/// A hardware address as people write it.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn bridge(segment: u8) -> String {
    format!("br{segment}")
}

fn gateway4(segment: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 100 + segment, 254)
}

fn gateway6(segment: u8) -> Ipv6Addr {
    address6(segment, 0, 0xfe)
}

fn address6(segment: u8, page: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x100 + u16::from(segment), 0, 0, 0, 0, page, host)
}

fn net6(address: Ipv6Addr) -> Ipv6Net {
    Ipv6Net::new_assert(address, 64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plan(nodes: u16, segments: u8) -> Result<Plan> {
        Plan::new(&LabSpec { nodes, segments, ..LabSpec::default() })
    }

    #[test]
    fn node_addresses_follow_the_node_number() {
        let nic = plan(3, 1).unwrap().node(2);
        assert_eq!(nic.v4.unwrap().to_string(), "192.168.100.2/24");
        assert_eq!(nic.v6.unwrap().to_string(), "fd00:100::2/64");
        assert_eq!(nic.gateway4.unwrap().to_string(), "192.168.100.254");
        assert_eq!(nic.gateway6.unwrap().to_string(), "fd00:100::fe");
        assert_eq!(mac_text(nic.mac), "02:fa:00:00:00:02");
    }

    #[test]
    fn the_store_sits_at_253() {
        let nic = plan(3, 1).unwrap().etcd(0);
        assert_eq!(nic.v4.unwrap().to_string(), "192.168.100.253/24");
        assert_eq!(nic.v6.unwrap().to_string(), "fd00:100::fd/64");
    }

    #[test]
    fn segments_are_filled_in_blocks_and_can_be_chosen() {
        let blocks = plan(4, 2).unwrap();
        let of = |plan: &Plan| (1..=4).map(|node| plan.node(node).segment).collect::<Vec<_>>();
        assert_eq!(of(&blocks), [0, 0, 1, 1]);
        assert_eq!(blocks.node(3).v4.unwrap().to_string(), "192.168.101.3/24");
        assert_eq!(blocks.node(3).gateway6.unwrap().to_string(), "fd00:101::fe");

        let spec = LabSpec {
            nodes: 4,
            segments: 2,
            segment_of: [(1, 1), (4, 0)].into(),
            ..LabSpec::default()
        };
        assert_eq!(of(&Plan::new(&spec).unwrap()), [1, 0, 1, 0]);
    }

    #[test]
    fn every_participant_of_the_largest_lab_has_its_own_addresses() {
        for nodes in [1, 250, 251, NODES_OF_A_BRIDGE] {
            let plan = plan(nodes, 1).unwrap();
            let mut addresses = BTreeSet::new();
            let mut macs = BTreeSet::new();
            let nics = (1..=nodes).map(|node| plan.node(node)).chain((0..3).map(|m| plan.etcd(m)));
            for nic in nics {
                assert!(macs.insert(nic.mac));
                assert!(nic.addresses().into_iter().all(|address| addresses.insert(address)));
                assert_eq!(nic.v4.unwrap().trunc(), plan.net4(gateway4(0)).trunc());
            }
            assert!(!addresses.contains(&IpAddr::V4(gateway4(0))));
            assert!(!addresses.contains(&IpAddr::V6(gateway6(0))));
        }
    }

    #[test]
    fn only_large_labs_get_lasting_neighbours() {
        let lines = |nodes: u16, segments: u8| {
            let plan = plan(nodes, segments).unwrap();
            plan.neighbours(&plan.node(1), 1)
        };
        assert!(lines(16, 1).is_empty());
        // 49 nodes, the store and the gateway, in two families.
        assert_eq!(lines(50, 1).len(), 102);
        assert_eq!(lines(50, 2).len(), 52);
        assert!(lines(50, 1).contains(
            &"neigh replace 192.168.100.2 lladdr 02:fa:00:00:00:02 dev eth0 nud permanent".into()
        ));
        assert!(lines(251, 1).is_empty());
    }

    #[test]
    fn labs_that_cannot_exist_are_refused() {
        for (nodes, segments) in [(0, 1), (1001, 1), (3, 0), (251, 2)] {
            assert!(plan(nodes, segments).is_err(), "{nodes} nodes in {segments} segments");
        }
    }
}
