//! `flannelctl trace`: a fault is planted at every hop, and named there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::time::Duration;

use flannel_lab::{Lab, Node, Pod};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(30);

fn shell(node: &Node, command: &str) {
    node.exec(&["sh", "-ec", command]).unwrap();
}

/// The hops that are wrong, with the way they are on, and the whole text.
fn trace(node: &Node, from: &Pod, to: &Pod, more: &[&str]) -> (i32, Vec<(String, String)>, String) {
    let (from, to) = (from.v4().unwrap().to_string(), to.v4().unwrap().to_string());
    let words = [&[FLANNELCTL, "trace", &from, &to, "-o", "json"], more].concat();
    let output = node.output(&words).unwrap();
    let traced: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let hops = traced["hops"].as_array().unwrap().iter();
    let wrong = hops.filter(|hop| hop["condition"] == "wrong");
    let wrong = wrong.map(|hop| (text(&hop["way"]), text(&hop["hop"]))).collect();
    (output.status.code().unwrap(), wrong, format!("{traced:#}"))
}

fn lab() -> (Lab, Pod, Pod) {
    let lab = Lab::builder().nodes(2).backend("vxlan").start().unwrap();
    let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
    // The bridge has somebody on it whatever happens to the first.
    lab.pod(1).unwrap();
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    (lab, one, two)
}

#[test]
fn a_fault_at_any_hop_is_named_there() {
    let (lab, one, two) = lab();
    let node = lab.node(1);
    let (status, wrong, text) = trace(node, &one, &two, &[]);
    assert!(status == 0 && wrong.is_empty(), "{text}");
    for hop in ["bridge", "veth", "route", "rules", "tunnel", "neighbour", "fdb", "underlay"] {
        assert!(text.contains(&format!("\"hop\": \"{hop}\"")), "no {hop}: {text}");
    }
    // It would mend what is planted.
    node.flanneld().stop().unwrap();
    let endpoints = lab.etcd().unwrap().endpoints();
    let store = ["--etcd-endpoints", &endpoints, "--etcd-prefix", &lab.spec().etcd_prefix];
    let whole = |when: &str| {
        lab.wait_until("nothing to be wrong", LIMIT, || {
            let (status, wrong, text) = trace(node, &one, &two, &store);
            if status == 0 && wrong.is_empty() { Ok(()) } else { Err(format!("{when}: {text}")) }
        })
        .unwrap();
    };
    whole("without a daemon");

    let gateway = node.subnet_env().unwrap().subnet.unwrap().addr();
    let (own, theirs) = (one.v4().unwrap(), two.v4().unwrap());
    let peer = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
    let via = peer.addr();
    let route = format!("ip route replace {peer} via {via} dev flannel.1 onlink proto 244");
    let neighbour = node.ip(&format!("neigh show {via} dev flannel.1")).unwrap();
    let mac = neighbour
        .split_whitespace()
        .skip_while(|word| *word != "lladdr")
        .nth(1)
        .unwrap()
        .to_owned();
    let neigh = format!("ip neigh replace {via} lladdr {mac} dev flannel.1 nud permanent");
    let fdb = |to: &str| format!("bridge fdb replace {mac} dev flannel.1 dst {to} self permanent");

    let is_named = |fault: &str, way: &str, hop: &str| {
        let (status, wrong, text) = trace(node, &one, &two, &store);
        let first = wrong.first().map(|(way, hop)| (way.as_str(), hop.as_str()));
        assert_eq!((status, first), (1, Some((way, hop))), "{fault}: {text}");
    };
    one.exec(&["ip", "link", "set", "eth0", "down"]).unwrap();
    shell(node, "ip neigh flush dev cni0");
    is_named("the pod's interface is down", "there", "pod");
    one.exec(&["ip", "link", "set", "eth0", "up"]).unwrap();
    one.exec(&["ip", "route", "replace", "default", "via", &gateway.to_string()]).unwrap();
    whole("the pod is back");

    for (fault, way, hop, mend) in [
        ("ip link set cni0 down", "there", "bridge", "ip link set cni0 up"),
        (
            "sysctl -qw net.ipv4.ip_forward=0",
            "there",
            "forwarding",
            "sysctl -qw net.ipv4.ip_forward=1",
        ),
        (&format!("ip route del {peer}"), "there", "route", &route),
        (
            &format!("ip route replace blackhole {peer}"),
            "there",
            "route",
            &format!("ip route del {peer}; {route}"),
        ),
        (
            &format!(
                "ip rule add to {peer} lookup 100; ip route add default via 192.168.100.254 table 100"
            ),
            "there",
            "route",
            &format!("ip rule del to {peer} lookup 100; ip route flush table 100"),
        ),
        (
            &format!("iptables -I FORWARD -s {own} -d {theirs} -j DROP"),
            "there",
            "rules",
            &format!("iptables -D FORWARD -s {own} -d {theirs} -j DROP"),
        ),
        (
            "ip link set flannel.1 down",
            "there",
            "tunnel",
            &format!("ip link set flannel.1 up; {route}; {neigh}; {}", fdb("192.168.100.2")),
        ),
        ("ip link set flannel.1 mtu 1300", "there", "tunnel", "ip link set flannel.1 mtu 1450"),
        (&format!("ip neigh del {via} dev flannel.1"), "there", "neighbour", &neigh),
        (
            &format!("ip neigh replace {via} lladdr 02:00:00:00:00:09 dev flannel.1 nud permanent"),
            "there",
            "neighbour",
            &neigh,
        ),
        (&format!("bridge fdb del {mac} dev flannel.1"), "there", "fdb", &fdb("192.168.100.2")),
        (&fdb("192.168.100.9"), "there", "fdb", &fdb("192.168.100.2")),
        (
            "ip route add blackhole 192.168.100.2",
            "there",
            "underlay",
            "ip route del blackhole 192.168.100.2",
        ),
        (
            "nft add table inet fw; nft 'add chain inet fw out { type filter hook output priority 0 ; }'; nft add rule inet fw out udp dport 8472 drop",
            "there",
            "rules",
            "nft delete table inet fw",
        ),
        (
            "nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; }'; nft add rule inet fw in udp dport 8472 drop",
            "back",
            "rules",
            "nft delete table inet fw",
        ),
        (
            &format!("iptables -I FORWARD -s {theirs} -j DROP"),
            "back",
            "rules",
            &format!("iptables -D FORWARD -s {theirs} -j DROP"),
        ),
        (
            &format!(
                "ip rule add from {peer} lookup 100; ip route add default via 192.168.100.254 table 100"
            ),
            "back",
            "route",
            &format!("ip rule del from {peer} lookup 100; ip route flush table 100"),
        ),
    ] as [(&str, &str, &str, &str); 17]
    {
        shell(node, fault);
        is_named(fault, way, hop);
        shell(node, mend);
        whole(fault);
    }
    lab.node(2).unplug().unwrap();
    shell(node, "ip neigh flush dev eth0");
    is_named("the peer's cable is out", "there", "underlay");
    lab.node(2).plug().unwrap();
    whole("the cable is in");
}

#[test]
fn the_ends_of_a_trace_are_pods_by_name_or_address_and_one_of_them_is_here() {
    let (lab, one, two) = lab();
    let node = lab.node(1);
    let run = |words: &[&str]| node.output(&[&[FLANNELCTL, "trace"], words].concat()).unwrap();
    let (own, theirs) = (one.v4().unwrap().to_string(), two.v4().unwrap().to_string());
    // As a container runtime notes it.
    shell(node, "mkdir -p /var/lib/cni/results");
    let noted = format!(
        r#"{{"cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web"]],"result":{{"ips":[{{"address":"{own}/24"}}]}}}}"#
    );
    node.write_file("/var/lib/cni/results/cbr0-1-eth0", &noted).unwrap();
    let output = run(&["default/web", &theirs]);
    assert!(
        output.stdout.starts_with(&format!("there: {own} -> {theirs}\n")),
        "{}{}",
        output.stdout,
        output.stderr
    );
    assert!(output.stdout.contains("nothing is wrong on the way"), "{}", output.stdout);
    // The other way round is the same way.
    let output = run(&[&theirs, "web"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", output.stdout, output.stderr);
    for (words, said) in [
        (["nobody", &theirs], "no pod on this node has that name"),
        (["192.0.2.1", "192.0.2.2"], "is in a pod network of this node"),
        ([&own, "10.244.254.9"], "no node has a subnet with it"),
        ([&own, "fd00::1"], "different families"),
    ] as [([&str; 2], &str); 4]
    {
        let output = run(&words);
        assert!(
            output.status.code() == Some(1) && output.stderr.contains(said),
            "{words:?}: {}",
            output.stderr
        );
    }
}

#[test]
fn the_daemon_of_the_other_node_is_asked_for_its_half() {
    let (lab, one, two) = lab();
    let (node, other) = (lab.node(1), lab.node(2));
    let says = |wanted: &[&str], wrong_at: Option<&str>| {
        lab.wait_until("the other node's word", LIMIT, || {
            let (_, wrong, text) = trace(node, &one, &two, &[]);
            let first = wrong.first().map(|(way, hop)| format!("{way} {hop}"));
            let all = wanted.iter().all(|words| text.contains(words));
            if all && first.as_deref() == wrong_at { Ok(()) } else { Err(text) }
        })
        .unwrap();
    };
    says(&["node2 says that its network is whole", "node2 has all that leads to this node"], None);
    shell(other, "sysctl -qw net.ipv4.ip_forward=0");
    says(&["node2 says: ", "net.ipv4.ip_forward is 0"], Some("peer daemon"));
    shell(other, "sysctl -qw net.ipv4.ip_forward=1");
    says(&["node2 says that its network is whole"], None);
    // Who says nothing is not accused.
    other.flanneld().kill9();
    says(&["192.168.100.2:8081 does not say how it is there"], None);
}

#[test]
fn both_families_are_traced_from_either_side() {
    let lab = Lab::builder().nodes(2).backend("vxlan").ipv6(true).start().unwrap();
    let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let families = [
        (one.v4().unwrap().to_string(), two.v4().unwrap().to_string()),
        (one.v6().unwrap().to_string(), two.v6().unwrap().to_string()),
    ];
    for (own, theirs) in families {
        for number in [1, 2] {
            let output = lab.node(number).output(&[FLANNELCTL, "trace", &own, &theirs]).unwrap();
            assert_eq!(output.status.code(), Some(0), "{}{}", output.stdout, output.stderr);
            assert!(output.stdout.contains("fdb"), "{}", output.stdout);
        }
    }
}
