//! Routes that meet others of the same destination, and routes that the kernel refuses.

use std::net::IpAddr;

use flannel_entries::kernel::{Blackhole, Entry, Route};
use flannel_wanted::{Applier as _, Problem};

use crate::support::{Node, add_bridge, ip, name, own, peer, routes, run};

#[test]
fn an_entry_that_fails_is_named_and_does_not_hold_up_the_others() {
    let node = Node::with_peers(1);
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
    assert_eq!(routes().lines().count(), 3);

    ip("addr add 10.1.1.2/24 dev eth0");
    node.wait_until("it is tried again", || node.status().is_settled());
}

#[test]
fn a_connected_route_is_never_replaced_whoever_comes_first() {
    let node = Node::with_peers(2);
    let wait = |what: &str, is_so: &dyn Fn(&str) -> bool| {
        node.wait_until(what, || is_so(&ip("route show 10.244.1.0/24")));
    };
    let alone = |routes: &str| routes.contains("dev cni0") && !routes.contains("flannel.1");
    add_bridge("cni0");
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
fn a_blackhole_route_is_kept_and_gives_way_to_the_pod_bridge() {
    let node = Node::with_peers(1);
    let mut entries = own();
    for dst in ["10.244.200.0/24", "fd00:244:0:c8::/64"] {
        let dst = dst.parse().unwrap();
        entries.push(Entry::Blackhole(Blackhole { dst, metric: 65535 }));
    }
    let status = node.update(0, entries);
    assert!(status.is_settled(), "{status:#?}");
    node.assert_repaired("a deleted blackhole", || {
        ip("route del blackhole 10.244.200.0/24 metric 65535");
    });
    assert!(ip("-6 route show").contains("blackhole fd00:244:0:c8::/64"));
    ip("link add cni0 type bridge");
    ip("addr add 10.244.200.1/24 dev cni0");
    ip("link set cni0 up");
    assert!(ip("route get 10.244.200.7").contains("dev cni0"));
    node.update(0, own());
    assert!(!ip("-6 route show").contains("blackhole"));
    assert!(!ip("route show").contains("blackhole"));
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
    let node = Node::with_peers(2);
    let all = |metric| vec![(0, own()), (1, with_metric(peer(1), metric)), (2, peer(2))];
    for metric in [100, 0, 355, 100, 0] {
        node.settle(all(metric));
        let told = if metric == 0 { String::new() } else { format!(" metric {metric}") };
        let route = format!("10.244.1.0/24 via 10.244.1.0 dev flannel.1 proto 244{told} onlink");
        let routes = ip("route show 10.244.1.0/24").replace("  ", " ");
        assert_eq!(routes.trim(), route);
    }
    // Somebody has removed the old one just before, or the kernel never had it.
    for metric in [100, 0, 100] {
        let former = if metric == 0 { 100 } else { 0 };
        run("ip", &format!("route del 10.244.1.0/24 metric {former}"));
        node.settle(all(metric));
        node.wait_until("one route", || ip("route show 10.244.1.0/24").lines().count() == 1);
    }
}

#[test]
fn a_removal_that_hits_another_route_of_ours_is_made_good() {
    let node = Node::with_peers(1);
    let blackhole =
        Entry::Blackhole(Blackhole { dst: "10.244.1.0/24".parse().unwrap(), metric: 65535 });
    node.update(7, vec![blackhole]);
    // Gone already when the engine removes it: to the kernel, 0 is any metric.
    let gone = node.engine.update(vec![(1, Vec::new())]);
    ip("route del 10.244.1.0/24 metric 0 proto 244 via 10.244.1.0");
    node.runtime.block_on(gone).unwrap();
    let blackhole = "blackhole 10.244.1.0/24 proto 244 metric 65535";
    node.wait_until("the blackhole", || ip("route show 10.244.1.0/24").trim() == blackhole);
}

#[test]
fn an_ipv6_route_in_the_way_of_its_own_successor_goes() {
    let node = Node::with_peers(1);
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
        node.wait_until("the route of now", || {
            ip("-6 route show fd00:244:0:2::/64").contains("dev flannel.1")
        });
    }
}
