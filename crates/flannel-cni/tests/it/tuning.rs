//! The tuning plugin beside the Go one.

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, Whose};
use crate::support::files;

const SETTING: &str = "net.ipv4.conf.IFNAME.arp_filter";

fn conf(node: &Node, pod: &Pod, more: &Value) -> Value {
    let mut conf = json!({
        "cniVersion": node.version, "name": node.network, "type": "tuning",
        "dataDir": node.path("tuning"), "prevResult": pod.result,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        conf[key] = value.clone();
    }
    conf
}

fn interface(pod: &Pod) -> String {
    let shown = pod.netns.ip("-d -o link show dev eth0");
    let path = "/proc/sys/net/ipv4/conf/eth0/arp_filter";
    let setting = pod.netns.inside(|| std::fs::read_to_string(path).unwrap());
    format!("{shown} {setting}")
}

#[test]
fn an_interface_is_tuned_as_by_the_go_plugin_and_either_restores_it() {
    let node = Node::new(V4);
    let ways = [
        json!({"sysctl": {SETTING: "1"}}),
        json!({"mac": "c2:b0:57:49:47:f1"}),
        json!({"mac": "c2:b0:57:49:47:f1", "runtimeConfig": {"mac": "c2:b0:57:49:47:f2"}}),
        json!({"mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 77}),
        json!({"allmulti": false, "txQLen": 0, "mtu": 0, "mac": ""}),
        json!({"mtu": 1300, "sysctl": {SETTING: "0"}, "args": {"cni": {"mtu": 1200, "promisc": true,
            "mac": "c2:b0:57:49:47:f3", "sysctl": {SETTING: "1"}, "txQLen": 5, "allmulti": true}}}),
    ];
    let pod = node.attached("pod-1");
    for way in &ways {
        let mut seen = Vec::new();
        let before = interface(&pod);
        for (first, last) in [(Whose::Go, Whose::Ours), (Whose::Ours, Whose::Go)] {
            let asked = conf(&node, &pod, way);
            let added = node.call(first, "tuning", "ADD", &pod, &asked).expect_success();
            seen.push((interface(&pod), files(&node.path("tuning")), added.stdout));
            for whose in [first, last] {
                node.call(whose, "tuning", "CHECK", &pod, &asked).expect_success();
            }
            node.call(last, "tuning", "DEL", &pod, &asked).expect_success();
            assert_eq!(files(&node.path("tuning")), []);
            pod.netns
                .inside(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_filter", "0").unwrap());
            assert_eq!(interface(&pod), before, "{way} by {first:?}, restored by {last:?}");
        }
        assert_eq!(seen[0], seen[1], "{way}");
    }
}

#[test]
fn check_names_what_is_no_longer_as_configured() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    let way = json!({
        "sysctl": {SETTING: "1"}, "mac": "C2:B0:57:49:47:F1", "mtu": 1300, "promisc": true,
        "allmulti": true, "txQLen": 77,
    });
    let asked = conf(&node, &pod, &way);
    for (spoil, said) in [
        ("link set eth0 address c2:b0:57:49:47:f2", "configured Ethernet of eth0 is C2:B0"),
        ("link set eth0 mtu 1400", "configured MTU of eth0 is 1300, current value is 1400"),
        ("link set eth0 promisc off", "configured promisc of eth0 is true"),
        ("link set eth0 allmulticast off", "all-multicast mode of eth0 is true"),
        ("link set eth0 txqueuelen 8", "Transmit Queue Length of eth0 is 77, current value is 8"),
    ] {
        node.call(Whose::Ours, "tuning", "ADD", &pod, &asked).expect_success();
        node.call(Whose::Ours, "tuning", "CHECK", &pod, &asked).expect_success();
        pod.netns.ip(spoil);
        let (_, msg) = node.call(Whose::Ours, "tuning", "CHECK", &pod, &asked).expect_error();
        assert!(msg.contains(said), "{msg}");
    }
    node.call(Whose::Ours, "tuning", "ADD", &pod, &asked).expect_success();
    pod.netns.inside(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_filter", "0").unwrap());
    let (_, msg) = node.call(Whose::Ours, "tuning", "CHECK", &pod, &asked).expect_error();
    assert!(msg.contains("conf/eth0/arp_filter is 1, current value is 0"), "{msg}");
}

#[test]
fn arguments_may_bring_settings_where_the_network_has_none_of_its_own() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    let asked = conf(&node, &pod, &json!({"args": {"cni": {"sysctl": {SETTING: "1"}}}}));
    node.call(Whose::Ours, "tuning", "ADD", &pod, &asked).expect_success();
    assert!(interface(&pod).trim().ends_with('1'));
}

#[test]
fn a_note_goes_with_a_pod_whose_namespace_is_gone() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    let asked = conf(&node, &pod, &json!({"mtu": 1300}));
    node.call(Whose::Ours, "tuning", "ADD", &pod, &asked).expect_success();
    assert_eq!(files(&node.path("tuning")).len(), 1);
    let mut request = node.request(Whose::Ours, "tuning", "DEL", &pod);
    request.netns = String::new();
    request.send(&asked.to_string()).expect_success();
    assert_eq!(files(&node.path("tuning")), []);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    let before = interface(&pod);
    for (more, said) in [
        (json!({"mtu": 1300, "sysctl": {"kernel.domainname": "x"}}), "invalid net sysctl key"),
        (json!({"mtu": 1300, "sysctl": {SETTING: 1}}), "must be a string, not 1"),
        (json!({"mtu": 1300, "mac": "c2:b0"}), "'mac' must be a MAC address"),
        (json!({"mtu": -1}), "'mtu' must be a whole number from 0"),
        (json!({"mtu": 1300, "promisc": "yes"}), "'promisc' must be true or false"),
    ] {
        let asked = conf(&node, &pod, &more);
        let (_, msg) = node.call(Whose::Ours, "tuning", "ADD", &pod, &asked).expect_error();
        assert!(msg.contains(said), "{more}: {msg}");
    }
    let twice =
        conf(&node, &pod, &json!({"sysctl": {"net.core.somaxconn": "5"}})).to_string().replace(
            r#"{"net.core.somaxconn":"5"}"#,
            r#"{"net.core.somaxconn":"5","net.core.somaxconn":"6"}"#,
        );
    let request = node.request(Whose::Ours, "tuning", "ADD", &pod);
    let (_, msg) = request.send(&twice).expect_error();
    assert_eq!(msg, "duplicated sysctl keys are not allowed");
    assert_eq!(interface(&pod), before);
    assert_eq!(files(&node.path("tuning")), []);
}
