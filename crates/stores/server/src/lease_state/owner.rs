//! Owner of a lease: who acquired it, by the name of a token or certificate, and on which machine. A name alone is not
//! enough: nodes may have been given one token, and each of them would be the owner of all leases.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use flannel_common::hex;

/// Bytes of a digest that are kept: enough that nobody finds another secret with the same ones.
const DIGEST_BYTES: usize = 16;
/// Characters that a node's secret has: fewer could be guessed, and more are nobody's.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 32..=256;

/// Machine that asks, among those that may have the same token or certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMachine {
    /// The name is that of one node, for which Kubernetes vouches.
    Vouched,
    /// Digest of a secret that the node made for itself.
    Secret(Arc<str>),
    Unknown,
}

impl ClientMachine {
    /// `None` for a text that is no secret.
    pub fn of_secret(secret: &str) -> Option<Self> {
        let plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain || !SECRET_LENGTHS.contains(&secret.len()) {
            return None;
        }
        let digest = flannel_https::sha256(secret.as_bytes());
        Some(Self::Secret(hex(&digest[..DIGEST_BYTES]).into()))
    }
}

/// Owner as it is kept with a lease: `name`, `name#digest` or `name@address`. Names of tokens have neither sign in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseOwner<'a> {
    pub(super) name: &'a str,
    pub(super) machine: OwnerMachine<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerMachine<'a> {
    /// Written by a version that noted the name alone, or vouched for.
    Unnoted,
    Secret(&'a str),
    Address(IpAddr),
}

impl<'a> LeaseOwner<'a> {
    pub(super) fn read(text: &'a str) -> Self {
        if let Some((name, digest)) = text.split_once('#') {
            return Self { name, machine: OwnerMachine::Secret(digest) };
        }
        let machine = |address: &str| address.parse().ok().map(OwnerMachine::Address);
        match text.rsplit_once('@').and_then(|(name, address)| Some((name, machine(address)?))) {
            Some((name, machine)) => Self { name, machine },
            None => Self { name: text, machine: OwnerMachine::Unnoted },
        }
    }
}

impl fmt::Display for LeaseOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.machine {
            OwnerMachine::Unnoted => f.write_str(self.name),
            OwnerMachine::Secret(digest) => write!(f, "{}#{digest}", self.name),
            OwnerMachine::Address(address) => write!(f, "{}@{address}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        for machine in
            [OwnerMachine::Unnoted, OwnerMachine::Secret("4be1"), OwnerMachine::Address(address)]
        {
            let owner = LeaseOwner { name: "node-2", machine };
            let text = owner.to_string();
            assert_eq!(LeaseOwner::read(&text), owner, "{text}");
            assert_eq!(flannel_lease::owner_name(&text), "node-2");
        }
        // What stands behind the sign is no address: it is a part of the name.
        assert_eq!(LeaseOwner::read("me@home").name, "me@home");
    }

    #[test]
    fn a_secret_that_could_be_guessed_is_none() {
        assert!(ClientMachine::of_secret(&"a".repeat(64)).is_some());
        for bad in ["", "short", &"a".repeat(300), &format!("{} b", "a".repeat(64))] {
            assert_eq!(ClientMachine::of_secret(bad), None);
        }
    }
}
