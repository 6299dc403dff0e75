//! The bridge of this node's pods against its lease. A bridge with an address of a former subnet keeps every pod from
//! others: those on it have addresses that nobody sends here, and new ones do not start.

use flannel_common::IfName;
use flannel_entries::devices::is_flannel_name;
use flannel_entries::facts::{Facts, Interface};
use flannel_lease::Subnet;
use flannel_state::{Finding, Layer};
use ipnet::IpNet;

use super::Daemon;

/// What container runtimes call it, unless they are told otherwise.
const USUAL_NAMES: [&str; 2] = ["cni0", "docker0"];

/// A bridge of pods that has no address of this node's subnet, but one of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StaleBridge {
    device: IfName,
    address: IpNet,
    subnet: IpNet,
}

impl StaleBridge {
    /// `pod_networks`: where pods of this node may have addresses from. `underlay` is no bridge of pods, whatever it has.
    fn find(facts: &Facts, own: &Subnet, pod_networks: &[IpNet], underlay: IfName) -> Option<Self> {
        let may_be = |it: &&Interface| {
            it.up && !it.loopback && it.name != underlay && !is_flannel_name(it.name.as_str())
        };
        facts.interfaces.iter().filter(may_be).find_map(|interface| {
            own.nets().find_map(|subnet| {
                let address = stale_address(interface, subnet, pod_networks)?;
                Some(Self { device: interface.name, address, subnet })
            })
        })
    }

    pub(super) fn finding(&self) -> Finding {
        let Self { device, address, subnet } = self;
        Finding::broken(
            Layer::Host,
            format!("the pods' bridge {device}"),
            format!(
                "it has {address}, and this node's subnet is {subnet}: pods on it have addresses of a former subnet, \
                 which no other node sends here, and new ones do not start"
            ),
            format!(
                "drain the node of its pods, then `ip link del {device}`: it is made again, with the right address, for \
                 the next pod"
            ),
        )
    }
}

/// The address of a bridge of pods, if it has none of this subnet.
fn stale_address(interface: &Interface, subnet: IpNet, pod_networks: &[IpNet]) -> Option<IpNet> {
    let is_of_family = |net: &IpNet| net.addr().is_ipv4() == subnet.addr().is_ipv4();
    let addresses: Vec<IpNet> =
        interface.addresses.iter().map(|it| it.addr).filter(is_of_family).collect();
    if addresses.iter().any(|net| subnet.contains(&net.addr())) {
        return None;
    }
    let is_usual = USUAL_NAMES.contains(&interface.name.as_str());
    addresses.into_iter().find(|net| {
        // As the bridge plugin gives it: the first address of a subnet of the length that nodes have here.
        let is_gateway =
            net.prefix_len() == subnet.prefix_len() && net.hosts().next() == Some(net.addr());
        let is_of_pods = pod_networks.iter().any(|network| network.contains(&net.addr()));
        is_of_pods && (is_usual || is_gateway)
    })
}

impl Daemon {
    pub(super) fn stale_bridge(&self) -> Option<StaleBridge> {
        let mut networks = self.network.networks();
        networks.extend(&self.earlier.networks);
        let underlay = self.network.underlay().link;
        StaleBridge::find(&self.host.facts, &self.own.subnet(), &networks, underlay)
    }
}

#[cfg(test)]
mod tests {
    use flannel_entries::facts::InterfaceAddress;

    use super::*;

    fn found(name: &str, addresses: &[&str]) -> Option<String> {
        let address = |text: &&str| InterfaceAddress {
            addr: text.parse().unwrap(),
            permanent: true,
            temporary: false,
            deprecated: false,
            duplicate: false,
        };
        let interface = Interface {
            index: 5,
            name: IfName::new(name).unwrap(),
            mac: None,
            mtu: 1450,
            up: true,
            loopback: name == "lo",
            master: None,
            addresses: addresses.iter().map(address).collect(),
        };
        let facts = Facts { interfaces: vec![interface], ..Facts::default() };
        let own: Subnet = "10.244.1.0-24&fd00:244:0:1::-64".parse().unwrap();
        let networks = ["10.244.0.0/16", "fd00:244::/48", "10.9.0.0/16"];
        let networks = networks.map(|net| net.parse().unwrap());
        let underlay = IfName::new("eth0").unwrap();
        StaleBridge::find(&facts, &own, &networks, underlay).map(|it| it.address.to_string())
    }

    #[test]
    fn a_bridge_without_an_address_of_the_lease_is_stale_and_no_other_device_is() {
        let stale = |address: &str| Some(address.to_owned());
        // The lease is another one now, in this network or after it was changed.
        assert_eq!(found("cni0", &["10.244.7.1/24"]), stale("10.244.7.1/24"));
        assert_eq!(found("cni0", &["10.9.7.1/24"]), stale("10.9.7.1/24"));
        assert_eq!(found("br-pods", &["10.244.7.1/24"]), stale("10.244.7.1/24"));
        let v6 = ["10.244.1.1/24", "fd00:244:0:7::1/64", "fe80::1/64"];
        assert_eq!(found("cni0", &v6), stale("fd00:244:0:7::1/64"));
        for (name, addresses) in [
            ("cni0", &["10.244.1.1/24"][..]),
            ("cni0", &["10.244.7.1/24", "10.244.1.1/24"]),
            ("cni0", &[]),
            ("cni0", &["fe80::1/64"]),
            // Docker's own network, a VIP in the pods' network, the card, flannel's own device, the loopback.
            ("docker0", &["172.17.0.1/16"]),
            ("vip0", &["10.244.7.1/32"]),
            ("eth0", &["10.244.7.1/24"]),
            ("flannel.1", &["10.244.7.0/32"]),
            ("flannel0", &["10.244.7.1/24"]),
            ("lo", &["10.244.7.1/24"]),
        ] {
            assert_eq!(found(name, addresses), None, "{name} {addresses:?}");
        }
    }
}
