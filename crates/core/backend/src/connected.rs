//! Networks that this node is directly connected to: its pods' bridge, its LAN, any other with an address inside the
//! pod network. A peer's subnet that overlaps one of them would cut this node off from it, or is cut off itself.

use std::fmt;
use std::net::IpAddr;

use flannel_common::{IfName, overlap};
use flannel_entries::facts::Facts;
use flannel_lease::{Lease, Subnet};
use ipnet::IpNet;

/// A network on a device that is not flannel's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connected {
    pub link: IfName,
    /// Address of this node, with its host bits.
    pub addr: IpNet,
    /// Gateways of default routes that are inside this network.
    pub gateways: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlapKind {
    /// Addresses that this node needs would be sent to the peer.
    Displaces,
    /// A part of the network is the peer's, but nothing that is known to be needed.
    Inside,
    /// The network is a part of the peer's subnet, and is not reached at the peer.
    Around,
}

impl Connected {
    /// Networks that overlap any of `networks`; `ours` are flannel's own devices.
    pub fn of(facts: &Facts, networks: &[IpNet], ours: &[IfName]) -> Vec<Self> {
        let interfaces = facts.interfaces.iter();
        let strange = interfaces.filter(|i| i.up && !i.loopback && !ours.contains(&i.name));
        let mut all: Vec<Self> = strange
            .flat_map(|i| i.addresses.iter().map(move |address| (i.name, address.addr)))
            // A single address is not a network: no route leads to it.
            .filter(|(_, addr)| addr.prefix_len() < addr.max_prefix_len())
            .filter(|(_, addr)| networks.iter().any(|network| overlap(network, addr)))
            .map(|(link, addr)| {
                let gateways = facts.default_routes.iter().filter(|route| route.link == link);
                let gateways = gateways.filter_map(|route| route.gateway);
                Self { link, addr, gateways: gateways.filter(|ip| addr.contains(ip)).collect() }
            })
            .collect();
        all.sort();
        all.dedup();
        all
    }

    pub fn net(&self) -> IpNet {
        self.addr.trunc()
    }

    pub fn overlaps(&self, subnet: &Subnet) -> bool {
        subnet.nets().any(|part| overlap(&self.net(), &part))
    }

    pub(crate) fn overlap_with(&self, peer: &Lease) -> Option<(IpNet, OverlapKind)> {
        let net = self.net();
        let theirs = peer.subnet.nets().find(|part| overlap(&net, part))?;
        let needed = [self.addr.addr()].into_iter().chain(self.gateways.iter().copied());
        let mut needed = needed.chain(peer.attrs.public_addresses());
        let overlap = if net == theirs {
            OverlapKind::Displaces
        } else if theirs.contains(&net) {
            OverlapKind::Around
        } else if needed.any(|ip| theirs.contains(&ip)) {
            OverlapKind::Displaces
        } else {
            OverlapKind::Inside
        };
        Some((theirs, overlap))
    }
}

/// Writes the network as `ip route` does.
impl fmt::Display for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.net(), self.link)
    }
}

#[cfg(test)]
mod tests {
    use flannel_lease::LeaseAttrs;

    use super::*;

    fn overlap_with(
        addr: &str,
        gateways: &[&str],
        subnet: &str,
        public_ip: [u8; 4],
    ) -> Option<OverlapKind> {
        let connected = Connected {
            link: IfName::new("cni0").expect("a name"),
            addr: addr.parse().expect("an address"),
            gateways: gateways.iter().map(|ip| ip.parse().expect("an address")).collect(),
        };
        let attrs = LeaseAttrs { public_ip: Some(public_ip.into()), ..LeaseAttrs::default() };
        let lease = Lease { subnet: subnet.parse().expect("a subnet"), attrs };
        connected.overlap_with(&lease).map(|(_, overlap)| overlap)
    }

    #[test]
    fn every_way_in_which_a_subnet_meets_a_connected_network() {
        let far = [192, 0, 2, 7];
        for (addr, gateways, subnet, public_ip, expected) in [
            ("10.244.5.1/24", &[][..], "10.244.6.0-24", far, None),
            ("10.244.5.1/24", &[], "10.244.5.0-24", far, Some(OverlapKind::Displaces)),
            ("10.244.5.1/16", &[], "10.244.5.0-24", far, Some(OverlapKind::Displaces)),
            ("10.244.5.1/16", &[], "10.244.6.0-24", far, Some(OverlapKind::Inside)),
            ("10.244.5.1/16", &["10.244.6.1"], "10.244.6.0-24", far, Some(OverlapKind::Displaces)),
            ("10.244.5.1/16", &[], "10.244.6.0-24", [10, 244, 6, 9], Some(OverlapKind::Displaces)),
            ("10.244.5.1/26", &[], "10.244.5.0-24", far, Some(OverlapKind::Around)),
            ("fd00:5::1/64", &[], "10.244.5.0-24", far, None),
            ("fd00:5::1/64", &[], "10.244.5.0-24&fd00:5::-64", far, Some(OverlapKind::Displaces)),
        ] {
            let found = overlap_with(addr, gateways, subnet, public_ip);
            assert_eq!(found, expected, "{addr} {gateways:?} {subnet}");
        }
    }
}
