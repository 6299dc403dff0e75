//! How those who keep rules on one node know of each other: several daemons, or several networks of one.
//!
//! Each holds a socket named after every network whose rules it keeps; the socket ends with it.
//! Abstract names belong to a network namespace, as packet filter rules do, and need no files. One more
//! name is a lock: what one of them reads must still be so when it writes.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use flannel_common::overlap;
use ipnet::IpNet;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

const PREFIX: &str = "flannel-traffic/";
const LOCK_NAME: &str = "flannel-traffic-lock";
/// Who holds the lock for longer hangs, and must not keep the others from their work.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const NEXT_LOOK: Duration = Duration::from_millis(2);
const SOCKETS: &str = "/proc/thread-self/net/unix";

#[derive(Default)]
pub(crate) struct ServedNetworks {
    held: Vec<(IpNet, OwnedFd)>,
    /// All that it has ever said so of.
    ever: Vec<IpNet>,
}

impl ServedNetworks {
    /// Says that these networks, and no others, are kept here.
    pub(crate) fn set(&mut self, networks: &[IpNet]) {
        self.held.retain(|(network, _)| networks.contains(network));
        for network in networks {
            if !self.held.iter().any(|(served, _)| served == network) {
                self.held.extend(announce(network).map(|socket| (*network, socket)));
            }
            if !self.ever.contains(network) {
                self.ever.push(*network);
            }
        }
    }

    /// The networks that others on this node keep.
    pub(crate) fn of_others(&self) -> Vec<IpNet> {
        // A socket just closed may be seen a little longer: a program that is being started has it, too.
        besides(&self.ever)
    }
}

/// The networks that somebody on this node keeps and that are none of these.
pub(crate) fn besides(own: &[IpNet]) -> Vec<IpNet> {
    let mut others = all();
    others.retain(|other| !own.iter().any(|own| overlap(own, other)));
    others
}

/// Waits until nobody else is at work on the rules. They wait as long as this is held.
pub(crate) fn lock() -> Option<OwnedFd> {
    let deadline = Instant::now() + LONGEST_WAIT;
    loop {
        match hold(LOCK_NAME) {
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => std::thread::sleep(NEXT_LOOK),
            socket => return socket.ok(),
        }
    }
}

fn announce(network: &IpNet) -> Option<OwnedFd> {
    // Our predecessor may have its socket still: each has a name of its own.
    hold(&format!("{PREFIX}{network}#{:016x}", fastrand::u64(..))).ok()
}

/// EADDRINUSE: somebody has it.
fn hold(name: &str) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// The networks that somebody on this node keeps.
pub(crate) fn all() -> Vec<IpNet> {
    parse(&std::fs::read_to_string(SOCKETS).unwrap_or_default())
}

fn parse(sockets: &str) -> Vec<IpNet> {
    let names = sockets.lines().filter_map(|line| line.rsplit_once(" @").map(|(_, name)| name));
    let network = |name: &str| name.strip_prefix(PREFIX)?.split('#').next()?.parse().ok();
    names.filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::net;

    #[test]
    fn a_network_is_known_as_long_as_somebody_keeps_it() {
        let network = net(&format!("10.{}.0.0/16", std::process::id() % 200));
        let mut first = ServedNetworks::default();
        first.set(&[network]);
        assert!(all().contains(&network));
        let mut second = ServedNetworks::default();
        second.set(&[network]);
        first.set(&[]);
        assert!(all().contains(&network), "the second keeps it");
        second.set(&[]);
        assert!(!all().contains(&network));
    }

    #[test]
    fn one_after_the_other_has_the_lock() {
        let first = lock().expect("nobody has it");
        let second = std::thread::spawn(lock);
        std::thread::sleep(NEXT_LOOK * 10);
        assert!(!second.is_finished(), "it waits");
        drop(first);
        assert!(second.join().unwrap().is_some());
    }

    #[test]
    fn other_sockets_are_passed_over() {
        let text = "Num RefCount Protocol Flags Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0002 01 27254 @flannel-traffic/fd00::/56#0123
0000000000000000: 00000002 00000000 00000000 0002 01 27255 @flannel-traffic/nonsense
0000000000000000: 00000002 00000000 00010000 0001 01 27256 /run/flannel-traffic/10.0.0.0/8
0000000000000000: 00000003 00000000 00000000 0001 03 27257
";
        assert_eq!(parse(text), [net("fd00::/56")]);
    }
}
