//! A node with an engine, the entries it is given, and how to look at and change what the kernel has.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flannel_common::{IfName, Mac};
use flannel_entries::kernel::{
    Address, Entry, Fdb, Link, LinkKind, Neighbour, Ownership, Route, Sysctl, Vxlan,
};
use flannel_kernel::Engine;
use flannel_wanted::{Applier as _, Status};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The device of the network.
pub(crate) const DEVICE: &str = "flannel.1";

const CONDITION_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Node {
    pub(crate) engine: Engine<u32>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Node {
    pub(crate) fn new() -> Self {
        // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("these tests make network namespaces: run them as root");
        ip("link set lo up");
        plug_in_card();
        ip("addr add fd00:100::1/64 dev eth0 nodad");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { engine: Engine::start(1).unwrap(), runtime }
    }

    /// A node with its device and `peers` peers, all of it in the kernel.
    pub(crate) fn with_peers(peers: u32) -> Self {
        let node = Self::new();
        node.settle(std::iter::once((0, own())).chain((1..=peers).map(|n| (n, peer(n)))).collect());
        node
    }

    pub(crate) fn replace(&self, desired: Vec<(u32, Vec<Entry>)>) -> Status {
        self.runtime.block_on(self.engine.replace(ownership(), desired)).unwrap()
    }

    /// As [`Self::replace`], of what the kernel takes without a problem.
    pub(crate) fn settle(&self, desired: Vec<(u32, Vec<Entry>)>) {
        let status = self.replace(desired);
        assert!(status.is_settled(), "{status:#?}");
    }

    pub(crate) fn update(&self, owner: u32, entries: Vec<Entry>) -> Status {
        self.runtime.block_on(self.engine.update(vec![(owner, entries)])).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        self.runtime.block_on(self.engine.status()).unwrap()
    }

    pub(crate) fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            let waited = start.elapsed();
            assert!(
                waited < CONDITION_TIMEOUT,
                "{what}: not so\n{}\n{:#?}",
                ip("route"),
                self.status()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whatever is done to it, the kernel shows the same picture again.
    pub(crate) fn assert_repaired(&self, what: &str, vandalise: impl FnOnce()) {
        let before = picture();
        vandalise();
        let now = || std::panic::catch_unwind(picture).unwrap_or_default();
        let start = Instant::now();
        while now() != before {
            assert!(
                start.elapsed() < CONDITION_TIMEOUT,
                "{what} was not repaired\n--- before\n{before}\n--- now\n{}\n{:#?}",
                now(),
                self.status()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(crate) fn name(text: &str) -> IfName {
    IfName::new(text).unwrap()
}

fn ownership() -> Ownership {
    Ownership {
        links: [name(DEVICE)].into(),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        legacy: Vec::new(),
    }
}

// --- entries --------------------------------------------------------------------------------------

/// The node's own entries.
pub(crate) fn own() -> Vec<Entry> {
    own_with(|_| ())
}

/// The node's own entries, with another device than usual.
pub(crate) fn own_with(change: impl FnOnce(&mut Link)) -> Vec<Entry> {
    let mut link = Link {
        name: name(DEVICE),
        kind: LinkKind::Vxlan(Vxlan {
            vni: 1,
            port: None,
            parent: name("eth0"),
            local: [192, 168, 100, 1].into(),
            learning: false,
            gbp: false,
        }),
        mac: Some(Mac([0x02, 0, 0, 0, 0, 0xff])),
        mtu: 1450,
    };
    change(&mut link);
    vec![
        Entry::Link(Box::new(link)),
        Entry::Address(Address { link: name(DEVICE), addr: "10.244.200.0/32".parse().unwrap() }),
        Entry::Sysctl(Sysctl {
            path: format!("net/ipv6/conf/{DEVICE}/accept_ra"),
            value: "0".into(),
        }),
    ]
}

pub(crate) fn peer(n: u32) -> Vec<Entry> {
    let link = name(DEVICE);
    let gateway: IpAddr = [10, 244, n as u8, 0].into();
    let mac = Mac([0x02, 0, 0, 0, 0, n as u8]);
    vec![
        Entry::Neighbour(Neighbour { link, ip: gateway, mac }),
        Entry::Fdb(Fdb { link, mac, dst: [192, 168, 100, n as u8 + 1].into() }),
        Entry::Route(Route {
            dst: format!("10.244.{n}.0/24").parse().unwrap(),
            metric: 0,
            via: Some(gateway),
            link,
            onlink: true,
        }),
    ]
}

// --- the kernel -----------------------------------------------------------------------------------

pub(crate) fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

/// Many `ip` commands in one go.
pub(crate) fn ip_batch(commands: &str) {
    let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The network card, and what it is plugged into.
pub(crate) fn plug_in_card() {
    ip("link add eth0 type veth peer name far0");
    ip("addr add 192.168.100.1/24 dev eth0");
    ip("link set far0 up");
    ip("link set eth0 up");
}

/// Makes a bridge, as the pods' one.
pub(crate) fn add_bridge(name: &str) {
    ip(&format!("link add {name} type bridge"));
    ip(&format!("link set {name} up"));
}

/// All that is to be seen of the network's device.
pub(crate) fn device() -> String {
    ip(&format!("-d link show dev {DEVICE}"))
}

/// It changes when the device is made anew.
pub(crate) fn device_index() -> String {
    let line = ip(&format!("-o link show dev {DEVICE}"));
    line.split(':').next().unwrap().to_owned()
}

/// Routes through the network's device.
pub(crate) fn routes() -> String {
    ip(&format!("route show dev {DEVICE}"))
}

pub(crate) fn neighbours() -> String {
    ip(&format!("neigh show dev {DEVICE} nud permanent"))
}

pub(crate) fn fdb() -> String {
    run("bridge", &format!("fdb show dev {DEVICE}"))
}

/// How many peers have all their entries in the kernel, and nobody else any.
pub(crate) fn assert_peers(count: usize) {
    for shown in [routes(), neighbours(), fdb()] {
        assert_eq!(shown.lines().count(), count, "{shown}");
    }
}

/// All that a flannel user would look at.
pub(crate) fn picture() -> String {
    let mut lines: Vec<String> = [
        ip(&format!("-o -d link show dev {DEVICE}")),
        ip(&format!("-o addr show dev {DEVICE} scope global")),
        ip("route show table main"),
        neighbours(),
        fdb(),
    ]
    .iter()
    .flat_map(|text| text.lines())
    .map(|line| line.trim_end().to_owned())
    .collect();
    // Its index changes when the device is made anew; so may the order of what was written again.
    lines[0] = lines[0].split_once(": ").unwrap().1.to_owned();
    if let Some(address) = lines.iter_mut().find(|line| line.contains("inet ")) {
        *address = address.split_once(": ").unwrap().1.to_owned();
    }
    lines.sort();
    lines.join("\n")
}
