//! Devices: their parent, what is changed in place, and what the kernel refuses.

use std::time::Duration;

use flannel_entries::kernel::{Entry, LinkKind, Offload};
use flannel_wanted::Problem;

use crate::support::{
    DEVICE, Node, device, device_index, ip, name, own, own_with, peer, plug_in_card, routes,
};

#[test]
fn a_device_waits_for_its_parent_and_comes_back_with_it() {
    let node = Node::with_peers(3);
    node.assert_repaired("a NIC deleted and added again", || {
        ip("link del eth0");
        node.wait_until("it is said to wait", || {
            node.status().problems.iter().any(|it| it.reason.contains("waiting for eth0"))
        });
        plug_in_card();
    });
}

#[test]
fn a_changed_local_address_keeps_the_device_and_its_entries() {
    let node = Node::with_peers(3);
    ip("addr add 192.168.100.42/24 dev eth0");
    let entries = own_with(|link| match &mut link.kind {
        LinkKind::Vxlan(vxlan) => vxlan.local = [192, 168, 100, 42].into(),
        other => panic!("{other}"),
    });
    let index = device_index();
    let status = node.update(0, entries);
    assert!(status.is_settled(), "{status:#?}");
    assert!(device().contains("local 192.168.100.42"));
    assert_eq!(device_index(), index);
    assert_eq!(routes().lines().count(), 3);
}

#[test]
fn checksum_offload_is_switched_off_and_stays_off() {
    let node = Node::with_peers(1);
    let mut entries = own();
    let offload = Entry::Offload(Offload { link: name(DEVICE), tx_checksum: false });
    entries.push(offload);
    let status = node.update(0, entries);
    assert!(status.is_settled(), "{status:#?}");
    ip("link del flannel.1");
    node.wait_until("a new device, with all that stands on it", || {
        ip("-o link show").contains(DEVICE) && node.status().is_settled()
    });
}

#[test]
fn what_the_kernel_will_not_do_is_told_and_not_tried_without_end() {
    let node = Node::new();
    let status = node.replace(vec![(0, own_with(|link| link.mtu = 8950)), (1, peer(1))]);
    let first = device_index();
    assert_eq!(status.bad, 1, "{status:#?}");
    let Problem { entry, reason: why, .. } = &status.problems[0];
    assert!(entry.starts_with("device "), "{status:#?}");
    assert!(why.contains("its MTU is 1450, not 8950"), "{why}");
    // Whatever makes the engine look at it again does not make it anew; and all that stands on it stands.
    ip("link set flannel.1 mtu 1000");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(device_index(), first);
    assert_eq!(node.status().bad, 1, "{:#?}", node.status());
    assert!(ip("route show").contains("10.244.1.0/24 via 10.244.1.0 dev flannel.1"));
    // The card carries more now.
    ip("link set far0 mtu 9000");
    ip("link set eth0 mtu 9000");
    node.wait_until("the wanted MTU", || node.status().is_settled());
    assert!(device().contains("mtu 8950"));
    assert_eq!(device_index(), first);
}
