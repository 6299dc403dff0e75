//! What an event costs, in entries that are looked at.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use flannel_common::{IfName, Mac};
use flannel_entries::kernel::{Fdb, Link, LinkKind, Neighbour, Route, Vxlan};
use flannel_wanted::WALKED;
use ipnet::IpNet;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::*;

const DEVICE: &str = "flannel.1";
const PEERS: u32 = 10_000;
/// What an event may look at, of 30,000: the networks around the bridge's address, each length of prefix, twice.
const FEW: u32 = 150;

/// A node with its device, and a bridge for its pods.
fn node(peers: u32) -> Reconciler<u32> {
    // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .expect("this test makes a network namespace: run it as root");
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("it can be written");
    ip("link set lo up");
    ip("link add eth0 type veth peer name far0");
    ip("addr add 192.168.0.1/16 dev eth0");
    ip("link set far0 up");
    ip("link set eth0 up");
    ip("link add cni0 address 02:00:00:00:01:00 type bridge");
    ip("addr add 10.200.0.1/24 dev cni0");
    ip("link set cni0 up");
    ip("link add pod0 type veth peer name other0");
    ip("link set other0 up");
    ip("link set pod0 master cni0 up");
    let ownership = Ownership {
        links: [name(DEVICE)].into(),
        networks: vec!["10.0.0.0/8".parse().expect("a network")],
        legacy: Vec::new(),
    };
    let vxlan = Vxlan {
        vni: 1,
        port: None,
        parent: name("eth0"),
        local: [192, 168, 0, 1].into(),
        learning: false,
        gbp: false,
    };
    let kind = LinkKind::Vxlan(vxlan);
    let link = Link { name: name(DEVICE), kind, mac: Some(Mac([2, 0, 0, 0, 0, 255])), mtu: 1450 };
    let own = (0, vec![Entry::Link(Box::new(link))]);
    let mut node = Reconciler::open(KernelVersion::default(), 1).expect("netlink");
    let desired = std::iter::once(own).chain((1..=peers).map(|n| (n, peer(n, 1)))).collect();
    node.replace(ownership, desired, Instant::now()).expect("netlink");
    settle(&mut node);
    assert_eq!((node.wanted.bad(), node.hazards().len()), (0, 0), "{:?}", node.hazards());
    node
}

fn peer(n: u32, version: u8) -> Vec<Entry> {
    let link = name(DEVICE);
    let [.., high, low] = n.to_be_bytes();
    let gateway: IpAddr = [10, high, low, 0].into();
    let mac = Mac([2, 0, 0, version, high, low]);
    let dst = IpNet::new(gateway, 24).expect("a subnet");
    vec![
        Entry::Neighbour(Neighbour { link, ip: gateway, mac }),
        Entry::Fdb(Fdb { link, mac, dst: [192, 168, high, low].into() }),
        Entry::Route(Route { dst, metric: 100 + n % 256, via: Some(gateway), link, onlink: true }),
    ]
}

/// Hears all that the kernel has to say, and looks at what that asks for.
fn settle(node: &mut Reconciler<u32>) {
    let calm = Duration::from_millis(200);
    let mut last = Instant::now();
    while last.elapsed() < calm {
        let before = WALKED.get();
        node.react(Instant::now()).expect("netlink");
        if WALKED.get() != before || node.has_work() || node.watch.next_wake().is_some() {
            last = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn looked_at(node: &mut Reconciler<u32>, event: impl FnOnce(&mut Reconciler<u32>)) -> u32 {
    let before = WALKED.get();
    event(node);
    settle(node);
    WALKED.get() - before
}

fn ip(arguments: &str) {
    let ended = Command::new("ip").args(arguments.split_whitespace()).status();
    assert!(ended.expect("iproute2 is there").success(), "ip {arguments}");
}

fn name(text: &str) -> IfName {
    IfName::new(text).expect("a name")
}

#[test]
fn an_event_costs_what_it_changes_whatever_else_is_wanted() {
    let mut node = node(PEERS);
    let resyncs = node.resyncs;
    let veth = looked_at(&mut node, |_| {
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 master cni0 up");
        ip("link set veth1 up");
        ip("link del veth0");
    });
    let lease = looked_at(&mut node, |node| {
        node.update(vec![(PEERS + 1, peer(PEERS + 1, 1))], Instant::now()).expect("netlink");
    });
    let gone = looked_at(&mut node, |node| {
        node.update(vec![(7, Vec::new())], Instant::now()).expect("netlink");
    });
    let refused = looked_at(&mut node, |node| {
        let (ip, mac) = ([10, 99, 0, 0].into(), Mac([2, 0, 0, 0, 0, 1]));
        let refused = Entry::Neighbour(Neighbour { link: name("nowhere0"), ip, mac });
        node.update(vec![(7, vec![refused])], Instant::now()).expect("netlink");
        assert_eq!(flannel_wanted::Status::of(&node.wanted).problems.len(), 1);
        node.update(vec![(7, Vec::new())], Instant::now()).expect("netlink");
    });
    let counts = [veth, lease, gone, refused];
    println!("looked at, for a veth, a lease, one that goes, one that is refused: {counts:?}");
    assert_eq!(node.resyncs, resyncs, "nothing asked for a comparison of everything");
    assert!(counts.iter().all(|count| *count < FEW), "{counts:?}");
    assert!(node.hazards().is_empty(), "{:?}", node.hazards());
}
