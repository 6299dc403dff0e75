//! Names of flannel's keys in etcd.
//!
//! | key | value |
//! |---|---|
//! | `<prefix>/config` | the network config |
//! | `<prefix>/subnets/<subnet>` | a lease with an IPv4 part |
//! | `<prefix>/v6-subnets/<subnet>` | a lease of an IPv6-only network |
//! | `<prefix>/requests/<id>` | a request of an operator to nodes |
//! | `<prefix>/answers/<id>/<subnet>` | a node's answer to it |
//!
//! The second directory exists because the Go flannel has no name for an IPv6-only subnet, and reads
//! everything that begins with `<prefix>/subnets`: a key it cannot read there makes it drop all its
//! peers. What it does write in IPv6-only networks, `subnets/0.0.0.0-0&<v6>`, is understood.

use std::str::FromStr;

use flannel_lease::Subnet;
use prost::bytes::Bytes;

use super::proto::RangeRequest;
use crate::RequestId;

/// Prefix of an IPv6-only subnet's name in the Go flannel.
const GO_NO_V4: &str = "0.0.0.0-0&";

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(super) config: String,
    /// `subnets/` and `v6-subnets/`.
    pub(super) directories: [String; 2],
    pub(super) requests: String,
    answers: String,
}

#[derive(Debug, PartialEq)]
pub(super) enum KeyMeaning {
    Config,
    Lease(Subnet),
    /// Not flannel's, and why.
    Foreign(String),
}

/// All keys from `start` up to, but not including, `end`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyRange {
    pub(super) start: Bytes,
    pub(super) end: Bytes,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let directory = |name| clean(&format!("{prefix}/{name}"), prefix) + "/";
        Self {
            config: clean(&format!("{prefix}/config"), prefix),
            directories: ["subnets", "v6-subnets"].map(directory),
            requests: directory("requests"),
            answers: directory("answers"),
        }
    }

    pub(super) fn request(&self, id: &RequestId) -> String {
        format!("{}{id}", self.requests)
    }

    pub(super) fn answers(&self, id: &RequestId) -> String {
        format!("{}{id}/", self.answers)
    }

    pub(crate) fn subnets(&self) -> &str {
        &self.directories[0]
    }

    pub(super) fn v6_subnets(&self) -> &str {
        &self.directories[1]
    }

    pub(crate) fn lease(&self, subnet: &Subnet) -> String {
        let directory = if subnet.v4().is_some() { self.subnets() } else { self.v6_subnets() };
        format!("{directory}{subnet}")
    }

    /// All names that a lease may have: an IPv6-only one has another in the Go flannel.
    pub(super) fn names(&self, subnet: &Subnet) -> impl Iterator<Item = String> + use<> {
        let is_v6_alone = matches!(subnet, Subnet::V6(_));
        let go = is_v6_alone.then(|| format!("{}{GO_NO_V4}{subnet}", self.subnets()));
        std::iter::once(self.lease(subnet)).chain(go)
    }

    pub(super) fn meaning(&self, key: &[u8]) -> KeyMeaning {
        let Ok(key) = std::str::from_utf8(key) else {
            return KeyMeaning::Foreign("its name is not text".to_owned());
        };
        if key == self.config {
            return KeyMeaning::Config;
        }
        let (name, belongs): (_, fn(&str, &Subnet) -> bool) =
            if let Some(name) = key.strip_prefix(self.subnets()) {
                (name, |name, subnet| subnet.v4().is_some() || name.starts_with(GO_NO_V4))
            } else if let Some(name) = key.strip_prefix(self.v6_subnets()) {
                (name, |name, subnet| subnet.v4().is_none() && !name.starts_with(GO_NO_V4))
            } else {
                return KeyMeaning::Foreign("it is in no directory of flannel's".to_owned());
            };
        match Subnet::from_str(name) {
            Ok(subnet) if belongs(name, &subnet) => KeyMeaning::Lease(subnet),
            Ok(_) => KeyMeaning::Foreign("its name does not belong in this directory".to_owned()),
            Err(error) => KeyMeaning::Foreign(error.to_string()),
        }
    }
}

impl KeyRange {
    pub(super) fn directory(directory: &str) -> Self {
        // Directories end in '/', and '0' is the character after it.
        let end = directory.strip_suffix('/').map_or_else(String::new, |d| format!("{d}0"));
        Self { start: directory.to_owned().into(), end: end.into() }
    }

    pub(super) fn single(key: &str) -> Self {
        Self { start: key.to_owned().into(), end: Bytes::new() }
    }
}

impl From<KeyRange> for RangeRequest {
    fn from(KeyRange { start: key, end: range_end }: KeyRange) -> Self {
        Self { key, range_end, ..Self::default() }
    }
}

/// Cleans a path as Go's `path.Join` does: no `//`, `.` or `..`. With an empty prefix it is relative.
fn clean(path: &str, prefix: &str) -> String {
    let rooted = prefix.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    if rooted { format!("/{joined}") } else { joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(key: &str) -> Subnet {
        key.parse().unwrap()
    }

    #[test]
    fn the_prefix_is_joined_the_way_go_does_it() {
        let config = |prefix: &str| Keys::new(prefix).config;
        assert_eq!(config("/coreos.com/network"), "/coreos.com/network/config");
        assert_eq!(config("/coreos.com//network/"), "/coreos.com/network/config");
        assert_eq!(config("flannel"), "flannel/config");
        assert_eq!(config("/a/./b/../c"), "/a/c/config");
        assert_eq!(config("/../a"), "/a/config");
        assert_eq!(config("../a"), "../a/config");
        assert_eq!(config("/"), "/config");
        assert_eq!(config(""), "config");
    }

    #[test]
    fn leases_with_an_ipv4_part_are_where_the_go_flannel_looks_for_them() {
        let keys = Keys::new("/coreos.com/network");
        assert_eq!(keys.lease(&subnet("10.5.52.0-24")), "/coreos.com/network/subnets/10.5.52.0-24");
        assert_eq!(
            keys.lease(&subnet("10.12.13.0-24&fd00:12:13::-56")),
            "/coreos.com/network/subnets/10.12.13.0-24&fd00:12:13::-56"
        );
    }

    #[test]
    fn ipv6_only_leases_are_where_the_go_flannel_never_looks() {
        let keys = Keys::new("/coreos.com/network");
        let key = keys.lease(&subnet("fd00:244:0:4d::-64"));
        assert_eq!(key, "/coreos.com/network/v6-subnets/fd00:244:0:4d::-64");
        assert!(!key.starts_with("/coreos.com/network/subnets"));
    }

    #[test]
    fn every_key_has_one_meaning() {
        let keys = Keys::new("/n");
        let v6 = subnet("fd00::-64");
        assert_eq!(keys.meaning(b"/n/config"), KeyMeaning::Config);
        assert_eq!(
            keys.meaning(b"/n/subnets/10.5.52.0-24"),
            KeyMeaning::Lease(subnet("10.5.52.0-24"))
        );
        assert_eq!(keys.meaning(b"/n/v6-subnets/fd00::-64"), KeyMeaning::Lease(v6));
        assert_eq!(keys.meaning(b"/n/subnets/0.0.0.0-0&fd00::-64"), KeyMeaning::Lease(v6));
        for foreign in [
            &b"/n/subnets/10.5.52.0-24/x"[..],
            b"/n/subnets/",
            b"/n/subnets/fd00::-64",
            b"/n/v6-subnets/10.5.52.0-24",
            b"/n/v6-subnets/0.0.0.0-0&fd00::-64",
            b"/n/subnets/junk",
            b"/n/subnets/\xff\xfe",
            b"/n/config2",
            b"/other",
        ] {
            let meaning = keys.meaning(foreign);
            assert!(matches!(meaning, KeyMeaning::Foreign(_)), "{meaning:?}");
        }
    }

    #[test]
    fn defect_16_a_directory_does_not_contain_its_neighbours() {
        let range = KeyRange::directory("/n/subnets/");
        assert_eq!((&range.start[..], &range.end[..]), (&b"/n/subnets/"[..], &b"/n/subnets0"[..]));
        let inside = |key: &[u8]| key >= &range.start[..] && key < &range.end[..];
        assert!(inside(b"/n/subnets/10.5.52.0-24"));
        assert!(!inside(b"/n/subnets-old/10.5.52.0-24") && !inside(b"/n/subnets"));
    }
}
