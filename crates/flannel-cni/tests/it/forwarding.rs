//! The firewall plugin beside the Go one. What it does over D-Bus, with firewalld, the Go plugin's own suite
//! tests (`scripts/cni-suites firewall`).

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, V6, Whose, run};
use crate::support::Answer;

const KINDS: [&str; 2] = ["nft", "legacy"];

/// A host whose iptables is of one kind.
struct Host {
    node: Node,
    kind: &'static str,
    path: String,
}

impl Host {
    fn new(kind: &'static str) -> Self {
        let node = Node::new(&format!("{V4}{V6}"));
        let directory = node.path("sbin");
        std::fs::create_dir(&directory).unwrap();
        for name in ["iptables", "ip6tables"] {
            for suffix in ["", "-save", "-restore"] {
                let program = format!("/usr/sbin/{name}-{kind}{suffix}");
                std::os::unix::fs::symlink(program, directory.join(format!("{name}{suffix}")))
                    .unwrap();
            }
        }
        let path = format!("{}:/usr/bin:/bin", directory.display());
        Self { node, kind, path }
    }

    fn call(&self, whose: Whose, command: &str, pod: &Pod, more: &Value) -> Answer {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "firewall", "prevResult": pod.result,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            conf[key] = value.clone();
        }
        let mut request = self.node.request(whose, "firewall", command, pod);
        request.search_path = self.path.clone();
        request.send(&conf.to_string())
    }

    fn saved(&self) -> String {
        let save = |name: &str| {
            run(&format!("{name}-{}-save", self.kind), "-t filter")
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| line.split(" [").next().unwrap().to_owned() + "\n")
                .collect::<String>()
        };
        save("iptables") + &save("ip6tables")
    }

    fn wipe(&self) {
        for name in ["iptables", "ip6tables"] {
            let program = format!("{name}-{}", self.kind);
            run(&program, "-t filter -F");
            run(&program, "-t filter -X");
        }
    }
}

fn pod(id: &str, number: u8) -> Pod {
    let mut pod = Pod::new(id);
    pod.result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/x"}],
        "ips": [
            {"address": format!("10.244.57.{number}/24"), "interface": 2},
            {"address": format!("fd00:244:0:55::{number}/64"), "interface": 2},
        ],
    });
    pod
}

fn ways() -> [Value; 5] {
    [
        json!({}),
        json!({"backend": "iptables", "iptablesAdminChainName": "MINE"}),
        json!({"ingressPolicy": "open"}),
        json!({"ingressPolicy": "same-bridge"}),
        json!({"ingressPolicy": "isolated"}),
    ]
}

#[test]
fn rules_are_the_go_plugin_s_one_by_one() {
    for kind in KINDS {
        let host = Host::new(kind);
        for way in ways() {
            let mut seen = Vec::new();
            for whose in [Whose::Go, Whose::Ours] {
                host.wipe();
                let pods = [pod("pod-1", 2), pod("pod-2", 3)];
                let added = host.call(whose, "ADD", &pods[0], &way).expect_success();
                host.call(whose, "ADD", &pods[1], &way).expect_success();
                let both = host.saved();
                assert!(both.contains("-s 10.244.57.2/32 -j ACCEPT"), "{both}");
                host.call(whose, "ADD", &pods[1], &way).expect_success();
                assert_eq!(host.saved(), both, "a second ADD adds nothing");
                host.call(whose, "DEL", &pods[0], &way).expect_success();
                seen.push((both, host.saved(), added.stdout));
            }
            assert_eq!(seen[0], seen[1], "{kind} {way}");
        }
    }
}

#[test]
fn a_node_goes_over_and_back_with_its_pods() {
    for kind in KINDS {
        for (first, last) in [(Whose::Ours, Whose::Go), (Whose::Go, Whose::Ours)] {
            let host = Host::new(kind);
            for way in ways() {
                let pods = [pod("pod-1", 2), pod("pod-2", 3)];
                for pod in &pods {
                    host.call(first, "ADD", pod, &way).expect_success();
                }
                for pod in &pods {
                    host.call(last, "CHECK", pod, &way).expect_success();
                    host.call(last, "DEL", pod, &way).expect_success();
                    host.call(last, "DEL", pod, &way).expect_success();
                }
                let saved = host.saved();
                assert!(!saved.contains("10.244.57.") && !saved.contains("fd00:"), "{saved}");
            }
        }
    }
}

#[test]
fn check_names_the_rule_that_is_missing_and_the_next_add_puts_it_back() {
    for kind in KINDS {
        let host = Host::new(kind);
        let (way, pod) = (json!({"ingressPolicy": "isolated"}), pod("pod-1", 2));
        host.call(Whose::Ours, "ADD", &pod, &way).expect_success();
        let rules = run(&format!("iptables-{kind}"), "-S");
        for rule in rules.lines().filter(|line| line.starts_with("-A ")) {
            let script = format!("*filter\n{}\nCOMMIT\n", rule.replacen("-A", "-D", 1));
            crate::iptables::write_to(&format!("iptables-{kind}-restore"), &script);
            let (_, msg) = host.call(Whose::Ours, "CHECK", &pod, &way).expect_error();
            assert!(msg.contains("iptables lacks the rule \"-A "), "{rule}: {msg}");
            host.call(Whose::Ours, "ADD", &pod, &way).expect_success();
            host.call(Whose::Ours, "CHECK", &pod, &way).expect_success();
        }
        host.wipe();
        host.call(Whose::Ours, "CHECK", &pod, &way).expect_error();
        assert!(!host.saved().contains("CNI-"), "CHECK makes nothing");
    }
}

#[test]
fn what_a_pod_sends_passes_a_host_that_lets_nothing_pass() {
    let node = Node::new(V4);
    let sender = node.attached("pod-1");
    run("ip", "link add out type veth peer name far");
    let far = crate::node::Netns::new();
    run("ip", &format!("link set far netns {}", far.path()));
    run("ip", "addr add 192.0.2.1/24 dev out");
    run("ip", "link set out up");
    far.ip("addr add 192.0.2.2/24 dev far");
    far.ip("link set far up");
    far.ip("route add 10.244.0.0/16 via 192.0.2.1");
    run("iptables", "-P FORWARD DROP");
    let passes = || {
        let receiver = far.inside(|| std::net::UdpSocket::bind("192.0.2.2:0").unwrap());
        receiver.set_read_timeout(Some(std::time::Duration::from_millis(700))).unwrap();
        let to = receiver.local_addr().unwrap();
        let socket = sender.netns.inside(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
        socket.set_read_timeout(Some(std::time::Duration::from_millis(700))).unwrap();
        socket.send_to(b"hello", to).unwrap();
        let Ok((_, from)) = receiver.recv_from(&mut [0; 10]) else { return false };
        receiver.send_to(b"hello", from).unwrap();
        socket.recv_from(&mut [0; 10]).is_ok()
    };
    assert!(!passes());
    let conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "firewall", "prevResult": sender.result});
    node.call(Whose::Ours, "firewall", "ADD", &sender, &conf).expect_success();
    assert!(passes());
    node.call(Whose::Ours, "firewall", "DEL", &sender, &conf).expect_success();
    assert!(!passes());
}

#[test]
fn what_makes_no_sense_is_refused_and_no_hindrance_at_del() {
    let host = Host::new("nft");
    let whole = pod("pod-1", 2);
    for (more, said) in [
        (json!({"backend": "nftables"}), "'backend' must be \"iptables\" or \"firewalld\""),
        (
            json!({"backend": "iptables", "iptablesAdminChainName": "A B"}),
            "must be the name of a chain",
        ),
        (json!({"backend": "firewalld"}), "could not reach firewalld over D-Bus"),
    ] {
        let (_, msg) = host.call(Whose::Ours, "ADD", &whole, &more).expect_error();
        assert!(msg.contains(said), "{more}: {msg}");
        host.call(Whose::Ours, "DEL", &whole, &more).expect_success();
        assert!(!host.saved().contains("CNI-"));
    }
    let policy = json!({"ingressPolicy": "closed"});
    let (_, msg) = host.call(Whose::Ours, "ADD", &whole, &policy).expect_error();
    assert_eq!(msg, "unknown ingress policy: \"closed\"");
    let mut alone = pod("pod-1", 2);
    alone.result = Value::Null;
    let (_, msg) = host.call(Whose::Ours, "ADD", &alone, &json!({})).expect_error();
    assert_eq!(msg, "missing prevResult from earlier plugin");
    host.call(Whose::Ours, "DEL", &alone, &json!({})).expect_success();
}
