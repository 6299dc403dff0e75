//! The one check of a node's public address: of what a node is to announce, and of what peers have announced.

use std::net::IpAddr;

use ipnet::IpNet;

/// Reason why nothing can be sent to a node at an address; completes "192.0.2.1, which …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableAddress {
    #[error("is no address at all")]
    Unspecified,
    #[error("leads every node to itself")]
    Loopback,
    #[error("is of many hosts, not of one")]
    ManyHosts,
    #[error("is reserved")]
    Reserved,
    #[error("counts on one link alone")]
    LinkLocal,
    #[error(
        "lies in the pod network {0}, so that packets to the node would be sent through its own tunnel"
    )]
    InPodNetwork(IpNet),
}

pub fn check_public_address(ip: IpAddr, networks: &[IpNet]) -> Result<(), UnusableAddress> {
    let (is_many, is_reserved, is_link_local) = match ip {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            (v4.is_broadcast() || v4.is_multicast(), first == 0 || first >= 240, v4.is_link_local())
        }
        IpAddr::V6(v6) => {
            (v6.is_multicast(), v6.to_ipv4_mapped().is_some(), v6.is_unicast_link_local())
        }
    };
    match networks.iter().find(|network| network.contains(&ip)) {
        _ if ip.is_unspecified() => Err(UnusableAddress::Unspecified),
        _ if ip.is_loopback() => Err(UnusableAddress::Loopback),
        _ if is_many => Err(UnusableAddress::ManyHosts),
        _ if is_reserved => Err(UnusableAddress::Reserved),
        Some(network) => Err(UnusableAddress::InPodNetwork(*network)),
        None if is_link_local => Err(UnusableAddress::LinkLocal),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_at_which_nobody_can_be_sent_to_are_told_from_those_at_which_one_can() {
        let pods: [IpNet; 2] =
            ["10.244.0.0/16", "fd00:244::/48"].map(|net| net.parse().expect("a network"));
        let check = |ip: &str| check_public_address(ip.parse().expect("an address"), &pods);
        for (ip, expected) in [
            ("0.0.0.0", UnusableAddress::Unspecified),
            ("::", UnusableAddress::Unspecified),
            ("127.0.0.1", UnusableAddress::Loopback),
            ("::1", UnusableAddress::Loopback),
            ("255.255.255.255", UnusableAddress::ManyHosts),
            ("224.0.0.1", UnusableAddress::ManyHosts),
            ("ff02::1", UnusableAddress::ManyHosts),
            ("0.1.2.3", UnusableAddress::Reserved),
            ("250.1.2.3", UnusableAddress::Reserved),
            ("::ffff:192.0.2.1", UnusableAddress::Reserved),
            ("169.254.169.254", UnusableAddress::LinkLocal),
            ("fe80::1", UnusableAddress::LinkLocal),
            ("10.244.255.255", UnusableAddress::InPodNetwork(pods[0])),
            ("fd00:244::1", UnusableAddress::InPodNetwork(pods[1])),
        ] {
            assert_eq!(check(ip), Err(expected), "{ip}");
        }
        for ip in ["192.0.2.1", "10.243.0.1", "100.64.0.1", "2001:db8::1", "fd00:100::1"] {
            assert_eq!(check(ip), Ok(()), "{ip}");
        }
    }
}
