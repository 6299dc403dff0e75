//! What the engine tells of the node.

use crate::support::{Node, ip, name, peer};

#[test]
fn facts_follow_the_node() {
    let node = Node::new();
    let mut facts = node.engine.facts.clone();
    let eth0 = facts.borrow_and_update().interface(name("eth0")).cloned().unwrap();
    assert_eq!(eth0.mtu, 1500);
    assert!(eth0.addresses.iter().any(|a| a.addr == "192.168.100.1/24".parse().unwrap()));
    ip("link set eth0 mtu 1400");
    ip("addr add 192.168.100.5/24 dev eth0");
    ip("route add default via 192.168.100.254");
    node.replace(vec![]);
    node.wait_until("the facts are what was done", || {
        let now = facts.borrow();
        let eth0 = now.interface(name("eth0")).unwrap();
        eth0.mtu == 1400
            && eth0.addresses.iter().filter(|a| a.addr.addr().is_ipv4()).count() == 2
            && now.default_routes.iter().any(|r| r.link == name("eth0") && !r.ipv6)
    });
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
fn what_the_host_does_to_packets_is_told_as_long_as_it_lasts() {
    let node = Node::with_peers(2);
    let hazards =
        || -> Vec<String> { node.status().hazards.iter().map(ToString::to_string).collect() };
    let wait = |what: &str, is: &dyn Fn(&[String]) -> bool| {
        node.wait_until(what, || is(&hazards()));
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

#[test]
fn a_hazard_ends_with_the_device_that_its_route_leads_over() {
    let node = Node::with_peers(2);
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    let is = |what: &str, told: bool| {
        node.wait_until(what, || node.status().hazards.is_empty() != told);
    };
    let vpn = || {
        ip("link add vpn0 type veth peer name vpn1");
        ip("link set vpn1 up");
        ip("link set vpn0 up");
        ip("addr add 172.16.0.1/24 dev vpn0");
    };
    is("nothing", false);
    // The kernel tells that the device is gone, and of the routes that went with it nothing. In the main table ...
    vpn();
    ip("route add 10.244.1.0/25 dev vpn0");
    is("a route over the device", true);
    ip("link del vpn0");
    is("the device is gone", false);
    // ... in another one ...
    vpn();
    ip("route add 10.244.0.0/16 dev vpn0 table 100");
    ip("rule add to 10.244.0.0/16 lookup 100");
    is("a table that leads over the device", true);
    ip("link del vpn0");
    is("the device of the table is gone", false);
    // ... and the same for a device that is only down, and for one that lost the address that a route needs.
    vpn();
    ip("route add 10.244.2.0/25 dev vpn0");
    is("a route over the device again", true);
    ip("link set vpn0 down");
    is("the device is down", false);
    ip("link set vpn0 up");
    ip("route add 10.244.2.0/25 dev vpn0 src 172.16.0.1");
    is("a route with a source", true);
    ip("addr del 172.16.0.1/24 dev vpn0");
    is("the source is gone", false);
}

#[test]
fn a_route_to_a_single_pod_is_not_a_hazard() {
    let node = Node::with_peers(2);
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    ip("link add cni0 type bridge");
    ip("addr add 10.244.9.1/24 dev cni0");
    ip("link set cni0 up");
    ip("link add pod0 type veth peer name pod1");
    ip("link set pod1 up");
    ip("link set pod0 master cni0 up");
    // As a test pod has it: the highest address of the subnet, with a route and a device of its own.
    ip("link add flannel-test0 type veth peer name flannel-tpod0");
    ip("link set flannel-tpod0 up");
    ip("link set flannel-test0 up");
    ip("route add 10.244.9.254/32 dev flannel-test0");
    // What is told after this one was looked at is told of all.
    ip("route add 10.244.1.0/25 dev eth0");
    node.wait_until("a hazard", || node.status().hazards.len() == 1);
    ip("route del 10.244.1.0/25");
    node.wait_until("none", || node.status().hazards.is_empty());
    for _ in 0..20 {
        node.runtime.block_on(flannel_wanted::Applier::compare(&node.engine)).unwrap();
        assert!(node.status().hazards.is_empty(), "{:#?}", node.status().hazards);
    }
}
