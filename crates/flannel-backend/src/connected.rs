//! The networks that this node is directly connected to: its pods' bridge, its LAN, whatever else has an
//! address inside the pod network. A peer's subnet that meets one of them would cut this node off from
//! what is there, or is cut off itself.

use std::fmt;
use std::net::IpAddr;

use flannel_common::overlap;
use flannel_kernel::{Facts, IfName};
use flannel_lease::{Lease, Subnet};
use ipnet::IpNet;

/// A network on a device that is not flannel's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connected {
    pub link: IfName,
    /// With the host bits of this node's address.
    pub addr: IpNet,
    /// The gateways of default routes that are in there.
    pub gateways: Vec<IpAddr>,
}

/// How a peer's subnet meets a connected network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// What this node needs of it would be sent to the peer.
    Displaces,
    /// A part of it is the peer's, and nothing that is known to be needed.
    Inside,
    /// A part of the peer's subnet is on this device, and not to be reached at the peer.
    Around,
}

impl Connected {
    /// Those that lie in, or around, any of `networks`; `ours` are flannel's own devices.
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
        parts(subnet).any(|part| overlap(&self.net(), &part))
    }

    /// How a peer meets this network, if it does.
    pub(crate) fn meets(&self, peer: &Lease) -> Option<(IpNet, Meeting)> {
        let net = self.net();
        let theirs = parts(&peer.subnet).find(|part| overlap(&net, part))?;
        let needed = [self.addr.addr()].into_iter().chain(self.gateways.iter().copied());
        let mut needed = needed.chain(crate::public_addresses(&peer.attrs));
        let meeting = if net == theirs {
            Meeting::Displaces
        } else if theirs.contains(&net) {
            Meeting::Around
        } else if needed.any(|ip| theirs.contains(&ip)) {
            Meeting::Displaces
        } else {
            Meeting::Inside
        };
        Some((theirs, meeting))
    }
}

/// As `ip route` shows it.
impl fmt::Display for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.net(), self.link)
    }
}

fn parts(subnet: &Subnet) -> impl Iterator<Item = IpNet> {
    let v4 = subnet.v4().map(IpNet::V4);
    v4.into_iter().chain(subnet.v6().map(IpNet::V6))
}

#[cfg(test)]
mod tests {
    use flannel_lease::LeaseAttrs;

    use super::*;

    fn meets(addr: &str, gateways: &[&str], subnet: &str, public_ip: [u8; 4]) -> Option<Meeting> {
        let connected = Connected {
            link: IfName::new("cni0").expect("a name"),
            addr: addr.parse().expect("an address"),
            gateways: gateways.iter().map(|ip| ip.parse().expect("an address")).collect(),
        };
        let attrs = LeaseAttrs { public_ip: Some(public_ip.into()), ..LeaseAttrs::default() };
        let lease = Lease { subnet: subnet.parse().expect("a subnet"), attrs };
        connected.meets(&lease).map(|(_, meeting)| meeting)
    }

    #[test]
    fn every_way_in_which_a_subnet_meets_a_connected_network() {
        let far = [192, 0, 2, 7];
        for (addr, gateways, subnet, public_ip, expected) in [
            ("10.244.5.1/24", &[][..], "10.244.6.0-24", far, None),
            ("10.244.5.1/24", &[], "10.244.5.0-24", far, Some(Meeting::Displaces)),
            ("10.244.5.1/16", &[], "10.244.5.0-24", far, Some(Meeting::Displaces)),
            ("10.244.5.1/16", &[], "10.244.6.0-24", far, Some(Meeting::Inside)),
            ("10.244.5.1/16", &["10.244.6.1"], "10.244.6.0-24", far, Some(Meeting::Displaces)),
            ("10.244.5.1/16", &[], "10.244.6.0-24", [10, 244, 6, 9], Some(Meeting::Displaces)),
            ("10.244.5.1/26", &[], "10.244.5.0-24", far, Some(Meeting::Around)),
            ("fd00:5::1/64", &[], "10.244.5.0-24", far, None),
            ("fd00:5::1/64", &[], "10.244.5.0-24&fd00:5::-64", far, Some(Meeting::Displaces)),
        ] {
            let found = meets(addr, gateways, subnet, public_ip);
            assert_eq!(found, expected, "{addr} {gateways:?} {subnet}");
        }
    }
}
