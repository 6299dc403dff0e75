//! A link-layer address.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is not a MAC address: six hexadecimal octets joined by ':'")]
pub struct InvalidMac(String);

impl Mac {
    /// A random locally administered unicast address, as the kernel would make one.
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        let mut octets = [0; 6];
        rng.fill(&mut octets);
        Self::local(octets)
    }

    /// Turns octets into a locally administered unicast address.
    pub const fn local(mut octets: [u8; 6]) -> Self {
        octets[0] = (octets[0] & 0xfe) | 0x02;
        Self(octets)
    }

    pub fn from_slice(octets: &[u8]) -> Option<Self> {
        octets.try_into().ok().map(Self)
    }

    /// Whether it can be a device's own address: not multicast, not all zero.
    pub fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl FromStr for Mac {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let octet = |part: &str| {
            let is_octet = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            u8::from_str_radix(part, 16).ok().filter(|_| is_octet)
        };
        let octets: Option<Vec<u8>> = text.split([':', '-']).map(octet).collect();
        let mac = octets.and_then(|octets| Self::from_slice(&octets));
        mac.ok_or_else(|| InvalidMac(text.to_owned()))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_in_lower_case() {
        let mac: Mac = "C6:D2:32:6f:8f:44".parse().expect("valid");
        assert_eq!(mac.to_string(), "c6:d2:32:6f:8f:44");
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }

    #[test]
    fn refuses_what_is_not_six_octets() {
        for bad in [
            "",
            "c6:d2:32:6f:8f",
            "c6:d2:32:6f:8f:44:00",
            "c6:d2:32:6f:8f:4",
            "+6:d2:32:6f:8f:44",
            "zz:d2:32:6f:8f:44",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn random_addresses_are_local_and_unicast() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let mac = Mac::random(&mut rng);
            assert!(mac.is_unicast() && mac.0[0] & 2 == 2, "{mac}");
        }
    }
}
