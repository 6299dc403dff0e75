//! What users of flannel see with `ip` and `bridge`, and that somebody else's entries stay.

use flannel_entries::kernel::{Entry, Fdb, Route};
use flannel_wanted::Applier as _;

use crate::support::{Node, assert_peers, device, fdb, ip, name, neighbours, own, peer};

#[test]
fn entries_look_as_flannel_users_know_them() {
    let _node = Node::with_peers(1);
    let link = device();
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
    assert_eq!(neighbours().trim_end(), "10.244.1.0 lladdr 02:00:00:00:00:01 PERMANENT");
    assert!(fdb().contains("02:00:00:00:00:01 dst 192.168.100.2 self permanent"));
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let node = Node::with_peers(2);
    ip("route add 10.244.77.0/24 via 192.168.100.9 dev eth0");
    ip("addr add 172.16.0.1/32 dev flannel.1");
    ip("neigh add 192.168.100.9 lladdr 02:00:00:00:00:77 dev eth0 nud permanent");
    node.replace(vec![(0, own()), (1, peer(1))]);
    assert!(ip("route show 10.244.77.0/24").contains("192.168.100.9"));
    assert!(ip("addr show dev flannel.1").contains("172.16.0.1"));
    assert!(ip("neigh show dev eth0 nud permanent").contains("192.168.100.9"));
}

#[test]
fn a_removed_owner_takes_its_entries_along() {
    let node = Node::with_peers(3);
    assert!(node.update(2, Vec::new()).is_settled());
    assert_peers(2);
    assert!(node.update(0, Vec::new()).problems.len() <= 6);
    assert!(!ip("link show").contains("flannel.1"), "and the device goes with the node's own");
}

#[test]
fn what_changes_and_goes_within_one_batch_leaves_nothing_behind() {
    let node = Node::with_peers(3);
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
    assert_peers(1);
}
