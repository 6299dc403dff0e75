//! `flannelctl trace`: a fault is planted at every hop, and named there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use flannel_lab::{Lab, Node, Pod, Process};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(30);
/// Until somebody who undoes what a daemon mends has won.
const WAIT_LIMIT: Duration = Duration::from_secs(90);

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
        (["nobody", &theirs], "--kubeconfig FILE to ask the API server"),
        (["a/b/c", &theirs], "a pod is called NAME or NAMESPACE/NAME"),
        (["192.0.2.1", "192.0.2.2"], "is in a pod network of this node"),
        ([&own, "10.244.254.9"], "no node has a subnet with it"),
        ([&own, "fd00::1"], "different families"),
    ] as [([&str; 2], &str); 5]
    {
        let output = run(&words);
        assert!(
            output.status.code() == Some(2) && output.stderr.contains(said),
            "{words:?}: {}",
            output.stderr
        );
    }
}

/// The first hop that is wrong: its node if it is not this one, its way and its name.
fn first_wrong(text: &str) -> Option<String> {
    let traced: Value = serde_json::from_str(text).unwrap();
    let hops = traced["hops"].as_array().unwrap().clone();
    let hop = hops.into_iter().find(|hop| hop["condition"] == "wrong")?;
    let words = ["node", "way", "hop"].map(|key| hop[key].as_str().unwrap_or("here").to_owned());
    Some(words.join(" "))
}

/// Somebody who does it again and again, whatever the daemon does about it.
fn vandal(node: &Node, deed: &str) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("while :; do {deed}; sleep 0.02; done >/dev/null 2>&1")]);
    node.spawn(command).unwrap()
}

struct Traced {
    lab: Lab,
    one: Pod,
    two: Pod,
}

impl Traced {
    /// Traced on the first node; the hop that is wrong first is named, with its node.
    fn names(&self, fault: &str, wanted: Option<&str>) {
        self.lab
            .wait_until("the trace to name it", WAIT_LIMIT, || {
                let (status, _, text) = trace(self.lab.node(1), &self.one, &self.two, &[]);
                let first = first_wrong(&text);
                let named = match (&first, wanted) {
                    (Some(first), Some(wanted)) => wanted.split(" or ").any(|hop| hop == first),
                    (first, wanted) => first.as_deref() == wanted,
                };
                let right = named && (status == 0) == wanted.is_none();
                if right { Ok(()) } else { Err(format!("{fault}: {first:?}: {text}")) }
            })
            .unwrap();
    }
}

#[test]
fn a_fault_at_any_hop_of_the_other_node_is_named_there() {
    let (lab, one, two) = lab();
    // The bridge has somebody on it whatever happens to the other.
    lab.pod(2).unwrap();
    let traced = Traced { lab, one, two };
    let node = traced.lab.node(2);
    traced.names("nothing", None);
    let (_, _, text) = trace(traced.lab.node(1), &traced.one, &traced.two, &[]);
    for hop in ["underlay", "tunnel", "route", "rules", "bridge", "veth", "neighbour", "fdb"] {
        let of_it = |one: &Value| one["node"] == "node2" && one["hop"] == hop;
        let all: Value = serde_json::from_str(&text).unwrap();
        assert!(all["hops"].as_array().unwrap().iter().any(of_it), "no {hop}: {text}");
    }
    let (own, theirs) = (traced.one.v4().unwrap(), traced.two.v4().unwrap());
    let subnet = node.subnet_env().unwrap().subnet.unwrap();
    let (pods, gateway) = (subnet.trunc(), subnet.addr());
    let first = traced.lab.node(1).subnet_env().unwrap().subnet.unwrap().trunc();
    let arp = node.ip(&format!("neigh show {theirs} dev cni0")).unwrap();
    let mac =
        arp.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).unwrap().to_owned();
    let ports = node.exec(&["bridge", "fdb", "show", "br", "cni0"]).unwrap();
    let port = ports.lines().find(|line| line.starts_with(&mac)).unwrap();
    let veth = port.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap().to_owned();
    let connected = format!("ip route add {pods} dev cni0 proto kernel scope link src {gateway}");
    for (fault, wanted, mend) in [
        ("ip link set cni0 down", "node2 there bridge", "ip link set cni0 up"),
        // The pod, once the node has forgotten behind which port it was.
        (
            &format!("ip link set {veth} down"),
            "node2 there veth or node2 there pod",
            &format!("ip link set {veth} up"),
        ),
        (
            &format!("ip link set {veth} nomaster"),
            "node2 there veth or node2 there pod",
            &format!("ip link set {veth} master cni0"),
        ),
        (&format!("ip route del {pods} dev cni0"), "node2 there route", &connected),
        (
            "sysctl -qw net.ipv4.ip_forward=0",
            "node2 there forwarding",
            "sysctl -qw net.ipv4.ip_forward=1",
        ),
        (
            &format!("iptables -I FORWARD -d {theirs} -j DROP"),
            "node2 there rules",
            &format!("iptables -D FORWARD -d {theirs} -j DROP"),
        ),
        (
            &format!("iptables -I FORWARD -s {theirs} -d {own} -j DROP"),
            "node2 back rules",
            &format!("iptables -D FORWARD -s {theirs} -d {own} -j DROP"),
        ),
        (
            "nft add table inet fw; nft 'add chain inet fw in { type filter hook input priority 0 ; }'; nft add rule inet fw in udp dport 8472 drop",
            "node2 there rules",
            "nft delete table inet fw",
        ),
        (
            &format!(
                "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.flannel/1.rp_filter=1; \
                 ip rule add to {first} lookup 100; ip route add default via 192.168.100.254 table 100"
            ),
            "node2 there rp_filter",
            &format!(
                "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.flannel/1.rp_filter=0; \
                 ip rule del to {first} lookup 100; ip route flush table 100"
            ),
        ),
    ] as [(&str, &str, &str); 9]
    {
        shell(node, fault);
        traced.names(fault, Some(wanted));
        shell(node, mend);
        traced.names(&format!("mended: {fault}"), None);
    }
    // Its daemon mends these, if somebody lets it.
    let via = first.addr();
    let vtep = node.ip(&format!("neigh show {via} dev flannel.1")).unwrap();
    let vtep = vtep.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).unwrap();
    for (deed, wanted) in [
        (format!("ip neigh del {via} dev flannel.1"), "node2 back neighbour"),
        (
            format!("bridge fdb replace {vtep} dev flannel.1 dst 192.168.100.9 self permanent"),
            "node2 back fdb",
        ),
        ("ip link set flannel.1 down".to_owned(), "node2 there tunnel"),
    ] {
        let doing = vandal(node, &deed);
        traced.names(&deed, Some(wanted));
        doing.kill();
        node.exec(&[FLANNELCTL, "repair"]).unwrap();
        traced.names(&format!("mended: {deed}"), None);
    }
}

#[test]
fn the_other_node_is_asked_through_a_lease_server_by_root_of_its_machine() {
    let lab = Lab::builder().nodes(2).backend("vxlan").lease_server().start().unwrap();
    let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
    lab.pod(2).unwrap();
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let traced = Traced { lab, one, two };
    let node = traced.lab.node(2);
    traced.names("nothing", None);
    shell(node, "ip link set cni0 down");
    traced.names("its bridge is down", Some("node2 there bridge"));
    // It is the same from the other end, and on the node that is served.
    let (own, theirs) =
        (traced.one.v4().unwrap().to_string(), traced.two.v4().unwrap().to_string());
    let output = traced.lab.node(1).output(&[FLANNELCTL, "trace", &theirs, &own]).unwrap();
    let said = format!("there, at node2: {theirs} -> {own}\n  WRONG bridge     cni0 is down\n");
    assert!(output.stdout.starts_with(&said), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("node2 advises: ip link set cni0 up"), "{}", output.stdout);
    assert!(output.stdout.ends_with("WRONG at bridge (there, at node2)\n"), "{}", output.stdout);
    shell(node, "ip link set cni0 up");
    traced.names("its bridge is up", None);
    // A server without tokens lets root of its own machine ask nodes, and nobody else.
    let output = node.output(&[FLANNELCTL, "trace", &theirs, &own]).unwrap();
    let said = format!("{}{}", output.stdout, output.stderr);
    assert!(said.contains("this server has no tokens"), "{said}");
}

#[test]
fn a_node_that_cannot_be_asked_for_its_half_is_asked_how_it_is() {
    let (lab, one, two) = lab();
    let (node, other) = (lab.node(1), lab.node(2));
    // An operator's store that nobody is at.
    let away = ["--etcd-endpoints", "http://127.0.0.1:1"];
    let says = |wanted: &[&str], wrong_at: Option<&str>| {
        lab.wait_until("the other node's word", LIMIT, || {
            let (_, wrong, text) = trace(node, &one, &two, &away);
            let first = wrong.first().map(|(way, hop)| format!("{way} {hop}"));
            let all = wanted.iter().all(|words| text.contains(words));
            if all && first.as_deref() == wrong_at { Ok(()) } else { Err(text) }
        })
        .unwrap();
    };
    let not_asked = "it could not be asked for its half of the way: ";
    says(&[not_asked, "node2 says that its network is healthy"], None);
    says(&["node2 has all that leads to this node"], None);
    shell(other, "sysctl -qw net.ipv4.ip_forward=0");
    says(&["node2 says: ", "net.ipv4.ip_forward is 0"], Some("peer daemon"));
    shell(other, "sysctl -qw net.ipv4.ip_forward=1");
    says(&["node2 says that its network is healthy"], None);
    // Who says nothing is not accused.
    other.flanneld().kill9();
    says(&["192.168.100.2:8081 does not say how it is there"], None);
    let (status, wrong, text) = trace(node, &one, &two, &[]);
    assert!(status == 0 && wrong.is_empty(), "{text}");
    assert!(text.contains(&format!("{not_asked}its daemon did not answer within 4 s")), "{text}");
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

#[test]
fn who_waits_for_another_node_is_told_after_three_seconds_what_is_waited_for() {
    let (lab, one, two) = lab();
    lab.node(2).flanneld().pause().unwrap();
    let (from, to) = (one.v4().unwrap().to_string(), two.v4().unwrap().to_string());
    let directory = tempfile::tempdir().unwrap();
    let mut waiting = Vec::new();
    for (number, (words, told)) in [
        (vec!["trace", &from, &to], "still tracing: the other node is asked, through the store"),
        (vec!["test", "connectivity"], "still testing: nodes are asked through the store"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = directory.path().join(number.to_string());
        let mut command = Command::new(FLANNELCTL);
        command.args(words).stdout(Stdio::null()).stderr(File::create(&file).unwrap());
        waiting.push((lab.node(1).spawn(command).unwrap(), file, told));
    }
    for (process, file, told) in &waiting {
        lab.wait_until(told, LIMIT, || {
            let said = std::fs::read_to_string(file).unwrap();
            if said.lines().any(|line| line.starts_with(told)) { Ok(()) } else { Err(said) }
        })
        .unwrap();
        process.kill();
    }
}
