//! Addresses for a test pod: the highest of the node's subnet that nobody has. While the pod lives, the CNI plugin
//! gives them to nobody, either: they are noted where it notes whom it has given which.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_cni::ipam::{Holder, Reservation, Store};
use flannel_netlink::{Connection, Protocol};
use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

/// Where the plugin host-local notes what it has given out, unless it was told otherwise.
const NETWORKS: &str = "/var/lib/cni/networks";
/// To whom it has given what is a test pod's.
const HOLDER: (&str, &str) = ("flannel-test-pod", "eth0");
const MAX_CANDIDATES: usize = 8;
/// How long somebody who has an address may take to say so.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_millis(250);

pub(crate) struct Addresses {
    pub(crate) chosen: Vec<IpAddr>,
    reserved: Vec<(PathBuf, Reservation)>,
}

impl Addresses {
    pub(super) fn choose(nets: impl Iterator<Item = IpNet>) -> Result<Self, String> {
        let given = given_out(Path::new(NETWORKS));
        let taken: BTreeSet<IpAddr> = given.iter().map(|(_, it)| it.ip).collect();
        let candidates: Vec<(IpNet, Vec<IpAddr>)> = nets
            .map(|net| (net, highest_free(net, &taken).take(MAX_CANDIDATES).collect()))
            .collect();
        let all: Vec<IpAddr> = candidates.iter().flat_map(|(_, list)| list).copied().collect();
        let answering = answering(&all);
        let mut addresses = Self { chosen: Vec::new(), reserved: Vec::new() };
        for (net, list) in candidates {
            let directory = given.iter().find(|(_, it)| net.contains(&it.ip)).map(|(path, _)| path);
            let mut free = list.into_iter().filter(|ip| !answering.contains(ip) && !is_local(*ip));
            let chosen = free.find(|ip| addresses.reserve(directory.map(PathBuf::as_path), *ip));
            addresses.chosen.push(chosen.ok_or_else(|| {
                format!(
                    "cannot find an address for a test pod in {net}: the highest ones are all in use"
                )
            })?);
        }
        Ok(addresses)
    }

    /// Whether nobody else has it. Where the plugin notes nothing, or this process does not see it, nobody is asked.
    fn reserve(&mut self, directory: Option<&Path>, ip: IpAddr) -> bool {
        let Some(directory) = directory else { return true };
        let reserve = || {
            let store = Store::open(directory).ok()??;
            let lock = store.lock().ok()?;
            store.pen(HOLDER.0, HOLDER.1).ok()?.reserve(&lock, ip).ok()
        };
        let reserved = reserve();
        if reserved == Some(true) {
            let (container_id, ifname) = (HOLDER.0.to_owned(), HOLDER.1.to_owned());
            let owner = Holder::Attachment { container_id, ifname };
            self.reserved.push((directory.to_owned(), Reservation { ip, owner }));
        }
        reserved != Some(false)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.reserved.iter().for_each(|(directory, reservation)| release(directory, reservation));
    }
}

fn release(directory: &Path, reservation: &Reservation) {
    let release = || {
        let store = Store::open(directory).ok()??;
        store.release(&store.lock().ok()?, reservation).ok()
    };
    if release().is_none() {
        tracing::warn!("the address {} stays reserved in {}", reservation.ip, directory.display());
    }
}

/// What a test pod of a process that was killed has kept from others.
pub(super) fn sweep() {
    for (directory, reservation) in given_out(Path::new(NETWORKS)) {
        if reservation.owner.is_attachment(HOLDER.0, HOLDER.1) {
            release(&directory, &reservation);
        }
    }
}

/// What the plugin has given out, in whichever of its networks.
fn given_out(networks: &Path) -> Vec<(PathBuf, Reservation)> {
    let directories = std::fs::read_dir(networks).into_iter().flatten().flatten();
    let mut all = Vec::new();
    for directory in directories.map(|entry| entry.path()) {
        let store = Store::open(&directory).ok().flatten();
        let given = store.and_then(|store| store.reservations().ok()).unwrap_or_default();
        all.extend(given.into_iter().map(|it| (directory.clone(), it)));
    }
    all
}

/// Neither the first, which is the node's own, nor the last, which is everybody's in IPv4.
fn highest_free(net: IpNet, taken: &BTreeSet<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let others = [net.network(), net.broadcast()];
    let hosts = net.hosts().rev().take(1 << 16);
    hosts.filter(move |ip| !others.contains(ip) && !taken.contains(ip))
}

pub(crate) fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Which of these somebody has, on whichever bridge: the kernel is made to look for them, and asked whom it found.
fn answering(candidates: &[IpAddr]) -> BTreeSet<IpAddr> {
    for ip in candidates {
        // The discard port; nobody needs to take it.
        let socket = UdpSocket::bind((unspecified(*ip), 0));
        let _ = socket.and_then(|socket| socket.send_to(&[0], (*ip, 9)));
    }
    std::thread::sleep(NEIGHBOUR_TIMEOUT);
    let all = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let found = Connection::open(Protocol::Route).and_then(|mut kernel| {
        kernel.dump(&all, |message| match message {
            RouteNetlinkMessage::NewNeighbour(neighbour) => found(&neighbour),
            _ => None,
        })
    });
    found.unwrap_or_default().into_iter().filter(|ip| candidates.contains(ip)).collect()
}

fn found(neighbour: &NeighbourMessage) -> Option<IpAddr> {
    let mut attributes = neighbour.attributes.iter();
    let known = attributes.any(|it| matches!(it, NeighbourAttribute::LinkLayerAddress(_)));
    let lost =
        matches!(neighbour.header.state, NeighbourState::Failed | NeighbourState::Incomplete);
    let address = neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some((*ip).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    });
    address.filter(|_| known && !lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(net: &str, taken: &[&str]) -> Vec<String> {
        let taken = taken.iter().map(|ip| ip.parse().expect("an address")).collect();
        let net = net.parse().expect("a network");
        highest_free(net, &taken).take(3).map(|ip| ip.to_string()).collect()
    }

    #[test]
    fn the_highest_addresses_that_nobody_has_are_taken() {
        assert_eq!(free("10.5.1.0/24", &[]), ["10.5.1.254", "10.5.1.253", "10.5.1.252"]);
        assert_eq!(
            free("10.5.1.0/24", &["10.5.1.254", "10.5.1.252"])[..2],
            ["10.5.1.253", "10.5.1.251"]
        );
        assert_eq!(free("10.5.1.0/30", &[]), ["10.5.1.2", "10.5.1.1"]);
        assert_eq!(free("10.5.1.0/31", &[]), Vec::<String>::new());
        assert_eq!(free("fd00:5:1::/64", &[])[0], "fd00:5:1:0:ffff:ffff:ffff:fffe");
    }

    #[test]
    fn what_the_plugin_has_given_out_is_known_whatever_the_network_is_called() {
        let root = tempfile::tempdir().expect("a directory");
        for (network, ip) in [("cbr0", "10.5.1.2"), ("other", "10.5.1.3")] {
            let store = Store::create(&root.path().join(network)).expect("a store");
            let lock = store.lock().expect("a lock");
            let pen = store.pen("pod", "eth0").expect("a pen");
            assert!(pen.reserve(&lock, ip.parse().expect("an address")).expect("reserved"));
        }
        let given: BTreeSet<String> =
            given_out(root.path()).iter().map(|(_, it)| it.ip.to_string()).collect();
        assert_eq!(given.into_iter().collect::<Vec<_>>(), ["10.5.1.2", "10.5.1.3"]);
    }
}
