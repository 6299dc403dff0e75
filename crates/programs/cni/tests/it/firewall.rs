//! What ADD and CHECK make of rules that somebody has removed, of many ports, and of ports that nobody
//! has any more.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::node::{Netns, Node, Pod, V4, V6, Whose, run};
use crate::traffic::{answers_tcp, ask_tcp, serve_tcp};

const HOST: [u8; 4] = [192, 0, 2, 1];
const FAR: [u8; 4] = [192, 0, 2, 2];

fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    (ip.into(), port).into()
}

/// Somebody outside, one hop away from the node.
fn world() -> Netns {
    let world = Netns::new();
    run("ip", "link add up0 type veth peer name far0");
    run("ip", &format!("link set far0 netns {}", world.path()));
    run("ip", "addr add 192.0.2.1/24 dev up0");
    run("ip", "addr add 192.0.2.3/24 dev up0");
    world.ip("addr add 192.0.2.2/24 dev far0");
    run("ip", "link set up0 up");
    world.ip("link set far0 up");
    world
}

fn port(host: u16, container: u16) -> Value {
    json!({"hostPort": host, "containerPort": container, "protocol": "tcp"})
}

const NFTABLES: &str = "nftables";
const IPTABLES: &str = "iptables";

/// Ways in which a firewall loses what ADD has once made.
const LOST_PORTS: [(&str, &str); 16] = [
    (NFTABLES, "nft flush table ip cni_hostport"),
    (NFTABLES, "nft delete table ip cni_hostport"),
    (NFTABLES, "nft flush chain ip cni_hostport prerouting"),
    (NFTABLES, "nft flush chain ip cni_hostport hostports_all"),
    (NFTABLES, "nft flush chain ip cni_hostport masquerading"),
    (NFTABLES, "nft delete chain ip cni_hostport prerouting"),
    (NFTABLES, "nft delete chain ip cni_hostport output"),
    (NFTABLES, "nft delete chain ip cni_hostport masquerading"),
    (NFTABLES, "nft flush ruleset"),
    (IPTABLES, "iptables -t nat -F"),
    (IPTABLES, "iptables -t nat -F PREROUTING"),
    (IPTABLES, "iptables -t nat -F OUTPUT"),
    (IPTABLES, "iptables -t nat -F POSTROUTING"),
    (IPTABLES, "iptables -t nat -F CNI-HOSTPORT-DNAT"),
    (IPTABLES, "iptables -t nat -F CNI-HOSTPORT-SETMARK"),
    (IPTABLES, "nft flush ruleset"),
];

fn lose(what: &str) {
    if let Some(chain) = what.strip_prefix("nft delete chain") {
        run("nft", &format!("flush chain{chain}"));
    }
    let (program, words) = what.split_once(' ').unwrap();
    run(program, words);
}

#[test]
fn ports_are_there_after_an_add_whatever_the_firewall_has_lost_and_check_notices() {
    for (backend, lost) in LOST_PORTS {
        std::thread::spawn(move || {
            let mut node = Node::new(V4);
            node.portmap = json!({"backend": backend});
            let world = world();
            let mut old = Pod::with_ports("pod-old", json!([port(8080, 80)]));
            node.add(Whose::Ours, &mut old);
            node.check(Whose::Ours, &old);
            lose(lost);
            let conf = node.portmap_conf(&old);
            let (_, msg) = node.call(Whose::Ours, "portmap", "CHECK", &old, &conf).expect_error();
            assert!(msg.to_lowercase().contains("hostport"), "{lost}: {msg}");
            let mut new = Pod::with_ports("pod-new", json!([port(8081, 80)]));
            node.add(Whose::Ours, &mut new);
            serve_tcp(&new.netns, at(new.ip(), 80));
            assert_eq!(ask_tcp(Some(&world), at(HOST, 8081)), Some(FAR.into()), "{lost}: outside");
            assert!(ask_tcp(None, at([127, 0, 0, 1], 8081)).is_some(), "{lost}: localhost");
            assert!(ask_tcp(Some(&new.netns), at(HOST, 8081)).is_some(), "{lost}: hairpin");
            node.check(Whose::Ours, &new);
            node.del(Whose::Ours, &new);
            node.del(Whose::Ours, &old);
            node.assert_clean();
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_base_chain_that_hangs_elsewhere_is_put_where_it_belongs() {
    let mut node = Node::new(V4);
    node.portmap = json!({"backend": NFTABLES});
    let world = world();
    run("nft", "add table ip cni_hostport");
    run("nft", "add chain ip cni_hostport prerouting { type filter hook input priority 5 ; }");
    run("nft", "add chain ip cni_hostport output");
    let mut pod = Pod::with_ports("pod-1", json!([port(8080, 80)]));
    node.add(Whose::Ours, &mut pod);
    serve_tcp(&pod.netns, at(pod.ip(), 80));
    assert_eq!(ask_tcp(Some(&world), at(HOST, 8080)), Some(FAR.into()));
    node.check(Whose::Ours, &pod);
}

#[test]
fn egress_is_masqueraded_after_an_add_whatever_the_firewall_has_lost_and_check_notices() {
    for (backend, lost) in [
        (NFTABLES, "nft flush table inet cni_plugins_masquerade"),
        (NFTABLES, "nft delete table inet cni_plugins_masquerade"),
        (NFTABLES, "nft flush chain inet cni_plugins_masquerade postrouting"),
        (NFTABLES, "nft flush chain inet cni_plugins_masquerade masq_checks"),
        (NFTABLES, "nft delete chain inet cni_plugins_masquerade postrouting"),
        (NFTABLES, "nft flush ruleset"),
        (IPTABLES, "iptables -t nat -F"),
        (IPTABLES, "iptables -t nat -F POSTROUTING"),
        (IPTABLES, "nft flush ruleset"),
    ] {
        std::thread::spawn(move || {
            let mut node = Node::new(V4);
            node.delegate =
                json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend});
            let world = world();
            serve_tcp(&world, at(FAR, 80));
            let old = node.attached("pod-old");
            node.check(Whose::Ours, &old);
            lose(lost);
            let conf = node.flannel_conf();
            let (_, msg) = node.call(Whose::Ours, "flannel", "CHECK", &old, &conf).expect_error();
            assert!(msg.contains("masquerad"), "{lost}: {msg}");
            let new = node.attached("pod-new");
            assert_eq!(
                ask_tcp(Some(&new.netns), at(FAR, 80)),
                Some(HOST.into()),
                "{lost}: seen as the node"
            );
            node.check(Whose::Ours, &new);
            node.del(Whose::Ours, &new);
            node.del(Whose::Ours, &old);
            node.assert_clean();
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_thousand_ports_are_mapped_checked_and_removed() {
    for families in [V4.to_owned(), format!("{V4}{V6}")] {
        std::thread::spawn(move || {
            let node = Node::new(&families);
            let world = world();
            let ports: Vec<Value> = (0..1000)
                .map(|n| {
                    let protocol = if n % 2 == 0 { "tcp" } else { "udp" };
                    json!({"hostPort": 20000 + n, "containerPort": 80, "protocol": protocol})
                })
                .collect();
            let mut pod = Pod::with_ports("pod-1", ports.into());
            // The first on the host, and one of many.
            for _ in 0..2 {
                node.add(Whose::Ours, &mut pod);
                node.check(Whose::Ours, &pod);
                serve_tcp(&pod.netns, at(pod.ip(), 80));
                for n in [20000, 20500, 20998] {
                    assert_eq!(ask_tcp(Some(&world), at(HOST, n)), Some(FAR.into()), "{n}");
                }
                node.del(Whose::Ours, &pod);
                node.assert_clean();
                pod = Pod { netns: Netns::new(), ..pod };
            }
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_mapping_of_one_address_goes_before_one_of_all_whichever_is_listed_first() {
    let specific = json!({"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.3"});
    let wildcard = json!({"hostPort": 8080, "containerPort": 81});
    let any = json!({"hostPort": 8080, "containerPort": 81, "hostIP": "0.0.0.0"});
    for list in [[&specific, &wildcard], [&wildcard, &specific], [&specific, &any]] {
        let list = json!(list);
        std::thread::spawn(move || {
            let node = Node::new(V4);
            let world = world();
            let mut pod = Pod::with_ports("pod-1", list);
            node.add(Whose::Ours, &mut pod);
            serve_tcp(&pod.netns, at(pod.ip(), 80));
            assert!(ask_tcp(Some(&world), at([192, 0, 2, 3], 8080)).is_some(), "the one");
            assert!(!answers_tcp(Some(&world), at(HOST, 8080)), "nobody serves the others");
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_mapping_of_one_address_goes_before_another_pod_s_of_all() {
    let node = Node::new(V4);
    let world = world();
    let specific = json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.3"}]);
    let wildcard = json!([{"hostPort": 8080, "containerPort": 81}]);
    let mut one = Pod::with_ports("pod-one", specific);
    let mut all = Pod::with_ports("pod-all", wildcard);
    node.add(Whose::Ours, &mut one);
    node.add(Whose::Ours, &mut all);
    serve_tcp(&one.netns, at(one.ip(), 80));
    serve_tcp(&all.netns, at(all.ip(), 81));
    let answers = |to| ask_tcp(Some(&world), at(to, 8080)).is_some();
    assert!(answers([192, 0, 2, 3]) && answers(HOST));
    node.del(Whose::Ours, &one);
    assert!(answers([192, 0, 2, 3]), "now it is among all");
    node.del(Whose::Ours, &all);
    node.assert_clean();
}

#[test]
fn check_names_a_host_port_that_leads_to_another_pod_or_elsewhere_in_nftables() {
    let mut node = Node::new(V4);
    node.portmap = json!({"backend": NFTABLES});
    let mut pods = [
        ("pod-one", json!([{"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.3"}])),
        ("pod-old", json!([port(8080, 80)])),
        ("pod-new", json!([port(8080, 80), port(8081, 80)])),
    ]
    .map(|(name, ports)| Pod::with_ports(name, ports));
    for pod in &mut pods {
        node.add(Whose::Ours, pod);
    }
    let said = |pod: &Pod| {
        let conf = node.portmap_conf(pod);
        node.call(Whose::Ours, "portmap", "CHECK", pod, &conf).expect_error().1
    };
    let [one, old, new] = &pods;
    // That of one address goes first, and of two of all addresses the newer.
    node.check(Whose::Ours, one);
    node.check(Whose::Ours, new);
    let taken = said(old);
    assert!(taken.contains("host port 8080 leads elsewhere"), "{taken}");
    assert!(taken.contains("that of pod-new"), "{taken}");
    run("nft", "insert rule ip cni_hostport hostports tcp dport 8081 counter dnat to 10.99.0.1:80");
    let taken = said(new);
    assert!(taken.contains("host port 8081 leads elsewhere"), "{taken}");
    node.check(Whose::Ours, one);
    run("nft", "insert rule ip cni_hostport hostports ip saddr 203.0.113.9 tcp dport 8080 drop");
    node.check(Whose::Ours, one);
    for pod in &pods {
        node.del(Whose::Ours, pod);
    }
}

#[test]
fn ports_of_containers_with_long_names_in_networks_with_long_names_do_not_stay() {
    for (id, network) in [(127, 4), (128, 4), (129, 101), (200, 128), (200, 200)] {
        std::thread::spawn(move || {
            let mut node = Node::new(V4);
            node.version = "1.1.0";
            node.delegate["ipMasq"] = true.into();
            node.network = "n".repeat(network);
            // They differ in their last character alone.
            let ids = ["a", "b"].map(|last| format!("{}{last}", "c".repeat(id - 1)));
            let mut pods = [8080, 8081].map(|host| json!([port(host, 80)]));
            let mut pods = ids
                .each_ref()
                .map(|id| Pod::with_ports(id, pods[usize::from(id.ends_with('b'))].take()));
            for pod in &mut pods {
                node.add(Whose::Ours, pod);
            }
            node.del(Whose::Ours, &pods[0]);
            node.check(Whose::Ours, &pods[1]);
            let mut conf = node.portmap_conf(&pods[1]);
            conf["cni.dev/valid-attachments"] = json!([{"containerID": ids[1], "ifname": "eth0"}]);
            let collect = |conf: &Value| {
                let mut request = node.request(Whose::Ours, "portmap", "GC", &pods[1]);
                (request.container_id, request.netns, request.ifname) = Default::default();
                request.send(&conf.to_string()).expect_success();
            };
            collect(&conf);
            node.check(Whose::Ours, &pods[1]);
            conf["cni.dev/valid-attachments"] = json!([]);
            collect(&conf);
            node.call(Whose::Ours, "flannel", "DEL", &pods[1], &node.flannel_conf())
                .expect_success();
            node.assert_clean();
            assert!(!run("nft", "list ruleset").contains("comment \"c"));
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_reclaimed_address_brings_no_ports_of_its_last_owner_with_it() {
    let node = Node::new(V4);
    let mut dead = Pod::with_ports("pod-dead", json!([port(8080, 80)]));
    node.add(Whose::Ours, &mut dead);
    let ip = dead.ip();
    drop(dead);
    for last in 2..=254 {
        let path = node.reservations_dir().join(format!("10.244.57.{last}"));
        if !path.exists() {
            fs::write(&path, "forgotten\r\neth0").unwrap();
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    let _pod = node.attached("pod-new");
    let rules = run("nft", "list ruleset");
    assert!(!rules.contains(&ip.to_string()), "{rules}");
    assert!(!rules.contains("pod-dead"), "{rules}");
}

/// With `route_localnet`, which a published port needs, the host would take packets for its loopback
/// address from anywhere (CVE-2020-8558).
#[test]
fn a_published_port_does_not_open_the_host_s_loopback_address_to_pods() {
    for backend in [NFTABLES, IPTABLES] {
        std::thread::spawn(move || keeps_loopback_closed(backend)).join().unwrap();
    }
}

fn keeps_loopback_closed(backend: &str) {
    let mut node = Node::new(V4);
    node.portmap = json!({"backend": backend});
    let mut pod = Pod::with_ports("pod-1", json!([port(8080, 80)]));
    node.add(Whose::Ours, &mut pod);
    serve_tcp(&Netns::current(), at([127, 0, 0, 1], 6443));
    let reach = || {
        pod.netns.inside(|| run("sysctl", "-q -w net.ipv4.conf.eth0.route_localnet=1"));
        pod.netns.ip("route add 127.0.0.1/32 via 10.244.57.1 dev eth0 src 10.244.57.2 table 77");
        pod.netns.ip("rule add to 127.0.0.1 table 77 priority 0");
        // Before the namespace's own addresses are looked at.
        pod.netns.ip("rule del from all lookup local");
        pod.netns.ip("rule add from all lookup local priority 100");
        answers_tcp(Some(&pod.netns), at([127, 0, 0, 1], 6443))
    };
    assert!(!reach(), "what listens on the host's loopback address is not for pods");
    serve_tcp(&pod.netns, at(pod.ip(), 80));
    assert!(ask_tcp(None, at([127, 0, 0, 1], 8080)).is_some(), "the port itself works");
}

#[test]
fn where_the_loopback_address_cannot_be_guarded_it_is_not_opened() {
    let mut node = Node::new(V4);
    node.portmap = json!({"backend": IPTABLES});
    // A chain by the guard's name that cannot be made one.
    run("nft", "add table ip cni_hostport");
    run("nft", "add chain ip cni_hostport loopback_guard");
    run("nft", "add chain ip cni_hostport mine");
    run("nft", "add rule ip cni_hostport mine jump loopback_guard");
    let mut pod = node.attached("pod-1");
    pod.port_mappings = json!([port(8080, 80)]);
    let mut conf = node.portmap_conf(&pod);
    conf["prevResult"] = pod.result.clone();
    let added = node.request(Whose::Ours, "portmap", "ADD", &pod).send(&conf.to_string());
    let said = added.expect_success().stderr;
    assert!(said.contains("loopback address is not opened"), "{said}");
    assert_eq!(run("sysctl", "-n net.ipv4.conf.cni0.route_localnet").trim(), "0");
    serve_tcp(&pod.netns, at(pod.ip(), 80));
    assert!(ask_tcp(None, at([10, 244, 57, 1], 8080)).is_some(), "the port itself works");
}
