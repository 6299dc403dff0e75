//! Why no interface could be chosen, and what to do about it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use flannel_common::{Family, IfName};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    #[error("the network enables neither IPv4 nor IPv6: enable one in its configuration")]
    NoFamily,
    #[error("no interface is named '{name}': name one of {}", join(known))]
    NoSuchInterface { name: String, known: Vec<IfName> },
    #[error(
        "{flag} {address} is not an address of any interface; there are {known}: use one of these, \
         or name the interface with -iface"
    )]
    NoSuchAddress { address: IpAddr, flag: &'static str, known: String },
    #[error(
        "{flag} {address} is {family}, which the network does not use: use an address of its family"
    )]
    WrongFamily { address: IpAddr, flag: &'static str, family: Family },
    #[error(
        "public-ipv6 {address} is an address of {owner}, but {chosen} was chosen: both families \
         must use one interface"
    )]
    PublicElsewhere { address: Ipv6Addr, owner: IfName, chosen: IfName },
    #[error("'{pattern}' is not a regular expression: {problem}")]
    InvalidRegex { pattern: String, problem: String },
    #[error("the iface-regex '{pattern}' matches neither an address nor a name of {known}")]
    NoMatch { pattern: String, known: String },
    #[error("the kernel has no route to the iface-can-reach address {address}")]
    Unreachable { address: IpAddr },
    #[error(
        "the kernel sends to {address} through {link}, which is a device for pods: use an \
         iface-can-reach address outside the flannel network"
    )]
    OwnDevice { address: IpAddr, link: IfName },
    #[error("{link} has just disappeared")]
    Vanished { link: IfName },
    #[error("there is no {family} default route: add one, or name the interface with -iface")]
    NoDefaultRoute { family: Family },
    #[error(
        "no interface has a default route of both families: IPv4 leads through {v4}, IPv6 through \
         {v6}; name the interface with -iface"
    )]
    DefaultRoutesDiffer { v4: IfName, v6: IfName },
    #[error(
        "{link} has no usable {family} address: give it one, or name another interface with -iface"
    )]
    NoUsableAddress { link: IfName, family: Family },
    #[error("{link} has no MTU: name another interface with -iface")]
    NoMtu { link: IfName },
    #[error("none of the interfaces asked for can be used: {}", join(.0))]
    AllFailed(Vec<SelectError>),
}

fn join(parts: &[impl fmt::Display]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
