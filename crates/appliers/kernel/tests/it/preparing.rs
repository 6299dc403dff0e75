//! What is written before all that is wanted is known.

use crate::support::{Node, assert_peers, ip, own, peer};

fn has_route(n: u32) -> bool {
    ip(&format!("route show 10.244.{n}.0/24")).contains("dev flannel.1")
}

#[test]
fn what_is_prepared_is_in_the_kernel_before_the_whole_is_declared_and_stays() {
    let node = Node::new();
    node.engine.prepare(vec![(0, own()), (1, peer(1))]);
    node.engine.prepare(vec![(2, peer(2))]);
    node.wait_until("the prepared peers are there", || has_route(1) && has_route(2));
    let index = ip("-o link show dev flannel.1");
    node.settle((1..=3).map(|n| (n, peer(n))).chain([(0, own())]).collect());
    assert_eq!(ip("-o link show dev flannel.1"), index, "the device is the same one");
    assert_peers(3);
}

#[test]
fn what_is_prepared_and_not_declared_is_removed_and_so_is_what_was_there_before() {
    let node = Node::new();
    ip("route add 10.244.9.0/24 via 192.168.100.9 dev eth0 proto 244");
    node.engine.prepare(vec![(0, own()), (1, peer(1)), (2, peer(2))]);
    node.wait_until("the prepared peers are there", || has_route(1) && has_route(2));
    let stale = || ip("route show 10.244.9.0/24").contains("10.244.9.0/24");
    assert!(stale(), "what is ours is not known yet");
    node.settle(vec![(0, own()), (1, peer(1))]);
    assert_peers(1);
    assert!(!stale());
}

#[test]
fn what_is_prepared_otherwise_than_it_is_declared_is_put_right() {
    let node = Node::new();
    let other = crate::support::own_with(|link| link.mtu = 1300);
    node.engine.prepare(vec![(0, other), (1, peer(2))]);
    node.wait_until("the prepared peer is there", || has_route(2));
    node.settle(vec![(0, own()), (1, peer(1))]);
    assert_peers(1);
    assert!(ip("link show dev flannel.1").contains("mtu 1450"));
}

#[test]
fn what_was_prepared_is_repaired_once_the_whole_is_declared() {
    let node = Node::new();
    let all = || vec![(0, own()), (1, peer(1)), (2, peer(2))];
    node.engine.prepare(all());
    node.wait_until("the prepared peers are there", || has_route(1) && has_route(2));
    ip("route del 10.244.1.0/24");
    node.settle(all());
    node.wait_until("what was lost before is found", || has_route(1));
    node.assert_repaired("a deleted route", || drop(ip("route del 10.244.2.0/24")));
    node.assert_repaired("a deleted neighbour", || {
        ip("neigh del 10.244.1.0 dev flannel.1");
    });
}
