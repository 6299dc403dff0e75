//! How daemons on one node know of each other.
//!
//! Each stands for its networks by a socket of that name, which ends with it. Abstract names belong to a
//! network namespace, as packet filter rules do, and need no files.

use std::os::fd::OwnedFd;

use ipnet::IpNet;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

const PREFIX: &str = "flannel-traffic/";
const SOCKETS: &str = "/proc/thread-self/net/unix";

#[derive(Default)]
pub(crate) struct Claims(Vec<(IpNet, OwnedFd)>);

impl Claims {
    /// Stands for these networks and for no others. Returns those that it did stand for.
    pub(crate) fn set(&mut self, networks: &[IpNet]) -> Vec<IpNet> {
        let former = self.0.iter().map(|(network, _)| *network).collect();
        self.0.retain(|(network, _)| networks.contains(network));
        for network in networks {
            if !self.0.iter().any(|(claimed, _)| claimed == network) {
                // Another that stands for it, such as our predecessor, does as well.
                self.0.extend(claim(network).map(|socket| (*network, socket)));
            }
        }
        former
    }
}

fn claim(network: &IpNet) -> Option<OwnedFd> {
    let name = format!("{PREFIX}{network}");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    bind(&socket, &address).ok()?;
    Some(socket)
}

/// The networks that some daemon on this node stands for.
pub(crate) fn claimed() -> Vec<IpNet> {
    parse(&std::fs::read_to_string(SOCKETS).unwrap_or_default())
}

fn parse(sockets: &str) -> Vec<IpNet> {
    let names = sockets.lines().filter_map(|line| line.rsplit_once(" @").map(|(_, name)| name));
    names.filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::samples::net;

    #[test]
    fn a_network_is_claimed_as_long_as_its_claim_is_held() {
        let network = net(&format!("10.{}.0.0/16", std::process::id() % 200));
        let mut claims = Claims::default();
        claims.set(&[network]);
        assert!(claimed().contains(&network));
        let mut second = Claims::default();
        second.set(&[network]);
        claims.set(&[]);
        assert!(!claimed().contains(&network));
    }

    #[test]
    fn other_sockets_are_passed_over() {
        let text = "Num RefCount Protocol Flags Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0002 01 27254 @flannel-traffic/fd00::/56
0000000000000000: 00000002 00000000 00000000 0002 01 27255 @flannel-traffic/nonsense
0000000000000000: 00000002 00000000 00010000 0001 01 27256 /run/flannel-traffic/10.0.0.0/8
0000000000000000: 00000003 00000000 00000000 0001 03 27257
";
        assert_eq!(parse(text), [net("fd00::/56")]);
    }
}
