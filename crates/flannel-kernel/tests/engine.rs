//! The engine against the real kernel, each test in a network namespace of its own. Needs root and
//! iproute2, and fails without.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use flannel_kernel::{
    Address, Blackhole, Engine, Entry, Fdb, IfName, Link, LinkKind, Mac, Neighbour, Offload,
    Ownership, Route, Sysctl, Vxlan,
};
use flannel_wanted::{Applier as _, Problem, Status};
use rustix::thread::{UnshareFlags, unshare_unsafe};

struct Node {
    engine: Engine<u32>,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    fn new() -> Self {
        // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("these tests make network namespaces: run them as root");
        ip("link add eth0 type veth peer name far0");
        ip("addr add 192.168.100.1/24 dev eth0");
        ip("addr add fd00:100::1/64 dev eth0 nodad");
        for link in ["lo", "eth0", "far0"] {
            ip(&format!("link set {link} up"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { engine: Engine::start(1).unwrap(), runtime }
    }

    fn replace(&self, desired: Vec<(u32, Vec<Entry>)>) -> Status {
        self.runtime.block_on(self.engine.replace(ownership(), desired)).unwrap()
    }

    fn update(&self, owner: u32, entries: Vec<Entry>) -> Status {
        self.runtime.block_on(self.engine.update(vec![(owner, entries)])).unwrap()
    }

    fn status(&self) -> Status {
        self.runtime.block_on(self.engine.status()).unwrap()
    }

    /// A node with its device and `peers` peers, all of it in the kernel.
    fn meshed(peers: u32) -> Self {
        let node = Self::new();
        let desired =
            std::iter::once((0, base())).chain((1..=peers).map(|n| (n, peer(n)))).collect();
        let status = node.replace(desired);
        assert!(status.is_settled(), "{status:#?}");
        node
    }
}

fn name(text: &str) -> IfName {
    IfName::new(text).unwrap()
}

fn ownership() -> Ownership {
    Ownership {
        links: [name("flannel.1")].into(),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        legacy: Vec::new(),
    }
}

fn base() -> Vec<Entry> {
    vec![
        Entry::Link(Box::new(Link {
            name: name("flannel.1"),
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
        })),
        Entry::Address(Address {
            link: name("flannel.1"),
            addr: "10.244.200.0/32".parse().unwrap(),
        }),
        Entry::Sysctl(Sysctl {
            path: "net/ipv6/conf/flannel.1/accept_ra".into(),
            value: "0".into(),
        }),
    ]
}

fn peer(n: u32) -> Vec<Entry> {
    let link = name("flannel.1");
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

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

/// All that a flannel user would look at.
fn picture() -> String {
    let mut lines: Vec<String> = [
        ip("-o -d link show dev flannel.1"),
        ip("-o addr show dev flannel.1 scope global"),
        ip("route show table main"),
        ip("neigh show dev flannel.1 nud permanent"),
        run("bridge", "fdb show dev flannel.1"),
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

/// Whatever was done to it, the kernel shows the same picture again, and soon.
fn assert_repaired(node: &Node, what: &str, vandalise: impl FnOnce()) {
    let before = picture();
    vandalise();
    let start = Instant::now();
    loop {
        let now = std::panic::catch_unwind(picture).unwrap_or_default();
        if now == before {
            return;
        }
        if start.elapsed() > Duration::from_secs(5) {
            panic!(
                "{what} was not repaired\n--- before\n{before}\n--- now\n{now}\n{:#?}",
                node.status()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn entries_look_as_flannel_users_know_them() {
    let _node = Node::meshed(1);
    let link = ip("-d link show dev flannel.1");
    for part in [
        "mtu 1450",
        "02:00:00:00:00:ff",
        "vxlan id 1 local 192.168.100.1 dev eth0",
        "nolearning",
        "dstport 8472",
        ",UP,",
    ] {
        assert!(link.contains(part), "no '{part}' in {link}");
    }
    assert!(ip("addr show dev flannel.1").contains("inet 10.244.200.0/32 scope global flannel.1"));
    assert_eq!(
        ip("route show 10.244.1.0/24").trim_end(),
        "10.244.1.0/24 via 10.244.1.0 dev flannel.1 proto 244 onlink"
    );
    assert_eq!(
        ip("neigh show dev flannel.1 nud permanent").trim_end(),
        "10.244.1.0 lladdr 02:00:00:00:00:01 PERMANENT"
    );
    assert!(
        run("bridge", "fdb show dev flannel.1")
            .contains("02:00:00:00:00:01 dst 192.168.100.2 self permanent")
    );
}

#[test]
fn every_kind_of_vandalism_is_repaired() {
    let node = Node::meshed(20);
    let vandalism = [
        ("a deleted route", "ip route del 10.244.3.0/24"),
        ("a replaced route", "ip route replace 10.244.3.0/24 via 192.168.100.77"),
        ("a route beside ours", "ip route append 10.244.3.0/24 via 192.168.100.77"),
        (
            "a route that is nobody's",
            "ip route add 10.244.99.0/24 via 10.244.99.0 dev flannel.1 onlink",
        ),
        ("flushed routes", "ip route flush dev flannel.1"),
        ("a deleted neighbour", "ip neigh del 10.244.3.0 dev flannel.1"),
        (
            "a rewritten neighbour",
            "ip neigh replace 10.244.3.0 lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent",
        ),
        (
            "a neighbour that is nobody's",
            "ip neigh add 10.244.98.0 lladdr 02:00:00:00:00:98 dev flannel.1 nud permanent",
        ),
        ("a deleted fdb entry", "bridge fdb del 02:00:00:00:00:03 dev flannel.1 dst 192.168.100.4"),
        (
            "a rewritten fdb entry",
            "bridge fdb replace 02:00:00:00:00:03 dev flannel.1 dst 192.168.100.99 self permanent",
        ),
        (
            "a second destination",
            "bridge fdb append 02:00:00:00:00:03 dev flannel.1 dst 192.168.100.99 self permanent",
        ),
        ("a deleted address", "ip addr del 10.244.200.0/32 dev flannel.1"),
        ("a foreign address", "ip addr add 10.244.201.0/32 dev flannel.1"),
        ("another MAC", "ip link set flannel.1 address 02:00:00:00:00:aa"),
        ("another MTU", "ip link set flannel.1 mtu 1300"),
        ("the device down", "ip link set flannel.1 down"),
        ("the device deleted", "ip link del flannel.1"),
        ("its parent down and up", "ip link set eth0 down; ip link set eth0 up"),
    ];
    for (what, commands) in vandalism {
        assert_repaired(&node, what, || {
            for command in commands.split(';') {
                let command = command.trim();
                let (program, arguments) = command.split_once(' ').unwrap();
                run(program, arguments);
            }
        });
    }
}

#[test]
fn a_device_of_another_make_in_its_place_is_replaced() {
    for other in ["bridge", "vxlan id 9 local 192.168.100.1 dev eth0 dstport 8472"] {
        let node = Node::new();
        ip(&format!("link add flannel.1 type {other}"));
        let status = node.replace(vec![(0, base()), (1, peer(1))]);
        assert!(status.is_settled(), "{status:#?}");
        assert!(ip("-d link show dev flannel.1").contains("vxlan id 1 "));
    }
}

#[test]
fn a_device_of_an_earlier_config_is_removed_and_another_networks_is_not() {
    let node = Node::new();
    for (vni, address) in [(7, "10.244.1.0/32"), (8, "10.99.1.0/32")] {
        ip(&format!(
            "link add flannel.{vni} type vxlan id {vni} local 192.168.100.1 dev eth0 dstport 8472"
        ));
        ip(&format!("addr add {address} dev flannel.{vni}"));
    }
    assert!(node.replace(vec![(0, base())]).is_settled());
    let links = ip("-o link show");
    assert!(!links.contains("flannel.7:") && links.contains("flannel.8:"), "{links}");
}

#[test]
fn a_new_engine_adopts_what_is_there_and_removes_what_nobody_wants() {
    let first = Node::meshed(5);
    let index = ip("-o link show dev flannel.1");
    drop(first.engine);
    // It ends what it is doing, and would put back what the next one removes meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    let engine = Engine::<u32>::start(2).unwrap();
    let node = Node { engine, runtime: first.runtime };
    ip("route add 10.99.0.0/24 via 192.168.100.9 dev eth0 proto 244");
    let status = node.replace((1..=3).map(|n| (n, peer(n))).chain([(0, base())]).collect());
    assert!(status.is_settled(), "{status:#?}");
    assert_eq!(ip("-o link show dev flannel.1"), index, "the device is the same one");
    let routes = ip("route show dev flannel.1");
    assert_eq!(routes.lines().count(), 3, "{routes}");
    assert_eq!(ip("neigh show dev flannel.1 nud permanent").lines().count(), 3);
    assert_eq!(run("bridge", "fdb show dev flannel.1").lines().count(), 3);
    assert!(ip("route show 10.99.0.0/24").contains("10.99.0.0/24"), "another network is not ours");
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let node = Node::meshed(2);
    ip("route add 10.244.77.0/24 via 192.168.100.9 dev eth0");
    ip("addr add 172.16.0.1/32 dev flannel.1");
    ip("neigh add 192.168.100.9 lladdr 02:00:00:00:00:77 dev eth0 nud permanent");
    node.replace(vec![(0, base()), (1, peer(1))]);
    assert!(ip("route show 10.244.77.0/24").contains("192.168.100.9"));
    assert!(ip("addr show dev flannel.1").contains("172.16.0.1"));
    assert!(ip("neigh show dev eth0 nud permanent").contains("192.168.100.9"));
}

#[test]
fn an_entry_that_fails_is_named_and_does_not_hold_up_the_others() {
    let node = Node::meshed(1);
    let unreachable = Entry::Route(Route {
        dst: "10.244.50.0/24".parse().unwrap(),
        metric: 0,
        via: Some([10, 1, 1, 1].into()),
        link: name("eth0"),
        onlink: false,
    });
    let status = node.runtime.block_on(node.engine.update(vec![
        (50, vec![unreachable.clone()]),
        (2, peer(2)),
        (3, peer(3)),
    ]));
    let status = status.unwrap();
    assert_eq!(status.problems.len(), 1, "{status:#?}");
    assert_eq!(status.problems[0].entry, unreachable.to_string());
    assert!(status.problems[0].reason.contains("Nexthop has invalid gateway"), "{status:#?}");
    assert_eq!(ip("route show dev flannel.1").lines().count(), 3);

    ip("addr add 10.1.1.2/24 dev eth0");
    let start = Instant::now();
    while !node.status().is_settled() {
        assert!(start.elapsed() < Duration::from_secs(5), "it must be retried at once");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_address_that_is_deleted_again_comes_back_again() {
    let node = Node::meshed(1);
    for _ in 0..3 {
        assert_repaired(&node, "the address", || {
            ip("addr del 10.244.200.0/32 dev flannel.1");
        });
    }
}

#[test]
fn what_changes_and_goes_within_one_batch_leaves_nothing_behind() {
    let node = Node::meshed(3);
    let moved = |n: u32| -> Vec<Entry> {
        let elsewhere = |entry| match entry {
            Entry::Fdb(fdb) => Entry::Fdb(Fdb { dst: [192, 168, 100, 99].into(), ..fdb }),
            Entry::Route(route) => {
                let (via, link) = (Some([192, 168, 100, 99].into()), name("eth0"));
                Entry::Route(Route { via, link, onlink: false, ..route })
            }
            other => other,
        };
        peer(n).into_iter().map(elsewhere).collect()
    };
    let changes = vec![
        // Moves, and is gone.
        (1, moved(1)),
        (1, vec![]),
        // Another one wants the same; both are gone.
        (12, moved(2)),
        (2, vec![]),
        (12, vec![]),
        // Is gone, and is back.
        (3, vec![]),
        (3, peer(3)),
    ];
    let status = node.runtime.block_on(node.engine.update(changes)).unwrap();
    assert!(status.is_settled(), "{status:#?}");
    let routes = ip("route show proto 244");
    assert_eq!(routes.lines().count(), 1, "{routes}");
    assert!(routes.contains("10.244.3.0/24"), "{routes}");
    let fdb = run("bridge", "fdb show dev flannel.1");
    assert_eq!(fdb.lines().count(), 1, "{fdb}");
    assert_eq!(ip("neigh show dev flannel.1 nud permanent").lines().count(), 1);
}

#[test]
fn a_device_waits_for_its_parent_and_comes_back_with_it() {
    let node = Node::meshed(3);
    assert_repaired(&node, "a NIC deleted and added again", || {
        ip("link del eth0");
        std::thread::sleep(Duration::from_millis(200));
        let status = node.status();
        assert!(
            status.problems.iter().any(|problem| problem.reason.contains("waiting for eth0")),
            "{status:#?}"
        );
        ip("link add eth0 type veth peer name far0");
        ip("addr add 192.168.100.1/24 dev eth0");
        ip("link set far0 up");
        ip("link set eth0 up");
    });
}

#[test]
fn a_changed_local_address_keeps_the_device_and_its_entries() {
    let node = Node::meshed(3);
    ip("addr add 192.168.100.42/24 dev eth0");
    let mut entries = base();
    if let Entry::Link(link) = &mut entries[0] {
        match &mut link.kind {
            LinkKind::Vxlan(vxlan) => vxlan.local = [192, 168, 100, 42].into(),
        }
    }
    let index = ip("-o link show dev flannel.1");
    let status = node.update(0, entries);
    assert!(status.is_settled(), "{status:#?}");
    assert!(ip("-d link show dev flannel.1").contains("local 192.168.100.42"));
    assert_eq!(ip("-o link show dev flannel.1"), index);
    assert_eq!(ip("route show dev flannel.1").lines().count(), 3);
}

#[test]
fn a_removed_owner_takes_its_entries_along() {
    let node = Node::meshed(3);
    assert!(node.update(2, Vec::new()).is_settled());
    assert_eq!(ip("route show dev flannel.1").lines().count(), 2);
    assert_eq!(ip("neigh show dev flannel.1 nud permanent").lines().count(), 2);
    assert_eq!(run("bridge", "fdb show dev flannel.1").lines().count(), 2);
    assert!(node.update(0, Vec::new()).problems.len() <= 6);
    assert!(!ip("link show").contains("flannel.1"), "and the device goes with the node's own");
}

#[test]
fn checksum_offload_is_switched_off_and_stays_off() {
    let node = Node::meshed(1);
    let mut entries = base();
    let offload = Entry::Offload(Offload { link: name("flannel.1"), tx_checksum: false });
    entries.push(offload);
    let status = node.update(0, entries);
    assert!(status.is_settled(), "{status:#?}");
    ip("link del flannel.1");
    std::thread::sleep(Duration::from_millis(300));
    assert!(node.status().is_settled(), "{:#?}", node.status());
}

#[test]
fn facts_follow_the_node() {
    let node = Node::new();
    let mut facts = node.engine.facts();
    let eth0 = facts.borrow_and_update().interface(name("eth0")).cloned().unwrap();
    assert_eq!(eth0.mtu, 1500);
    assert!(eth0.addresses.iter().any(|a| a.addr == "192.168.100.1/24".parse().unwrap()));
    ip("link set eth0 mtu 1400");
    ip("addr add 192.168.100.5/24 dev eth0");
    ip("route add default via 192.168.100.254");
    node.replace(vec![]);
    let start = Instant::now();
    loop {
        let now = facts.borrow_and_update().clone();
        let eth0 = now.interface(name("eth0")).unwrap();
        let default = now.default_routes.iter().any(|r| r.link == name("eth0") && !r.ipv6);
        if eth0.mtu == 1400
            && eth0.addresses.iter().filter(|a| a.addr.addr().is_ipv4()).count() == 2
            && default
        {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{now:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn paths_are_looked_up() {
    let node = Node::new();
    ip("route add 172.20.0.0/16 via 192.168.100.254");
    let ask = ["192.168.100.9", "172.20.1.1", "203.0.113.1"].map(|a| a.parse().unwrap()).to_vec();
    let paths = node.runtime.block_on(node.engine.lookup(ask)).unwrap();
    assert_eq!(paths[0].as_ref().unwrap().gateway, None);
    assert_eq!(paths[0].as_ref().unwrap().link, name("eth0"));
    assert_eq!(paths[1].as_ref().unwrap().gateway, Some([192, 168, 100, 254].into()));
    assert_eq!(paths[2], None);
}

#[test]
fn a_connected_route_is_never_replaced_whoever_comes_first() {
    let node = Node::meshed(2);
    let wait = |what: &str, is_so: &dyn Fn(&str) -> bool| {
        let begin = Instant::now();
        while !is_so(&ip("route show 10.244.1.0/24")) {
            assert!(begin.elapsed() < Duration::from_secs(10), "{what}: {}", ip("route"));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let alone = |routes: &str| routes.contains("dev cni0") && !routes.contains("flannel.1");
    ip("link add cni0 type bridge");
    ip("link set cni0 up");
    for _ in 0..20 {
        ip("addr add 10.244.1.1/24 dev cni0");
        wait("it came later", &alone);
        let status = node.status();
        let Problem { entry, reason: why, .. } = status.problems.first().expect("it is named");
        assert!(entry.contains("10.244.1.0/24") && why.contains("cni0"), "{status:?}");
        // Written anew it stays out as well.
        node.update(1, vec![]);
        node.update(1, peer(1));
        assert!(alone(&ip("route show 10.244.1.0/24")), "{}", ip("route"));
        ip("addr del 10.244.1.1/24 dev cni0");
        wait("it is gone", &|routes| routes.contains("dev flannel.1"));
    }
    assert!(node.status().is_settled(), "{:?}", node.status());
}

#[test]
fn two_managers_fighting_over_an_entry_end_in_a_pause() {
    let node = Node::meshed(1);
    let fight = Instant::now();
    let mut undone = 0;
    while fight.elapsed() < Duration::from_secs(2) {
        let deleted = Command::new("ip")
            .args(["route", "del", "10.244.1.0/24"])
            .output()
            .unwrap()
            .status
            .success();
        undone += u32::from(deleted);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!((10..20).contains(&undone), "pauses, not a busy loop: undone {undone} times");
    let start = Instant::now();
    while !node.status().is_settled() {
        assert!(start.elapsed() < Duration::from_secs(10), "in the end ours is back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_blackhole_route_is_kept_and_gives_way_to_the_pod_bridge() {
    let node = Node::meshed(1);
    let mut entries = base();
    for dst in ["10.244.200.0/24", "fd00:244:0:c8::/64"] {
        let dst = dst.parse().unwrap();
        entries.push(Entry::Blackhole(Blackhole { dst, metric: 65535 }));
    }
    let status = node.update(0, entries);
    assert!(status.is_settled(), "{status:#?}");
    assert_repaired(&node, "a deleted blackhole", || {
        ip("route del blackhole 10.244.200.0/24 metric 65535");
    });
    assert!(ip("-6 route show").contains("blackhole fd00:244:0:c8::/64"));
    ip("link add cni0 type bridge");
    ip("addr add 10.244.200.1/24 dev cni0");
    ip("link set cni0 up");
    assert!(ip("route get 10.244.200.7").contains("dev cni0"));
    node.update(0, base());
    assert!(!ip("-6 route show").contains("blackhole"));
    assert!(!ip("route show").contains("blackhole"));
}

#[test]
fn a_change_that_the_kernel_could_not_announce_is_found_all_the_same() {
    let node = Node::meshed(3);
    let before = picture();
    // While the engine is kept busy, more happens than the kernel queues for it ...
    let busy = node.engine.clone();
    let asking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let addresses = vec![IpAddr::from([192, 168, 100, 9]); 800_000];
        runtime.block_on(busy.lookup(addresses)).unwrap();
    });
    ip("link add flood0 type bridge");
    ip("link set flood0 up");
    let flood: String = (0..60_000)
        .map(|n| {
            format!(
                "neigh add 172.16.{}.{} lladdr 02:00:00:00:00:01 dev flood0 nud permanent\n",
                n >> 8,
                n & 255
            )
        })
        .collect();
    batch(&flood);
    // ... so that nobody is told of this.
    ip("route del 10.244.2.0/24");
    asking.join().unwrap();
    let start = Instant::now();
    while picture() != before {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", picture());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(node.status().overflows > 0, "the flood was too small to prove anything");
}

/// Many `ip` commands in one go.
fn batch(commands: &str) {
    use std::io::Write;
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// As a network does that has grown beyond what has one metric for all.
fn with_metric(mut entries: Vec<Entry>, metric: u32) -> Vec<Entry> {
    for entry in &mut entries {
        if let Entry::Route(route) = entry {
            route.metric = metric;
        }
    }
    entries
}

#[test]
fn a_route_with_another_metric_takes_the_place_of_the_old_one_and_stays() {
    let node = Node::meshed(2);
    let all = |metric| vec![(0, base()), (1, with_metric(peer(1), metric)), (2, peer(2))];
    for metric in [100, 0, 355, 100, 0] {
        assert!(node.replace(all(metric)).is_settled());
        let told = if metric == 0 { String::new() } else { format!(" metric {metric}") };
        let route = format!("10.244.1.0/24 via 10.244.1.0 dev flannel.1 proto 244{told} onlink");
        let routes = ip("route show 10.244.1.0/24").replace("  ", " ");
        assert_eq!(routes.trim(), route);
    }
    // Somebody has removed the old one just before, or the kernel never had it.
    for metric in [100, 0, 100] {
        let former = if metric == 0 { 100 } else { 0 };
        run("ip", &format!("route del 10.244.1.0/24 metric {former}"));
        assert!(node.replace(all(metric)).is_settled());
        let begin = Instant::now();
        while ip("route show 10.244.1.0/24").lines().count() != 1 {
            assert!(begin.elapsed() < Duration::from_secs(5), "{}", ip("route show"));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_removal_that_hits_another_route_of_ours_is_made_good() {
    let node = Node::meshed(1);
    let blackhole =
        Entry::Blackhole(Blackhole { dst: "10.244.1.0/24".parse().unwrap(), metric: 65535 });
    node.update(7, vec![blackhole]);
    // Gone already when the engine removes it: to the kernel, 0 is any metric.
    let gone = node.engine.update(vec![(1, Vec::new())]);
    ip("route del 10.244.1.0/24 metric 0 proto 244 via 10.244.1.0");
    node.runtime.block_on(gone).unwrap();
    let begin = Instant::now();
    while ip("route show 10.244.1.0/24").trim() != "blackhole 10.244.1.0/24 proto 244 metric 65535"
    {
        assert!(begin.elapsed() < Duration::from_secs(5), "{}", ip("route show"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_ipv6_route_in_the_way_of_its_own_successor_goes() {
    let node = Node::meshed(1);
    ip("addr add fd00:244:0:1::/128 dev flannel.1 nodad");
    let (dst, vtep): (ipnet::IpNet, IpAddr) =
        ("fd00:244:0:2::/64".parse().unwrap(), "fd00:244:0:2::".parse().unwrap());
    let route = |via, link, onlink| {
        vec![Entry::Route(Route { dst, metric: 1024, via: Some(via), link: name(link), onlink })]
    };
    // The kernel refuses a gateway that the old route leads elsewhere.
    for _ in 0..2 {
        assert!(node.update(2, route("fd00:100::2".parse().unwrap(), "eth0", false)).is_settled());
        node.update(2, route(vtep, "flannel.1", true));
        let begin = Instant::now();
        while !ip("-6 route show fd00:244:0:2::/64").contains("dev flannel.1") {
            assert!(begin.elapsed() < Duration::from_secs(5), "{:#?}", node.status());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn what_the_kernel_will_not_do_is_told_and_not_tried_without_end() {
    let node = Node::new();
    let mut entries = base();
    if let Entry::Link(link) = &mut entries[0] {
        link.mtu = 8950;
    }
    let status = node.replace(vec![(0, entries), (1, peer(1))]);
    let index = || ip("-o link show flannel.1").split(':').next().unwrap().to_owned();
    let first = index();
    assert_eq!(status.bad, 1, "{status:#?}");
    let Problem { entry, reason: why, .. } = &status.problems[0];
    assert!(entry.starts_with("device "), "{status:#?}");
    assert!(why.contains("its MTU is 1450, not 8950"), "{why}");
    // Whatever makes the engine look at it again does not make it anew; and all that stands on it stands.
    ip("link set flannel.1 mtu 1000");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(index(), first);
    assert_eq!(node.status().bad, 1, "{:#?}", node.status());
    assert!(ip("route show").contains("10.244.1.0/24 via 10.244.1.0 dev flannel.1"));
    // The card carries more now.
    ip("link set far0 mtu 9000");
    ip("link set eth0 mtu 9000");
    let begin = Instant::now();
    while !node.status().is_settled() {
        assert!(begin.elapsed() < Duration::from_secs(5), "{:#?}", node.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(ip("-o link show flannel.1").contains("mtu 8950"));
    assert_eq!(index(), first);
}

#[test]
fn what_the_host_does_to_packets_is_told_as_long_as_it_lasts() {
    let node = Node::meshed(2);
    let hazards =
        || -> Vec<String> { node.status().hazards.iter().map(ToString::to_string).collect() };
    let wait = |what: &str, is: &dyn Fn(&[String]) -> bool| {
        let begin = Instant::now();
        while !is(&hazards()) {
            assert!(begin.elapsed() < Duration::from_secs(5), "{what}: {:?}", hazards());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let forwarding = |value: &str| std::fs::write("/proc/sys/net/ipv4/ip_forward", value).unwrap();
    forwarding("1");
    wait("nothing", &|all| all.is_empty());
    forwarding("0");
    wait("forwarding", &|all| all.len() == 1 && all[0].starts_with("net.ipv4.ip_forward is 0"));
    forwarding("1");
    wait("nothing", &|all| all.is_empty());
    for (deed, undo, word) in [
        (
            "route add 10.244.1.0/25 dev eth0",
            "route del 10.244.1.0/25",
            "route 10.244.1.0/25 dev eth0",
        ),
        (
            "route add unreachable 10.244.1.9/32",
            "route del unreachable 10.244.1.9",
            "10.244.1.9/32",
        ),
        (
            "rule add to 10.244.2.0/24 unreachable",
            "rule del to 10.244.2.0/24",
            "10.244.2.0/24 go nowhere",
        ),
        (
            "addr add 10.244.2.9/32 dev far0",
            "addr del 10.244.2.9/32 dev far0",
            "10.244.2.9/32 of far0",
        ),
    ] {
        ip(deed);
        wait(deed, &|all| all.len() == 1 && all[0].contains(word));
        ip(undo);
        wait(undo, &|all| all.is_empty());
    }
    // A peer that comes later, to a subnet that is led elsewhere already.
    ip("route add 10.244.3.0/25 dev eth0");
    node.update(3, peer(3));
    wait("a peer", &|all| all.len() == 1 && all[0].contains("10.244.3.0/24"));
    node.update(3, Vec::new());
    wait("nothing", &|all| all.is_empty());
}
