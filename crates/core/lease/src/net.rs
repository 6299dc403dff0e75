//! Common trait of IPv4 and IPv6 networks, each a start and a prefix length, so that pools are written once.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// An IPv4 or IPv6 network. Implemented by `Ipv4Net` and `Ipv6Net`, and by nothing else.
pub trait Net: Copy + Debug + Display + Eq + Hash + Ord {
    const BITS: u8;

    /// The network address as an integer, host bits cleared.
    fn start(&self) -> u128;

    fn prefix_len(&self) -> u8;

    /// The network of `len` bits around the address `bits`; host bits are dropped.
    fn around(bits: u128, len: u8) -> Self;

    fn address(bits: u128) -> IpAddr;

    /// Addresses of this family that stand for those of another.
    fn disguised() -> Option<Self>;

    /// Addresses that cannot be a pod's: the first one and the length, and what they are.
    const RESERVED: &[(u128, u8, &str)];

    /// An address of this family as an integer. IPv4 written as IPv6 (`::ffff:10.0.0.1`) is of neither.
    fn parse_address(text: &str) -> Option<u128>;

    /// `<address>/<length>` without host bits; unlike `FromStr`, refuses `010.0.0.0/8`, which is octal elsewhere.
    fn parse_cidr(text: &str) -> Option<Self> {
        let (address, len) = text.split_once('/')?;
        let len: u8 = len.parse().ok().filter(|_| len.bytes().all(|b| b.is_ascii_digit()))?;
        let address = Self::parse_address(address)?;
        (len <= Self::BITS).then(|| Self::around(address, len))
    }

    fn end(&self) -> u128 {
        self.start() | host_mask::<Self>(self.prefix_len())
    }
}

pub(crate) fn host_mask<N: Net>(len: u8) -> u128 {
    match N::BITS.saturating_sub(len) {
        128.. => u128::MAX,
        host_bits => (1 << host_bits) - 1,
    }
}

impl Net for Ipv4Net {
    const BITS: u8 = 32;
    const RESERVED: &[(u128, u8, &str)] =
        &[(0x7f00_0000, 8, "loopback addresses"), (0xe000_0000, 4, "multicast addresses")];

    fn start(&self) -> u128 {
        u128::from(self.network().to_bits())
    }

    fn prefix_len(&self) -> u8 {
        Ipv4Net::prefix_len(self)
    }

    fn around(bits: u128, len: u8) -> Self {
        Self::new_assert(Ipv4Addr::from_bits(bits as u32), len.min(Self::BITS)).trunc()
    }

    fn address(bits: u128) -> IpAddr {
        Ipv4Addr::from_bits(bits as u32).into()
    }

    fn disguised() -> Option<Self> {
        None
    }

    fn parse_address(text: &str) -> Option<u128> {
        text.parse::<Ipv4Addr>().ok().map(|ip| u128::from(ip.to_bits()))
    }
}

impl Net for Ipv6Net {
    const BITS: u8 = 128;
    const RESERVED: &[(u128, u8, &str)] = &[
        (1, 128, "loopback addresses"),
        (0xfe80 << 112, 10, "link-local addresses"),
        (0xff00 << 112, 8, "multicast addresses"),
    ];

    fn start(&self) -> u128 {
        self.network().to_bits()
    }

    fn prefix_len(&self) -> u8 {
        Ipv6Net::prefix_len(self)
    }

    fn around(bits: u128, len: u8) -> Self {
        Self::new_assert(Ipv6Addr::from_bits(bits), len.min(Self::BITS)).trunc()
    }

    fn address(bits: u128) -> IpAddr {
        Ipv6Addr::from_bits(bits).into()
    }

    /// `::ffff:0:0/96`, IPv4 addresses written as IPv6.
    fn disguised() -> Option<Self> {
        Some(Self::around(0xffff_0000_0000, 96))
    }

    fn parse_address(text: &str) -> Option<u128> {
        let ip: Ipv6Addr = text.parse().ok()?;
        ip.to_ipv4_mapped().is_none().then(|| ip.to_bits())
    }
}
