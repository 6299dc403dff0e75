//! Ranges of addresses to give out, and sets of them: an attachment gets one address of every set.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::addr::{self, first_of, next, same_family};
use crate::protocol::{Error, Fields, Result, network};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub subnet: IpNet,
    pub gateway: IpAddr,
    pub first: IpAddr,
    pub last: IpAddr,
}

/// Never empty, of one family, without overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl Range {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let (subnet, ip) = (network(fields, "subnet")?, |key| addr::read(fields, key));
        Self::new(subnet, ip("gateway")?, ip("rangeStart")?, ip("rangeEnd")?)
    }

    pub fn new(
        subnet: IpNet,
        gateway: Option<IpAddr>,
        first: Option<IpAddr>,
        last: Option<IpAddr>,
    ) -> Result<Self> {
        if subnet.prefix_len() + 2 > subnet.max_prefix_len() {
            return Err(Error::config(format!("Network {subnet} too small to allocate from")));
        }
        if subnet.addr() != subnet.network() {
            let (length, network) = (subnet.prefix_len(), subnet.network());
            return Err(Error::config(format!(
                "Network has host bits set. For a subnet mask of length {length} the network address is {network}"
            )));
        }
        let outside = |what, ip| Error::config(format!("{what} {ip} not in network {subnet}"));
        let inside = |what, ip: IpAddr| match subnet.contains(&ip) {
            true => Ok(ip),
            false => Err(outside(what, ip)),
        };
        let first = match first {
            Some(ip) => inside("RangeStart", ip)?,
            // The gateway is usually there; it is passed over when addresses are given out.
            None => first_of(subnet),
        };
        let last = match last {
            Some(ip) => inside("RangeEnd", ip)?,
            None => last_of(subnet),
        };
        if last < first {
            return Err(outside("RangeEnd", last));
        }
        Ok(Self { subnet, gateway: gateway.unwrap_or_else(|| first_of(subnet)), first, last })
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        same_family(ip, self.first)
            && self.subnet.contains(&ip)
            && (self.first..=self.last).contains(&ip)
    }

    fn overlaps(&self, other: &Self) -> bool {
        same_family(self.first, other.first) && self.first <= other.last && other.first <= self.last
    }
}

/// The last address, but not that of IPv4's broadcasts.
fn last_of(subnet: IpNet) -> IpAddr {
    match subnet {
        IpNet::V4(subnet) => std::net::Ipv4Addr::from_bits(subnet.broadcast().to_bits() - 1).into(),
        IpNet::V6(subnet) => subnet.broadcast().into(),
    }
}

impl RangeSet {
    pub fn new(ranges: Vec<Range>) -> Result<Self> {
        let Some(one) = ranges.first() else { return Err(Error::config("empty range set")) };
        if ranges.iter().any(|range| !same_family(range.first, one.first)) {
            return Err(Error::config("mixed address families"));
        }
        for (at, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges[at + 1..].iter().find(|other| range.overlaps(other)) {
                return Err(Error::config(format!("subnets {range} and {other} overlap")));
            }
        }
        Ok(Self(ranges))
    }

    pub fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.first.is_ipv4())
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|it| range.overlaps(it)))
    }

    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Every address that may be given out, beginning after `last`: a container that crashes again
    /// and again does not get the same address until all others have had their turn.
    pub fn after(&self, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
        let end = self.0.len() - 1;
        let home = last.and_then(|ip| Some((self.0.iter().position(|it| it.contains(ip))?, ip)));
        let home = home.unwrap_or((end, self.0[end].last));
        let mut place = Some(home);
        std::iter::from_fn(move || {
            let (at, ip) = self.following(place?);
            place = Some((at, ip)).filter(|place| *place != home);
            Some((ip, &self.0[at]))
        })
        .filter(|(ip, range)| *ip != range.gateway)
    }

    /// The address after one of a range, which after the last range is the first of all.
    fn following(&self, (at, ip): (usize, IpAddr)) -> (usize, IpAddr) {
        if ip < self.0[at].last {
            return (at, next(ip));
        }
        let at = (at + 1) % self.0.len();
        (at, self.0[at].first)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(Range::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn range(subnet: &str, first: Option<&str>, last: Option<&str>) -> Result<Range> {
        Range::new(subnet.parse().unwrap(), None, first.map(ip), last.map(ip))
    }

    fn offered(set: &RangeSet, last: Option<&str>) -> Vec<String> {
        set.after(last.map(ip)).map(|(ip, _)| ip.to_string()).collect()
    }

    #[test]
    fn a_subnet_gives_all_but_network_gateway_and_broadcast() {
        let v4 = range("10.1.2.0/24", None, None).unwrap();
        assert_eq!(v4.to_string(), "10.1.2.1-10.1.2.254");
        assert_eq!(v4.gateway, ip("10.1.2.1"));
        let v6 = range("fd00::/120", None, None).unwrap();
        assert_eq!(v6.to_string(), "fd00::1-fd00::ff");
        let set = RangeSet::new(vec![range("10.1.2.0/29", None, None).unwrap()]).unwrap();
        assert_eq!(
            offered(&set, None),
            ["10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"]
        );
    }

    #[test]
    fn the_turn_goes_on_after_the_last_one_and_comes_round() {
        let set = RangeSet::new(vec![range("10.1.2.0/29", None, None).unwrap()]).unwrap();
        assert_eq!(
            offered(&set, Some("10.1.2.4")),
            ["10.1.2.5", "10.1.2.6", "10.1.2.2", "10.1.2.3", "10.1.2.4"]
        );
        assert_eq!(offered(&set, Some("10.1.2.6")), offered(&set, None));
        assert_eq!(offered(&set, Some("192.168.0.1")), offered(&set, None), "one of another range");
    }

    #[test]
    fn a_set_of_two_ranges_goes_from_one_to_the_other() {
        let set = RangeSet::new(vec![
            range("10.1.2.0/24", Some("10.1.2.5"), Some("10.1.2.6")).unwrap(),
            range("10.1.3.0/24", Some("10.1.3.8"), Some("10.1.3.9")).unwrap(),
        ])
        .unwrap();
        assert_eq!(offered(&set, None), ["10.1.2.5", "10.1.2.6", "10.1.3.8", "10.1.3.9"]);
        assert_eq!(
            offered(&set, Some("10.1.2.6")),
            ["10.1.3.8", "10.1.3.9", "10.1.2.5", "10.1.2.6"]
        );
        assert_eq!(
            offered(&set, Some("10.1.3.8")),
            ["10.1.3.9", "10.1.2.5", "10.1.2.6", "10.1.3.8"]
        );
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused_with_the_reference_s_words() {
        let text = |result: Result<_>| result.unwrap_err().to_string();
        assert_eq!(
            text(range("10.1.2.0/31", None, None)),
            "Network 10.1.2.0/31 too small to allocate from"
        );
        assert!(text(range("10.1.2.3/24", None, None)).starts_with("Network has host bits set"));
        assert_eq!(
            text(range("10.1.2.0/24", Some("10.1.3.1"), None)),
            "RangeStart 10.1.3.1 not in network 10.1.2.0/24"
        );
        assert!(range("10.1.2.0/24", Some("10.1.2.9"), Some("10.1.2.8")).is_err());
        let (a, b) =
            (range("10.1.2.0/24", None, None).unwrap(), range("10.1.0.0/16", None, None).unwrap());
        let text = |ranges| RangeSet::new(ranges).unwrap_err().to_string();
        assert!(text(vec![a.clone(), b]).ends_with("overlap"));
        let v6 = range("fd00::/64", None, None).unwrap();
        assert_eq!(text(vec![a, v6]), "mixed address families");
        assert_eq!(text(vec![]), "empty range set");
    }
}
