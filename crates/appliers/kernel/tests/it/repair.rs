//! What somebody else has undone.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Node, add_bridge, ip, ip_batch, picture, run};

#[test]
fn every_kind_of_vandalism_is_repaired() {
    let node = Node::with_peers(20);
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
        node.assert_repaired(what, || {
            for command in commands.split(';') {
                let command = command.trim();
                let (program, arguments) = command.split_once(' ').unwrap();
                run(program, arguments);
            }
        });
    }
}

#[test]
fn an_address_that_is_deleted_again_comes_back_again() {
    let node = Node::with_peers(1);
    for _ in 0..3 {
        node.assert_repaired("the address", || {
            ip("addr del 10.244.200.0/32 dev flannel.1");
        });
    }
}

#[test]
fn two_managers_fighting_over_an_entry_end_in_a_pause() {
    let node = Node::with_peers(1);
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
    node.wait_until("in the end ours is back", || node.status().is_settled());
}

#[test]
fn a_change_that_the_kernel_could_not_announce_is_found_all_the_same() {
    let node = Node::with_peers(3);
    let before = picture();
    // While the engine is kept busy, more happens than the kernel queues for it ...
    let busy = node.engine.clone();
    let asking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let addresses = vec![IpAddr::from([192, 168, 100, 9]); 800_000];
        runtime.block_on(busy.lookup(addresses)).unwrap();
    });
    add_bridge("flood0");
    let flood: String = (0..60_000)
        .map(|n| {
            format!(
                "neigh add 172.16.{}.{} lladdr 02:00:00:00:00:01 dev flood0 nud permanent\n",
                n >> 8,
                n & 255
            )
        })
        .collect();
    ip_batch(&flood);
    // ... so that nobody is told of this.
    ip("route del 10.244.2.0/24");
    asking.join().unwrap();
    node.wait_until("the picture of before", || picture() == before);
    assert!(node.status().overflows > 0, "the flood was too small to prove anything");
}
