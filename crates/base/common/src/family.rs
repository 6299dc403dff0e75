//! The address families, one at a time.

use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub fn other(self) -> Self {
        self.choose([Self::V6, Self::V4])
    }

    /// The one of IPv4 and IPv6 that is of this family.
    pub fn choose<T>(self, [v4, v6]: [T; 2]) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.choose(["IPv4", "IPv6"]))
    }
}
