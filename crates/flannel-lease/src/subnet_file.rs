//! The subnet file (`/run/flannel/subnet.env`): what container runtimes read about this node's subnet,
//! and how the daemon remembers, when it starts again, what it had. Text only; the daemon does the file.

use ipnet::{Ipv4Net, Ipv6Net};

use crate::net::Net;
use crate::{Subnet, dotenv};

const NETWORK: &str = "FLANNEL_NETWORK";
const SUBNET: &str = "FLANNEL_SUBNET";
const IPV6_NETWORK: &str = "FLANNEL_IPV6_NETWORK";
const IPV6_SUBNET: &str = "FLANNEL_IPV6_SUBNET";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetFile {
    pub network: Option<Ipv4Net>,
    /// As in the lease; the file shows its first usable address.
    pub subnet: Option<Ipv4Net>,
    pub ipv6_network: Option<Ipv6Net>,
    pub ipv6_subnet: Option<Ipv6Net>,
    pub mtu: u32,
    pub ip_masq: bool,
}

/// What a former run left in the subnet file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    pub network: Option<Ipv4Net>,
    pub ipv6_network: Option<Ipv6Net>,
    pub subnet: Option<Subnet>,
}

impl SubnetFile {
    /// The whole file, byte for byte as the Go flannel writes it.
    pub fn render(&self) -> String {
        let lines = [
            self.network.map(|net| format!("{NETWORK}={net}\n")),
            self.subnet.map(|net| format!("{SUBNET}={}\n", gateway(net))),
            self.ipv6_network.map(|net| format!("{IPV6_NETWORK}={net}\n")),
            self.ipv6_subnet.map(|net| format!("{IPV6_SUBNET}={}\n", gateway(net))),
            Some(format!("FLANNEL_MTU={}\n", self.mtu)),
            Some(format!("FLANNEL_IPMASQ={}\n", self.ip_masq)),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// Reads what is of use from a subnet file; anything odd is left out and said in a warning, since a
/// daemon has to start with whatever it finds.
pub fn parse_previous(text: &str) -> (Previous, Vec<String>) {
    let (values, mut warnings) = dotenv::parse(text);
    let value = |key| (key, values.get(key).map_or("", String::as_str));
    let network = only_network(value(NETWORK), &mut warnings);
    let ipv6_network = only_network(value(IPV6_NETWORK), &mut warnings);
    let v4 = only_subnet(value(SUBNET), &mut warnings);
    let v6 = only_subnet(value(IPV6_SUBNET), &mut warnings);
    (Previous { network, ipv6_network, subnet: Subnet::new(v4, v6) }, warnings)
}

/// The first address after the network's own, with its length.
fn gateway<N: Net>(net: N) -> String {
    format!("{}/{}", N::address(net.start().wrapping_add(1)), net.prefix_len())
}

/// A single address is nobody's subnet, and no lease could have that name.
fn only_subnet<N: Net>((key, value): (&str, &str), warnings: &mut Vec<String>) -> Option<N> {
    let net: N = only_network((key, value), warnings)?;
    if net.prefix_len() == N::BITS {
        warnings.push(format!("{key}: {value:?} is a single address, ignored"));
        return None;
    }
    Some(net)
}

/// A value may list several networks, of which only a single one can be told to be the former one.
fn only_network<N: Net>((key, value): (&str, &str), warnings: &mut Vec<String>) -> Option<N> {
    let mut nets = Vec::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match N::parse_cidr(part) {
            Some(net) if net.prefix_len() > 0 => nets.push(net),
            Some(_) => {}
            None => {
                warnings.push(format!("{key}: {part:?} is not a network of its family, ignored"))
            }
        }
    }
    match nets[..] {
        [net] => Some(net),
        [] => None,
        _ => {
            warnings.push(format!("{key}: {value:?} lists more than one network, ignored"));
            None
        }
    }
}
