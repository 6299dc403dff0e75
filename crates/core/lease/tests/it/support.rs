//! Short ways to say the values the tests are about, and generators of arbitrary ones.

use std::num::{NonZeroU16, NonZeroU64};

use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, RawJson, Subnet};
use ipnet::{Ipv4Net, Ipv6Net};
use proptest::prelude::*;

pub(crate) fn subnet(key: &str) -> Subnet {
    key.parse().unwrap()
}

pub(crate) fn config(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json).unwrap()
}

/// A lease whose host is known by an IPv4 or IPv6 address.
pub(crate) fn lease(key: &str, public_ip: &str) -> Lease {
    Lease {
        subnet: subnet(key),
        attrs: LeaseAttrs {
            public_ip: public_ip.parse().ok(),
            public_ipv6: public_ip.parse().ok(),
            ..Default::default()
        },
    }
}

/// Few cases in debug builds: the whole suite is to take seconds.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

pub(crate) fn any_v4(lengths: std::ops::RangeInclusive<u8>) -> impl Strategy<Value = Ipv4Net> {
    (any::<u32>(), lengths).prop_map(|(bits, len)| Ipv4Net::new(bits.into(), len).unwrap().trunc())
}

pub(crate) fn any_v6(lengths: std::ops::RangeInclusive<u8>) -> impl Strategy<Value = Ipv6Net> {
    // Long runs of zeros, low values and IPv4 in disguise are where texts differ.
    let bits = prop_oneof![
        any::<u128>(),
        any::<u32>().prop_map(u128::from),
        any::<u32>().prop_map(|low| 0xffff_0000_0000 | u128::from(low)),
        (any::<u128>(), any::<u128>()).prop_map(|(a, b)| a & b & (a >> 3) & (b << 5)),
        any::<u16>().prop_map(|group| u128::from(group) << 64),
    ];
    (bits, lengths).prop_map(|(bits, len)| Ipv6Net::new(bits.into(), len).unwrap().trunc())
}

pub(crate) fn any_subnet() -> impl Strategy<Value = Subnet> {
    prop_oneof![
        any_v4(0..=31).prop_map(Subnet::V4),
        any_v6(0..=127).prop_map(Subnet::V6),
        (any_v4(1..=31), any_v6(0..=127)).prop_map(|(v4, v6)| Subnet::Dual(v4, v6)),
    ]
}

pub(crate) fn any_attrs() -> impl Strategy<Value = LeaseAttrs> {
    let v4 =
        any::<Option<std::net::Ipv4Addr>>().prop_map(|ip| ip.filter(|ip| !ip.is_unspecified()));
    let v6 = any::<Option<std::net::Ipv6Addr>>()
        .prop_map(|ip| ip.filter(|ip| !ip.is_unspecified() && ip.to_ipv4_mapped().is_none()));
    let data =
        || prop::option::of(any::<(u32, String)>().prop_map(|d| RawJson::encode(&d).unwrap()));
    // No backend has a longer name than 64 bytes.
    let kind = "\\PC{0,16}";
    (v4, v6, kind, data(), data(), any::<u16>(), any::<u64>()).prop_map(
        |(public_ip, public_ipv6, backend_type, backend_data, backend_v6_data, port, machine)| {
            LeaseAttrs {
                public_ip,
                public_ipv6,
                backend_type: backend_type.into(),
                backend_data,
                backend_v6_data,
                owner: None,
                probe_port: NonZeroU16::new(port),
                machine: NonZeroU64::new(machine),
            }
        },
    )
}
