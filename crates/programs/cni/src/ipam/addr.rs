//! Arithmetic on addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::protocol::{FieldError, Fields};

/// One further. It wraps around at the end, where no range reaches.
pub(crate) fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
    }
}

/// What `.1` is in a /24: where a gateway is unless it is told.
pub(crate) fn first_of(network: IpNet) -> IpAddr {
    next(network.network())
}

pub(crate) fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// The way Go reads an address: an IPv4 one in IPv6's clothes is an IPv4 one.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// A field that holds an address; an empty one holds none.
pub(crate) fn read(fields: Fields<'_>, key: &str) -> Result<Option<IpAddr>, FieldError> {
    let Some(text) = fields.text(key)? else { return Ok(None) };
    parse(text).map(Some).ok_or_else(|| FieldError::new(key, "an IP address", &text.into()))
}

/// An address, with or without a prefix length that is not looked at.
pub(crate) fn parse_lenient(text: &str) -> Option<IpAddr> {
    match text.split_once('/') {
        None => parse(text),
        Some(_) => text.parse::<IpNet>().ok().map(|net| net.addr().to_canonical()),
    }
}
