//! The addresses of an interface that packets can be sent from, best first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_entries::facts::{Interface, InterfaceAddress};

pub(super) fn usable_v4(interface: &Interface) -> impl Iterator<Item = Ipv4Addr> {
    usable(interface).filter_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

pub(super) fn usable_v6(interface: &Interface) -> impl Iterator<Item = Ipv6Addr> {
    usable(interface).filter_map(|address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    })
}

/// Usable addresses: global before link-local, permanent before temporary, otherwise in the kernel's order.
pub(super) fn usable(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    let mut addresses: Vec<&InterfaceAddress> =
        interface.addresses.iter().filter(|a| !a.deprecated && is_unicast(a.addr.addr())).collect();
    addresses.sort_by_key(|a| (is_link_local(a.addr.addr()), !a.permanent, a.temporary));
    addresses.into_iter().map(|a| a.addr.addr())
}

pub(super) fn carries(interface: &Interface, address: IpAddr) -> bool {
    interface.addresses.iter().any(|a| a.addr.addr() == address)
}

fn is_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast)
}

pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_packets_can_come_from_are_usable() {
        for (address, usable) in [
            ("10.0.0.1", true),
            ("100.64.0.1", true),
            ("169.254.0.1", true),
            ("127.0.0.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("0.0.0.0", false),
            ("fd00::1", true),
            ("fe80::1", true),
            ("::1", false),
            ("::", false),
            ("ff02::1", false),
        ] {
            let parsed = address.parse().expect("an address");
            assert_eq!(is_unicast(parsed), usable, "{address}");
        }
    }
}
