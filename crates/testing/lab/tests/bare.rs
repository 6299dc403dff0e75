//! Labs without daemons: namespaces, the underlay, commands and closures inside.

use std::time::Duration;

use flannel_lab::{Families, Lab, PingOptions, Place as _};

#[test]
fn nodes_reach_each_other_on_the_underlay_in_both_families() {
    let lab = Lab::builder().nodes(3).bare().start().unwrap();
    for from in lab.nodes() {
        for to in lab.nodes().iter().filter(|to| to.number() != from.number()) {
            lab.ping(from, to).unwrap();
        }
    }
    let nobody = "192.168.100.77".parse().unwrap();
    let quick = PingOptions { limit: Duration::from_millis(300), ..PingOptions::default() };
    assert!(lab.ping_address(lab.node(1), nobody, quick).is_err());
}

#[test]
fn a_node_has_the_addresses_that_its_number_says() {
    let lab = Lab::builder().nodes(2).bare().start().unwrap();
    let addresses = lab.node(2).ip("-br addr show dev eth0").unwrap();
    assert!(addresses.contains("192.168.100.2/24"), "{addresses}");
    assert!(addresses.contains("fd00:100::2/64"), "{addresses}");
    let routes = lab.node(2).ip("route show").unwrap();
    assert!(routes.contains("default via 192.168.100.254 dev eth0"), "{routes}");
    assert_eq!(lab.node(1).read_file("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
    let link = lab.node(2).ip("link show dev eth0").unwrap();
    assert!(link.contains("02:fa:00:00:00:02"), "{link}");
}

#[test]
fn segments_reach_each_other_through_the_switch() {
    let lab = Lab::builder().nodes(2).segments(2).bare().start().unwrap();
    assert_eq!(lab.node(2).addresses()[0].to_string(), "192.168.101.2");
    lab.ping(lab.node(1), lab.node(2)).unwrap();
    let path = lab.node(1).ip("route get 192.168.101.2").unwrap();
    assert!(path.contains("via 192.168.100.254"), "{path}");
}

#[test]
fn an_underlay_can_have_one_family_alone() {
    let lab = Lab::builder().nodes(2).underlay(Families::Ipv6).bare().start().unwrap();
    assert_eq!(lab.node(1).addresses().len(), 1);
    lab.ping(lab.node(1), lab.node(2)).unwrap();
}

#[test]
fn the_default_paths_of_a_node_are_its_own() {
    let lab = Lab::builder().nodes(2).bare().start().unwrap();
    for path in ["/run/flannel/subnet.env", "/etc/cni/x.conf", "/var/lib/cni/x"] {
        lab.node(1).write_file(path, "mine").unwrap();
        assert_eq!(lab.node(1).read_file(path).unwrap(), "mine");
        assert!(lab.node(2).read_file(path).is_err(), "{path} is seen by another node");
        assert!(!std::path::Path::new(path).exists(), "{path} was written on the host");
    }
    let devices = lab.node(1).exec(&["ls", "/sys/class/net"]).unwrap();
    let devices: Vec<&str> =
        devices.split_whitespace().filter(|name| !name.contains("bonding")).collect();
    assert_eq!(devices, ["eth0", "lo"]);
    assert_eq!(lab.node(2).exec(&["uname", "-n"]).unwrap().trim(), "node2");
}

#[test]
fn a_closure_runs_inside_the_node() {
    let lab = Lab::builder().nodes(1).bare().start().unwrap();
    let found = lab.node(1).in_netns(|| std::net::UdpSocket::bind("192.168.100.1:0").is_ok());
    assert!(found.unwrap());
    assert!(std::net::UdpSocket::bind("192.168.100.1:0").is_err());
}

#[test]
fn a_failing_command_says_where_and_why() {
    let lab = Lab::builder().nodes(1).bare().start().unwrap();
    let error = lab.node(1).ip("link show dev nothing").unwrap_err().to_string();
    assert!(error.contains("node1") && error.contains("nothing"), "{error}");
}

#[test]
fn a_command_that_takes_too_long_is_killed() {
    let lab = Lab::builder().nodes(1).bare().start().unwrap();
    let error = lab.node(1).exec_within(Duration::from_millis(100), &["sleep", "600"]).unwrap_err();
    assert!(error.to_string().contains("sleep 600"), "{error}");
    let running = lab.node(1).exec(&["sh", "-c", "cat /proc/[0-9]*/cmdline"]).unwrap();
    assert!(!running.contains("600"), "it still runs: {running:?}");
}

#[test]
fn two_labs_run_side_by_side() {
    let one = Lab::builder().nodes(2).bare().start().unwrap();
    let other = Lab::builder().nodes(2).bare().start().unwrap();
    one.ping(one.node(1), one.node(2)).unwrap();
    drop(one);
    other.ping(other.node(1), other.node(2)).unwrap();
}

#[test]
fn a_lab_of_fifty_nodes_is_one_network() {
    let lab = Lab::builder().nodes(50).bare().start().unwrap();
    lab.ping(lab.node(1), lab.node(50)).unwrap();
    lab.ping(lab.node(50), lab.node(25)).unwrap();
}
