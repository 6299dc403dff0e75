//! Rules in iptables, of either kind: the same as the Go plugins write, so that these take over a node
//! of ours, and leave it to us, with running pods and published ports.

use std::path::Path;

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, V6, Whose, apart, run};

const KINDS: [&str; 2] = ["nft", "legacy"];

fn ports() -> Value {
    json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8053, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 9090, "containerPort": 90, "protocol": "sctp"},
    ])
}

/// A node whose `iptables` is of one kind.
struct Host {
    node: Node,
    kind: &'static str,
    path: String,
}

impl Host {
    fn new(kind: &'static str) -> Self {
        let node = Node::new(V4);
        let directory = node.path("path");
        std::fs::create_dir(&directory).unwrap();
        for name in ["iptables", "ip6tables"] {
            std::os::unix::fs::symlink(format!("/usr/sbin/{name}-{kind}"), directory.join(name))
                .unwrap();
        }
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", directory.display());
        Self { node, kind, path }
    }

    fn portmap(
        &self,
        whose: Whose,
        command: &str,
        pod: &Pod,
        more: &Value,
    ) -> crate::support::Answer {
        let mut conf = self.node.portmap_conf(pod);
        conf["prevResult"] = pod.result.clone();
        merge(&mut conf, more);
        let mut request = self.node.request(whose, "portmap", command, pod);
        request.search_path = self.path.clone();
        request.send(&conf.to_string())
    }

    /// The table of both families, without counters.
    fn saved(&self) -> String {
        ["iptables", "ip6tables"]
            .map(|name| run(&format!("{name}-{}-save", self.kind), "-t nat"))
            .concat()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| match line.strip_suffix(']') {
                Some(chain) => format!("{}\n", chain.split(" [").next().unwrap_or_default()),
                None => format!("{line}\n"),
            })
            .collect()
    }

    fn wipe(&self) {
        for name in ["iptables", "ip6tables"] {
            run(&format!("{name}-{}", self.kind), "-t nat -F");
            run(&format!("{name}-{}", self.kind), "-t nat -X");
        }
    }

    #[track_caller]
    fn assert_no_container_s_rules(&self) {
        let saved = self.saved();
        assert!(!saved.contains("DNAT --to") && !saved.contains("CNI-DN-"), "{saved}");
        let nft = run("nft", "list ruleset");
        assert!(!nft.contains("comment \"pod"), "{nft}");
    }
}

fn merge(conf: &mut Value, more: &Value) {
    for (key, value) in more.as_object().unwrap() {
        conf[key] = value.clone();
    }
}

/// A pod with addresses that no other plugin need give it. Of IPv4 alone where iptables is of the older
/// kind: Debian's `ip6tables-legacy -C` takes one port for another, so that the Go plugin maps only the
/// first.
fn pod(kind: &str, id: &str, mappings: Value) -> Pod {
    let mut pod = Pod::with_ports(id, mappings);
    pod.result = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": pod.netns.path()}],
        "ips": [
            {"address": "10.244.57.9/24", "interface": 0},
            {"address": "fd00:244:0:55::9/64", "interface": 0},
        ],
    });
    if kind == "legacy" {
        pod.result["ips"].as_array_mut().unwrap().pop();
    }
    pod
}

/// Every way to configure portmap that leads to other rules.
fn ways() -> Vec<(Value, Value)> {
    let many: Vec<Value> = (0..17)
        .map(|n| json!({"hostPort": 20000 + n, "containerPort": 80, "protocol": "tcp"}))
        .collect();
    let by_address = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "::1"},
        {"hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"},
        {"hostPort": 8083, "containerPort": 80, "protocol": "tcp", "hostIP": "::"},
    ]);
    vec![
        (json!({}), ports()),
        (json!({}), Value::Array(many)),
        (json!({}), by_address),
        (json!({"snat": false}), ports()),
        (json!({"masqAll": true}), ports()),
        (json!({"markMasqBit": 7}), ports()),
        (json!({"backend": "iptables"}), ports()),
        (
            json!({"conditionsV4": ["!", "-s", "192.0.2.0/24"], "conditionsV6": ["!", "-s", "2001:db8::/32"]}),
            ports(),
        ),
        (json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}), ports()),
    ]
}

#[test]
fn the_rules_are_the_go_plugin_s_to_the_letter() {
    for kind in KINDS {
        let host = Host::new(kind);
        for (more, mappings) in ways() {
            let ids = ["pod-1".to_owned(), "p".repeat(300)];
            // Its length matters to the comments alone.
            for id in ids.iter().take(if more == json!({}) { 2 } else { 1 }) {
                let pod = pod(kind, id, mappings.clone());
                let prepare = || {
                    host.wipe();
                    for name in ["iptables", "ip6tables"] {
                        run(&format!("{name}-{kind}"), "-t nat -N KUBE-MARK-MASQ");
                    }
                };
                prepare();
                host.portmap(Whose::Go, "ADD", &pod, &more).expect_success();
                let theirs = host.saved();
                host.portmap(Whose::Ours, "CHECK", &pod, &more).expect_success();
                prepare();
                host.portmap(Whose::Ours, "ADD", &pod, &more).expect_success();
                assert_eq!(host.saved(), theirs, "{kind} {more}");
                host.portmap(Whose::Go, "CHECK", &pod, &more).expect_success();
                host.portmap(Whose::Ours, "CHECK", &pod, &more).expect_success();
                host.portmap(Whose::Ours, "ADD", &pod, &more).expect_success();
                assert_eq!(host.saved(), theirs, "a second ADD adds nothing: {kind} {more}");
            }
        }
    }
}

#[test]
fn a_node_goes_back_to_the_go_plugins_and_no_port_answers_for_a_pod_that_is_gone() {
    for kind in KINDS {
        for (first, last) in [(Whose::Ours, Whose::Go), (Whose::Go, Whose::Ours)] {
            let host = Host::new(kind);
            for (more, mappings) in ways() {
                if more.get("externalSetMarkChain").is_some() {
                    continue;
                }
                let pods = [pod(kind, "pod-1", mappings.clone()), pod(kind, "pod-2", mappings)];
                for pod in &pods {
                    host.portmap(first, "ADD", pod, &more).expect_success();
                }
                for pod in &pods {
                    host.portmap(last, "CHECK", pod, &more).expect_success();
                    host.portmap(last, "DEL", pod, &more).expect_success();
                }
                host.assert_no_container_s_rules();
            }
        }
    }
}

#[test]
fn the_whole_chain_goes_back_to_the_go_plugins() {
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.delegate = json!({"isDefaultGateway": true, "ipMasq": true});
    for (first, last) in [(Whose::Ours, Whose::Go), (Whose::Go, Whose::Ours)] {
        let mut pods: Vec<Pod> =
            (0..3).map(|n| Pod::with_ports(&format!("pod-{n}"), ports())).collect();
        for pod in &mut pods {
            node.add(first, pod);
        }
        let rules = run("nft", "list ruleset");
        assert!(rules.contains("CNI-DN-") && rules.contains(&pods[0].ip().to_string()), "{rules}");
        for pod in &pods {
            node.check(last, pod);
            node.del(last, pod);
        }
        node.assert_clean();
        assert!(!run("iptables", "-t nat -S POSTROUTING").contains("cbr0"));
    }
}

#[test]
fn of_many_ports_all_are_mapped_where_ip6tables_legacy_takes_one_for_another() {
    let host = Host::new("legacy");
    let (_, mappings) = ways().swap_remove(1);
    let pod = pod("both families", "pod-1", mappings);
    host.portmap(Whose::Ours, "ADD", &pod, &json!({})).expect_success();
    let saved = run("ip6tables-legacy-save", "-t nat");
    assert_eq!(saved.matches("DNAT --to").count(), 17, "{saved}");
    host.portmap(Whose::Ours, "CHECK", &pod, &json!({})).expect_success();
    let rule = saved.lines().find(|line| line.contains("--dport 20013")).unwrap();
    write_to(
        "ip6tables-legacy-restore",
        &format!("*nat\n{}\nCOMMIT\n", rule.replacen("-A", "-D", 1)),
    );
    let (_, msg) = host.portmap(Whose::Ours, "CHECK", &pod, &json!({})).expect_error();
    assert!(msg.contains("iptables lacks the rule") && msg.contains("20013"), "{msg}");
    host.portmap(Whose::Ours, "DEL", &pod, &json!({})).expect_success();
    host.assert_no_container_s_rules();
}

#[test]
fn a_port_of_one_address_stays_with_its_pod_when_a_newer_one_takes_that_of_all() {
    for kind in KINDS {
        let host = Host::new(kind);
        let none = json!({});
        let of_one = json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}
        ]);
        let of_all = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let mut mixed = of_all.clone();
        mixed.as_array_mut().unwrap().push(json!(
            {"hostPort": 8443, "containerPort": 443, "protocol": "tcp", "hostIP": "192.0.2.1"}
        ));
        let ipv4 = |id: &str, mappings: &Value| pod("legacy", id, mappings.clone());
        let pods = [
            ipv4("pod-one", &of_one),
            ipv4("pod-all", &of_all),
            ipv4("pod-mixed", &mixed),
            ipv4("pod-newer", &of_all),
        ];
        for pod in &pods {
            host.portmap(Whose::Ours, "ADD", pod, &none).expect_success();
        }
        let saved = host.saved();
        let order: Vec<&str> = saved
            .lines()
            .filter(|line| line.starts_with("-A CNI-HOSTPORT-DNAT"))
            .filter_map(|line| line.split("id: \\\"").nth(1)?.split('\\').next())
            .collect();
        assert_eq!(order, ["pod-one", "pod-mixed", "pod-newer", "pod-all"], "{kind}: {saved}");
        host.portmap(Whose::Ours, "CHECK", &pods[0], &none).expect_success();
        let (_, msg) = host.portmap(Whose::Ours, "CHECK", &pods[1], &none).expect_error();
        assert!(msg.contains("host port 8080/tcp leads to another container"), "{kind}: {msg}");
        for pod in &pods {
            host.portmap(Whose::Go, "DEL", pod, &none).expect_success();
        }
        host.assert_no_container_s_rules();
    }
}

#[test]
fn masquerading_is_written_as_the_go_bridge_writes_it() {
    for kind in KINDS {
        let host = Host::new(kind);
        let mut saved = Vec::new();
        for whose in [Whose::Go, Whose::Ours] {
            host.wipe();
            let pod = Pod::new("pod-1");
            let conf = json!({
                "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0",
                "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables",
                "ipam": {
                    "type": "host-local",
                    "dataDir": host.node.path(&format!("networks-{whose:?}")),
                    "ranges": [[{"subnet": "10.244.57.0/24"}], [{"subnet": "fd00:244:0:55::/64"}]],
                },
            });
            let mut request = host.node.request(whose, "bridge", "ADD", &pod);
            request.search_path = host.path.clone();
            request.send(&conf.to_string()).expect_success();
            saved.push(host.saved());
            request.command = "DEL".into();
            request.send(&conf.to_string()).expect_success();
            assert!(!host.saved().contains("MASQUERADE"), "{}", host.saved());
        }
        assert_eq!(saved[0], saved[1]);
    }
}

#[test]
fn check_names_the_rule_that_is_missing_and_the_next_add_puts_it_back() {
    for kind in KINDS {
        let host = Host::new(kind);
        let none = json!({});
        let first = pod(kind, "pod-1", ports());
        host.portmap(Whose::Ours, "ADD", &first, &none).expect_success();
        let whole = host.saved();
        for line in whole.lines().filter(|line| line.starts_with("-A ")) {
            // Of the lines of both families, those of IPv6 are refused by the other's program.
            let program = if line.contains("fd00:") { "ip6tables" } else { "iptables" };
            let script = format!("*nat\n{}\nCOMMIT\n", line.replacen("-A", "-D", 1));
            write_to(&format!("{program}-{kind}-restore"), &script);
            let (_, msg) = host.portmap(Whose::Ours, "CHECK", &first, &none).expect_error();
            assert!(msg.contains("iptables lacks the rule \"-A "), "{msg}");
            host.portmap(Whose::Ours, "ADD", &first, &none).expect_success();
            host.portmap(Whose::Ours, "CHECK", &first, &none).expect_success();
            host.portmap(Whose::Go, "CHECK", &first, &none).expect_success();
        }
        let mut lines: Vec<String> = host.saved().lines().map(str::to_owned).collect();
        let mut expected: Vec<String> = whole.lines().map(str::to_owned).collect();
        lines.sort();
        expected.sort();
        assert_eq!(lines, expected, "nothing is there twice");
        // The table is emptied.
        host.wipe();
        let second = pod(kind, "pod-2", ports());
        host.portmap(Whose::Ours, "ADD", &second, &none).expect_success();
        host.portmap(Whose::Go, "CHECK", &second, &none).expect_success();
    }
}

#[test]
fn gc_removes_the_chains_of_pods_that_live_no_more_whoever_made_them() {
    for kind in KINDS {
        let host = Host::new(kind);
        let none = json!({});
        let pods = ["pod-1", "pod-2", "pod-3", &"p".repeat(300)].map(|id| pod(kind, id, ports()));
        for (pod, whose) in pods.iter().zip([Whose::Go, Whose::Go, Whose::Ours, Whose::Go]) {
            host.portmap(whose, "ADD", pod, &none).expect_success();
        }
        let mut other = json!({"name": "other"});
        host.portmap(Whose::Go, "ADD", &pods[1], &other).expect_success();
        other["cniVersion"] = "1.1.0".into();
        let valid = json!([{"containerID": "pod-1", "ifname": "eth0"}]);
        let gc = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid});
        host.portmap(Whose::Ours, "GC", &pods[0], &gc).expect_success();
        let saved = host.saved();
        assert!(!saved.contains("pod-3") && !saved.contains("pppp"), "{saved}");
        assert!(!saved.contains(r#"name: \"cbr0\" id: \"pod-2\""#), "{saved}");
        host.portmap(Whose::Go, "CHECK", &pods[0], &none).expect_success();
        host.portmap(Whose::Go, "CHECK", &pods[1], &other).expect_success();
        assert_eq!(saved.matches(":CNI-DN-").count(), if kind == "nft" { 4 } else { 2 }, "{saved}");
    }
}

#[test]
fn gc_removes_mappings_in_nftables_that_the_go_plugin_has_left_of_a_pod_that_is_gone() {
    let mut node = Node::new(&apart(&format!("{V4}{V6}"), 59));
    node.version = "1.1.0";
    node.portmap = json!({"backend": "nftables"});
    let mut pods = ["pod-alive", "pod-other", "pod-gone"].map(|id| Pod::with_ports(id, ports()));
    for pod in &mut pods {
        node.add(Whose::Go, pod);
    }
    pods[2].netns.ip("link del eth0");
    let inhabit = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mut process = pods[1].netns.inside(inhabit);
    let mut conf = node.portmap_conf(&pods[0]);
    conf["cni.dev/valid-attachments"] = json!([{"containerID": "pod-alive", "ifname": "eth0"}]);
    node.call(Whose::Ours, "portmap", "GC", &pods[0], &conf).expect_success();
    process.kill().unwrap();
    process.wait().unwrap();
    let rules = run("nft", "list ruleset");
    assert!(!rules.contains("pod-gone"), "{rules}");
    // It may belong to another network, of which we are not asked.
    assert!(rules.contains("pod-alive") && rules.contains("pod-other"), "{rules}");
}

#[test]
fn gc_removes_the_masquerading_of_pods_that_are_gone() {
    let node = Node::new(V4);
    let conf = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0",
        "isGateway": true, "ipMasq": true,
        "ipam": {
            "type": "host-local", "dataDir": node.path("networks"),
            "ranges": [[{"subnet": "10.244.57.0/24"}]],
        },
    });
    let pods = ["pod-1", "pod-2"].map(Pod::new);
    for pod in &pods {
        node.call(Whose::Go, "bridge", "ADD", pod, &conf).expect_success();
    }
    let mut gc = conf;
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "pod-2", "ifname": "eth0"}]);
    node.call(Whose::Ours, "bridge", "GC", &pods[0], &gc).expect_success();
    let saved = run("iptables", "-t nat -S");
    assert!(!saved.contains("pod-1") && saved.contains("pod-2"), "{saved}");
    assert_eq!(saved.matches("-N CNI-").count(), 1, "{saved}");
}

#[test]
fn the_host_s_iptables_is_taken_where_there_is_one_and_nftables_where_there_is_none() {
    let host = Host::new("nft");
    let pod = pod("nft", "pod-1", ports());
    host.portmap(Whose::Ours, "ADD", &pod, &json!({})).expect_success();
    assert!(host.saved().contains("CNI-DN-"));
    host.portmap(Whose::Ours, "DEL", &pod, &json!({})).expect_success();
    host.assert_no_container_s_rules();

    host.portmap(Whose::Ours, "ADD", &pod, &json!({"backend": "nftables"})).expect_success();
    assert!(!host.saved().contains("CNI-DN-"));
    // It is found without being asked for.
    host.portmap(Whose::Ours, "CHECK", &pod, &json!({})).expect_success();
    host.portmap(Whose::Ours, "DEL", &pod, &json!({})).expect_success();
    host.assert_no_container_s_rules();

    let without = Host { path: "/usr/bin:/bin".into(), ..host };
    assert!(!Path::new("/usr/bin/iptables").exists(), "this test takes iptables to be in sbin");
    without.portmap(Whose::Ours, "ADD", &pod, &json!({})).expect_success();
    assert!(!without.saved().contains("CNI-DN-"));
    without.portmap(Whose::Ours, "CHECK", &pod, &json!({})).expect_success();
    without.portmap(Whose::Ours, "DEL", &pod, &json!({})).expect_success();
    without.assert_no_container_s_rules();
}

#[test]
fn conditions_in_the_words_of_nft_hold_for_every_mapping() {
    let host = Host::new("nft");
    let pod = pod("nft", "pod-1", ports());
    let more = json!({
        "backend": "nftables",
        "conditionsV4": ["ip", "saddr", "!=", "192.0.2.0/24"],
        "conditionsV6": ["ip6 saddr != 2001:db8::/32"],
    });
    for _ in 0..2 {
        host.portmap(Whose::Ours, "ADD", &pod, &more).expect_success();
        let rules = run("nft", "list ruleset");
        assert_eq!(rules.matches("dnat to").count(), 6, "{rules}");
        for line in rules.lines().filter(|line| line.contains("dnat to")) {
            let condition = if line.contains("fd00:") { "2001:db8::/32" } else { "192.0.2.0/24" };
            assert!(line.contains(condition), "{line}");
        }
    }
    host.portmap(Whose::Ours, "CHECK", &pod, &more).expect_success();
    host.portmap(Whose::Go, "CHECK", &pod, &more).expect_success();
    host.portmap(Whose::Go, "DEL", &pod, &more).expect_success();
    host.assert_no_container_s_rules();

    let wrong = json!({"backend": "nftables", "conditionsV4": ["no such words"]});
    let (_, msg) = host.portmap(Whose::Ours, "ADD", &pod, &wrong).expect_error();
    assert!(msg.contains("nft refused the mappings"), "{msg}");
    host.assert_no_container_s_rules();
}

#[test]
fn what_a_backend_does_not_know_is_refused_at_add_and_no_hindrance_at_del() {
    let host = Host::new("nft");
    let pod = pod("nft", "pod-1", ports());
    for (more, said) in [
        (
            json!({"backend": "ebtables"}),
            "'backend' must be \"iptables\" or \"nftables\", not \"ebtables\"",
        ),
        (json!({"backend": ""}), "'backend' must be"),
        (
            json!({"backend": "nftables", "externalSetMarkChain": "X"}),
            "iptables-specific options [externalSetMarkChain]",
        ),
        (
            json!({"backend": "nftables", "conditionsV4": ["-s", "1.2.3.4"]}),
            "iptables-specific options [conditionsV4]",
        ),
        (json!({"conditionsV6": ["ip6 saddr ::1"]}), "nftables-specific options [conditionsV6]"),
        (
            json!({"markMasqBit": 5, "externalSetMarkChain": "X"}),
            "Cannot specify externalSetMarkChain and markMasqBit",
        ),
        (json!({"conditionsV4": ["-s", "1.2.3.4\nCOMMIT"]}), "'conditionsV4' holds a line break"),
    ] {
        let (_, msg) = host.portmap(Whose::Ours, "ADD", &pod, &more).expect_error();
        assert!(msg.contains(said), "{more}: {msg}");
        host.portmap(Whose::Ours, "DEL", &pod, &more).expect_success();
        host.assert_no_container_s_rules();
    }
}

pub(crate) fn write_to(program: &str, text: &str) {
    use std::io::Write;
    let mut child = std::process::Command::new(program)
        .arg("--noflush")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program}: {text}");
}
