//! What is in the kernel before the engine starts.

use std::time::Duration;

use flannel_kernel::Engine;

use crate::support::{Node, assert_peers, device, ip, own, peer};

#[test]
fn a_device_of_another_make_in_its_place_is_replaced() {
    for other in ["bridge", "vxlan id 9 local 192.168.100.1 dev eth0 dstport 8472"] {
        let node = Node::new();
        ip(&format!("link add flannel.1 type {other}"));
        node.settle(vec![(0, own()), (1, peer(1))]);
        assert!(device().contains("vxlan id 1 "));
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
    node.settle(vec![(0, own())]);
    let links = ip("-o link show");
    assert!(!links.contains("flannel.7:") && links.contains("flannel.8:"), "{links}");
}

#[test]
fn a_new_engine_adopts_what_is_there_and_removes_what_nobody_wants() {
    let first = Node::with_peers(5);
    let index = ip("-o link show dev flannel.1");
    drop(first.engine);
    // It ends what it is doing, and would put back what the next one removes meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    let engine = Engine::<u32>::start(2).unwrap();
    let node = Node { engine, runtime: first.runtime };
    ip("route add 10.99.0.0/24 via 192.168.100.9 dev eth0 proto 244");
    node.settle((1..=3).map(|n| (n, peer(n))).chain([(0, own())]).collect());
    assert_eq!(ip("-o link show dev flannel.1"), index, "the device is the same one");
    assert_peers(3);
    assert!(ip("route show 10.99.0.0/24").contains("10.99.0.0/24"), "another network is not ours");
}
