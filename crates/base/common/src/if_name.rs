//! A network interface name: at most 15 bytes, no slash, no white space. `Copy`: thousands of entries have one.

use std::fmt;
use std::str::FromStr;

const MAX: usize = 15;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfName {
    len: u8,
    bytes: [u8; MAX],
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is not a network interface name: 1 to 15 bytes, no '/', ':' or white space")]
pub struct InvalidIfName(String);

impl IfName {
    pub fn new(name: &str) -> Result<Self, InvalidIfName> {
        let valid = !name.is_empty()
            && name.len() <= MAX
            && name != "."
            && name != ".."
            && !name.chars().any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
        if !valid {
            return Err(InvalidIfName(name.to_owned()));
        }
        let mut bytes = [0; MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { len: name.len() as u8, bytes })
    }

    pub fn as_str(&self) -> &str {
        // Built from a `str` and never cut, so this cannot fail.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl FromStr for IfName {
    type Err = InvalidIfName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_the_kernel_accepts_and_refuses_the_rest() {
        for good in ["lo", "flannel.1", "flannel-v6.1", "enp0s31f6", "a23456789012345"] {
            assert_eq!(IfName::new(good).expect(good).as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a b", "a:b", "a234567890123456", "tab\t"] {
            assert!(IfName::new(bad).is_err(), "{bad:?} must be refused");
        }
    }
}
