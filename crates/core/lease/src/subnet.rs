//! The subnet one lease owns, and the name it has as a key in the store.
//!
//! A name is accepted only in the one form we would write ourselves. Reading it leniently would give two
//! keys to one subnet, and the removal of one would then take away the other. The Go flannel searches
//! for a name at the end of the key; here the whole text has to be one.
//!
//! The one exception: the Go flannel has no name for a subnet without IPv4 and writes
//! `0.0.0.0-0&<IPv6 part>`, which is read as that IPv6 subnet but never written.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use flannel_common::Family;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// Without host bits. As a key: `10.5.52.0-24`, `10.12.13.0-24&fd00:12:13::-56`, `fd00:244:0:4d::-64`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subnet {
    V4(Ipv4Net),
    V6(Ipv6Net),
    Dual(Ipv4Net, Ipv6Net),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "subnet key {key:?} {problem}: it must look like 10.5.52.0-24 or 10.5.52.0-24&fd00:12:13::-56"
)]
pub struct SubnetKeyError {
    key: String,
    problem: &'static str,
}

impl Subnet {
    /// `None` without any family. `0.0.0.0/0` beside an IPv6 network means "no IPv4", as in the Go flannel's keys.
    pub fn new(v4: Option<Ipv4Net>, v6: Option<Ipv6Net>) -> Option<Self> {
        match (v4.map(|net| net.trunc()), v6.map(|net| net.trunc())) {
            (Some(v4), Some(v6)) if v4 == Ipv4Net::default() => Some(Self::V6(v6)),
            (Some(v4), Some(v6)) => Some(Self::Dual(v4, v6)),
            (Some(v4), None) => Some(Self::V4(v4)),
            (None, Some(v6)) => Some(Self::V6(v6)),
            (None, None) => None,
        }
    }

    pub fn v4(&self) -> Option<Ipv4Net> {
        match *self {
            Self::V4(v4) | Self::Dual(v4, _) => Some(v4),
            Self::V6(_) => None,
        }
    }

    pub fn v6(&self) -> Option<Ipv6Net> {
        match *self {
            Self::V6(v6) | Self::Dual(_, v6) => Some(v6),
            Self::V4(_) => None,
        }
    }

    pub fn net(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.v4().map(IpNet::V4),
            Family::V6 => self.v6().map(IpNet::V6),
        }
    }

    pub fn nets(&self) -> impl Iterator<Item = IpNet> + Clone + use<> {
        let (v4, v6) = (self.v4().map(IpNet::V4), self.v6().map(IpNet::V6));
        v4.into_iter().chain(v6)
    }

    /// Whether some address belongs to both, in either family.
    pub fn overlaps(&self, other: &Self) -> bool {
        let v4 = self.v4().zip(other.v4()).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a));
        let v6 = self.v6().zip(other.v6()).is_some_and(|(a, b)| a.contains(&b) || b.contains(&a));
        v4 || v6
    }
}

/// The key in a store; with `{:#}`, as people write networks.
impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return match self {
                Self::V4(v4) => write!(f, "{v4}"),
                Self::V6(v6) => write!(f, "{v6}"),
                Self::Dual(v4, v6) => write!(f, "{v4} and {v6}"),
            };
        }
        if let Some(v4) = self.v4() {
            write!(f, "{}-{}", v4.network(), v4.prefix_len())?;
        }
        if let Self::Dual(..) = self {
            f.write_str("&")?;
        }
        if let Some(v6) = self.v6() {
            write!(f, "{}-{}", KeyAddress(v6.network()), v6.prefix_len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

impl TryFrom<String> for Subnet {
    type Error = SubnetKeyError;

    fn try_from(key: String) -> Result<Self, SubnetKeyError> {
        key.parse()
    }
}

impl FromStr for Subnet {
    type Err = SubnetKeyError;

    fn from_str(key: &str) -> Result<Self, SubnetKeyError> {
        let wrong = |problem| SubnetKeyError {
            key: flannel_common::shorten(key, 100).into_owned(),
            problem,
        };
        let (v4, v6) = match key.split_once('&') {
            Some((v4, v6)) => (Some(v4), Some(v6)),
            None if key.contains(':') => (None, Some(key)),
            None => (Some(key), None),
        };
        let v4 = v4.map(read_v4).transpose().map_err(wrong)?;
        let v6 = v6.map(read_v6).transpose().map_err(wrong)?;
        Self::new(v4, v6).ok_or_else(|| wrong("is empty"))
    }
}

fn read_v4(text: &str) -> Result<Ipv4Net, &'static str> {
    let (address, len) = text.split_once('-').ok_or("has no -<length>")?;
    let len = read_len(len, 31).ok_or("needs an IPv4 length from 0 to 31")?;
    let address: Ipv4Addr = address.parse().map_err(|_| "has no valid IPv4 address")?;
    let net = Ipv4Net::new(address, len).map_err(|_| "needs an IPv4 length from 0 to 31")?;
    if net.trunc() != net {
        return Err("has IPv4 bits set below its length");
    }
    Ok(net)
}

fn read_v6(text: &str) -> Result<Ipv6Net, &'static str> {
    let (address, len) = text.split_once('-').ok_or("has no -<length> after its IPv6 part")?;
    let len = read_len(len, 127).ok_or("needs an IPv6 length from 0 to 127")?;
    let parsed: Ipv6Addr = address.parse().map_err(|_| "has no valid IPv6 address")?;
    if KeyAddress(parsed).to_string() != address {
        return Err("has an IPv6 address that is not in its shortest lower-case form");
    }
    let net = Ipv6Net::new(parsed, len).map_err(|_| "needs an IPv6 length from 0 to 127")?;
    if net.trunc() != net {
        return Err("has IPv6 bits set below its length");
    }
    Ok(net)
}

fn read_len(text: &str, max: u8) -> Option<u8> {
    let canonical =
        text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|len| canonical && *len <= max)
}

/// IPv6 text for keys: RFC 5952 but never with a dotted IPv4 tail, which the Go flannel cannot read.
struct KeyAddress(Ipv6Addr);

impl fmt::Display for KeyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_ipv4_mapped() {
            Some(_) => {
                let [.., high, low] = self.0.segments();
                write!(f, "::ffff:{high:x}:{low:x}")
            }
            None => write!(f, "{}", self.0),
        }
    }
}
