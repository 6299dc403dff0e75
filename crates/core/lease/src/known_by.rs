//! Address that identifies a node. A lease has no name that every flannel understands: two leases
//! are of one node when they bear one public address, and, where several nodes share one, the same port of it.

use std::net::IpAddr;

use flannel_common::Family;

use crate::{LeaseAttrs, NetworkConfig, RawJson};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// Its IPv4 address, if it has one, else that of IPv6.
    Ipv4First,
    Ipv6First,
}

/// The address that would identify a node is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is missing, and nodes of this network are identified by it: add it")]
pub struct NoAddress(pub &'static str);

impl KnownBy {
    /// By the public address of the first family in use, and of the other one where a node has none of that.
    pub fn of(config: Option<&NetworkConfig>) -> Self {
        match config.map(|config| config.v4.is_some()) {
            Some(true) | None => Self::Ipv4First,
            Some(false) => Self::Ipv6First,
        }
    }

    /// Families in the order in which they identify a node, and the name of the first one's address.
    fn families(self) -> ([Family; 2], &'static str) {
        match self {
            Self::Ipv4First => ([Family::V4, Family::V6], "PublicIP"),
            Self::Ipv6First => ([Family::V6, Family::V4], "PublicIPv6"),
        }
    }

    /// Address that identifies the node; 0.0.0.0 is none.
    pub fn address(self, attrs: &LeaseAttrs) -> Result<IpAddr, NoAddress> {
        let (families, name) = self.families();
        families.into_iter().find_map(|family| given(attrs, family)).ok_or(NoAddress(name))
    }

    pub fn same_node(self, one: &LeaseAttrs, other: &LeaseAttrs) -> bool {
        self.same_address(one, other) && public_port(one) == public_port(other)
    }

    /// By the first family that both announce: a network that gains a family, or loses one, has leases of before.
    pub(crate) fn same_address(self, one: &LeaseAttrs, other: &LeaseAttrs) -> bool {
        let both = |family| given(one, family).zip(given(other, family));
        self.families().0.into_iter().find_map(both).is_some_and(|(one, other)| one == other)
    }
}

fn given(attrs: &LeaseAttrs, family: Family) -> Option<IpAddr> {
    attrs.public_address(family).filter(|ip| !ip.is_unspecified())
}

/// The port of its public address that is this node's, where others have other ports of it.
pub(crate) fn public_port(attrs: &LeaseAttrs) -> Option<u16> {
    #[derive(serde::Deserialize)]
    struct Data {
        #[serde(rename = "PublicPort", default)]
        public_port: Option<u16>,
    }
    let port = |data: &RawJson| data.parse::<Data>().ok()?.public_port;
    let datas = attrs.backend_data.iter().chain(&attrs.backend_v6_data);
    datas.filter_map(port).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_behind_one_address_are_told_apart_by_the_ports_that_they_have_of_it() {
        let node = |address: &str, data: &str| LeaseAttrs {
            public_ip: address.parse().ok(),
            backend_data: RawJson::read(data).expect("JSON"),
            ..LeaseAttrs::default()
        };
        let plain = node("192.0.2.1", r#"{"PublicKey":"a","Port":51820}"#);
        let one = node("192.0.2.1", r#"{"PublicKey":"a","Port":1001,"PublicPort":1001}"#);
        let two = node("192.0.2.1", r#"{"PublicKey":"b","Port":1002,"PublicPort":1002}"#);
        let other_port = node("192.0.2.1", r#"{"PublicKey":"c","Port":51900}"#);
        let same = |one, other| KnownBy::Ipv4First.same_node(one, other);
        assert!(same(&plain, &plain) && same(&one, &one) && !same(&one, &two));
        assert!(!same(&plain, &one), "one has said that it shares its address");
        assert!(same(&plain, &other_port), "what all nodes listen on may change");
        assert!(!same(&one, &node("192.0.2.9", r#"{"PublicPort":1001}"#)));
    }

    #[test]
    fn a_node_without_an_address_of_the_first_family_is_known_by_its_other_one() {
        let node = |v4: &str, v6: &str| LeaseAttrs {
            public_ip: v4.parse().ok(),
            public_ipv6: v6.parse().ok(),
            ..LeaseAttrs::default()
        };
        for known_by in [KnownBy::Ipv4First, KnownBy::Ipv6First] {
            let same = |one: &LeaseAttrs, other: &LeaseAttrs| known_by.same_node(one, other);
            assert!(same(&node("", "fd00::1"), &node("0.0.0.0", "fd00::1")), "{known_by:?}");
            assert!(same(&node("192.0.2.1", ""), &node("192.0.2.1", "::")), "{known_by:?}");
            assert!(!same(&node("192.0.2.1", ""), &node("", "fd00::1")), "{known_by:?}");
            assert!(!same(&node("", ""), &node("", "")), "nobody is nobody");
        }
        let (dual, before) = (node("192.0.2.1", "fd00::1"), node("", "fd00::1"));
        assert!(KnownBy::Ipv4First.same_node(&dual, &before), "its network had IPv6 alone before");
        assert!(!KnownBy::Ipv4First.same_node(&dual, &node("", "fd00::2")));
        let (one, other) = (node("192.0.2.1", "fd00::1"), node("192.0.2.1", "fd00::2"));
        assert!(KnownBy::Ipv4First.same_node(&one, &other));
        assert!(!KnownBy::Ipv6First.same_node(&one, &other));
    }
}
