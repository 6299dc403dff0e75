//! `flannelctl migrate --check` on a node that the Go flannel serves, as it is and with obstacles.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use flannel_kube::testing::{ApiServer, NodeSpec, manifest_rules};
use flannel_lab::{Lab, Node, Output};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(60);

/// The Go flannel under the name of a daemon, by which it is known. Copied once for all tests.
fn go_flanneld() -> PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(copy_of_go_flanneld).clone()
}

fn copy_of_go_flanneld() -> PathBuf {
    let path = std::env::var_os("FLANNEL_TEST_GO_FLANNELD").map(PathBuf::from);
    let path = path.unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME is set");
        PathBuf::from(home).join(".cache/flannel-rs/bin/go-flanneld")
    });
    assert!(path.exists(), "no Go flannel at {}: run `scripts/deps go-flannel`", path.display());
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("go-flannel");
    std::fs::create_dir_all(&directory).unwrap();
    let copy = directory.join("flanneld");
    if !copy.exists() {
        let beside = directory.join(format!("flanneld.{}", std::process::id()));
        std::fs::copy(path, &beside).unwrap();
        std::fs::rename(beside, &copy).unwrap();
    }
    copy
}

fn check(node: &Node, more: &[&str]) -> Output {
    node.output(&[&[FLANNELCTL, "migrate", "--check"], more].concat()).unwrap()
}

/// Its status, and what it found of a part: verdict and text.
fn found(node: &Node, part: &str) -> (i32, Vec<(String, String)>) {
    let output = check(node, &["-o", "json"]);
    let all: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = all["findings"].as_array().unwrap().iter();
    let of = findings.filter(|finding| finding["part"] == part);
    let of = of.map(|finding| (text(&finding["verdict"]), text(&finding["text"])));
    (output.status.code().unwrap(), of.collect())
}

fn has(found: &(i32, Vec<(String, String)>), status: i32, verdict: &str, words: &str) {
    let said = |(of, text): &(String, String)| of == verdict && text.contains(words);
    assert!(found.0 == status && found.1.iter().any(said), "{verdict} {words:?}: {found:?}");
}

/// Nothing of the node's is changed by looking.
fn state(node: &Node) -> String {
    ["ip route", "ip -d link", "iptables-save", "cat /run/flannel/subnet.env"]
        .map(|command| node.exec(&["sh", "-c", command]).unwrap())
        .concat()
        .lines()
        .filter(|line| !line.starts_with(['#', ':']))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_node_of_the_go_flannel_is_looked_at_and_obstacles_are_named() {
    let lab = Lab::builder().nodes(3).flanneld(go_flanneld()).ready_limit(LIMIT).start().unwrap();
    let node = lab.node(1);
    lab.wait_until("routes to the others", LIMIT, || {
        node.ip("route").is_ok_and(|routes| routes.matches("dev flannel.1").count() == 2)
    })
    .unwrap();
    let before = state(node);
    let text = check(node, &[]);
    assert_eq!(text.status.code(), Some(0), "{}{}", text.stdout, text.stderr);
    assert!(text.stdout.contains("this node can be moved"), "{}", text.stdout);
    has(&found(node, "subnet"), 0, "stays", "is kept");
    has(&found(node, "mtu"), 0, "stays", "1450");
    has(&found(node, "devices"), 0, "stays", "flannel.1 is kept");
    has(&found(node, "routes"), 0, "changes", "2 are kept and get the protocol 244");
    assert_eq!(state(node), before, "looking has changed something");

    // What it has said comes true.
    let own = node.subnet_env().unwrap();
    let mac = node.exec(&["cat", "/sys/class/net/flannel.1/address"]).unwrap();
    let ours = PathBuf::from(FLANNELCTL).with_file_name("flanneld");
    node.flanneld().restart_with(&ours).unwrap();
    assert_eq!(node.subnet_env().unwrap(), own);
    assert_eq!(node.exec(&["cat", "/sys/class/net/flannel.1/address"]).unwrap(), mac);
    lab.wait_until("the routes to be marked", LIMIT, || {
        node.ip("route show proto 244").is_ok_and(|routes| routes.lines().count() == 2)
    })
    .unwrap();
    has(&found(node, "routes"), 0, "stays", "2 are kept as they are");
    node.flanneld().restart_with(&go_flanneld()).unwrap();

    // Obstacles.
    let peer = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
    node.ip(&format!("route del {peer}")).unwrap();
    node.ip(&format!("route add {peer} via 192.168.100.3")).unwrap();
    has(&found(node, "routes"), 1, "in-the-way", &format!("{peer} via 192.168.100.3 dev eth0"));
    node.ip(&format!("route del {peer}")).unwrap();
    has(&found(node, "routes"), 0, "changes", "missing and are made");

    node.exec(&["mkdir", "-p", "/run/net.d"]).unwrap();
    let write = |name: &str, text: &str| {
        node.exec(&["sh", "-c", &format!("printf '%s' '{text}' > /run/net.d/{name}")]).unwrap();
    };
    let cni = |status: i32, verdict: &str, words: &str| {
        let output = check(node, &["--cni-conf-dir", "/run/net.d"]);
        let line = output.stdout.lines().find(|line| line.contains(" cni ")).unwrap_or_default();
        assert!(line.starts_with(verdict) && line.contains(words), "{}", output.stdout);
        assert_eq!(output.status.code(), Some(status), "{}", output.stdout);
    };
    write("10-flannel.conflist", r#"{"plugins":[{"type":"flannel"}]}"#);
    cni(0, "stays", "10-flannel.conflist");
    write("05-other.conflist", r#"{"plugins":[{"type":"other"}]}"#);
    cni(1, "IN THE WAY", "05-other.conflist, before 10-flannel.conflist");
    write("05-other.conflist", "{");
    cni(1, "IN THE WAY", "05-other.conflist cannot be read");

    // A lease that is not there, and a store that does not answer.
    let file = node.exec(&["cat", "/run/flannel/subnet.env"]).unwrap();
    let elsewhere =
        "sed -i 's|^FLANNEL_SUBNET=.*|FLANNEL_SUBNET=10.244.251.1/24|' /run/flannel/subnet.env";
    node.exec(&["sh", "-c", elsewhere]).unwrap();
    has(&found(node, "subnet"), 1, "in-the-way", "no lease in the store is on it");
    node.exec(&["sh", "-c", &format!("printf '%s' '{file}' > /run/flannel/subnet.env")]).unwrap();
    node.flanneld().stop().unwrap();
    let output = check(node, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", output.stdout);
    assert!(output.stderr.contains("no flanneld runs"), "{}", output.stderr);
}

#[test]
fn a_device_of_somebody_else_under_flannels_name_is_in_the_way() {
    let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}"#;
    let lab = Lab::builder().nodes(1).config_json(config).flanneld(go_flanneld()).start().unwrap();
    let node = lab.node(1);
    has(&found(node, "mtu"), 0, "stays", "1500");
    node.exec(&["ip", "link", "add", "flannel.1", "type", "bridge"]).unwrap();
    lab.put_config(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#).unwrap();
    let devices = found(node, "devices");
    has(&devices, 1, "in-the-way", "flannel.1 is wanted as a vxlan device, and is a bridge");
    has(&found(node, "mtu"), 1, "changes", "1450 instead of 1500");
    lab.put_config(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlam"}}"#).unwrap();
    assert_eq!(found(node, "config").0, 1);
}

#[test]
fn a_command_that_a_check_does_not_run_is_not_known() {
    let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}"#;
    let lab = Lab::builder().nodes(1).config_json(config).flanneld(go_flanneld()).start().unwrap();
    let node = lab.node(1);
    let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "extension",
                     "PreStartupCommand": "touch /run/was-run"}}"#;
    lab.put_config(config).unwrap();
    has(
        &found(node, "commands"),
        2,
        "not-known",
        "PreStartupCommand is run when flannel-rs starts",
    );
    assert!(node.exec(&["test", "-e", "/run/was-run"]).is_err());
}

#[test]
fn traffic_rules_are_compared_with_what_flags_and_config_ask_for() {
    let lab = Lab::builder().nodes(1).flanneld(go_flanneld()).flag("--ip-masq").start().unwrap();
    let node = lab.node(1);
    let before = state(node);
    let rules = found(node, "rules");
    has(&rules, 0, "stays", "the masquerade and forward rules in iptables are kept");
    has(
        &rules,
        0,
        "changes",
        "rules that drop pods' packets to the tunnel between nodes are added",
    );
    assert_eq!(rules.1.len(), 2, "{rules:?}");

    // The config asks for the other packet filter by now.
    let config = |nftables: bool| {
        let text = format!(r#"{{"Network": "10.244.0.0/16", "EnableNFTables": {nftables}}}"#);
        lab.put_config(&text).unwrap();
    };
    config(true);
    let rules = found(node, "rules");
    has(&rules, 0, "changes", "the masquerade and forward rules for IPv4 are written in nftables");
    has(&rules, 0, "changes", "removed: IPv4 chain FLANNEL-POSTRTG of nat");
    assert_eq!(state(node), before, "looking has changed something");
    config(false);

    // Rules that somebody has changed.
    node.exec(&["iptables", "-F", "FLANNEL-FWD"]).unwrap();
    has(&found(node, "rules"), 0, "changes", "for IPv4 are written in iptables");

    // Nothing is to be masqueraded any more. The Go flannel leaves its rules for that in place.
    let mut flags = node.flanneld().flags();
    flags.retain(|flag| flag != "--ip-masq");
    node.flanneld().set_flags(flags);
    node.flanneld().restart().unwrap();
    let rules = found(node, "rules");
    has(&rules, 0, "stays", "the forward rules in iptables are kept");
    has(&rules, 0, "changes", "removed: IPv4 chain FLANNEL-POSTRTG of nat");
    let nat = || node.exec(&["iptables-save", "-t", "nat"]).unwrap();
    assert!(nat().contains("FLANNEL-POSTRTG"));
    node.flanneld().restart_with(&PathBuf::from(FLANNELCTL).with_file_name("flanneld")).unwrap();
    lab.wait_until("what was said to come true", LIMIT, || !nat().contains("FLANNEL-POSTRTG"))
        .unwrap();
    assert_eq!(found(node, "rules").1.len(), 1, "nothing is left to change");
}

#[test]
fn devices_and_routes_of_wireguard_are_compared() {
    // Ours, which brings WireGuard where the kernel has none.
    let ours = PathBuf::from(FLANNELCTL).with_file_name("flanneld");
    let lab = Lab::builder().nodes(2).backend("wireguard").flanneld(ours).start().unwrap();
    let node = lab.node(1);
    has(&found(node, "devices"), 0, "stays", "flannel-wg is kept");
    lab.wait_until("a route to the other", LIMIT, || {
        found(node, "routes").1.iter().any(|(_, text)| text == "1 are kept as they are")
    })
    .unwrap();
}

/// Nodes of the Go flannel that are told what a pod is told, and take their subnets from Kubernetes.
struct OnKubernetes {
    /// Before the lab: it lives in the lab's network.
    server: ApiServer,
    lab: Lab,
}

impl OnKubernetes {
    fn start(nodes: u16) -> Self {
        const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 254));
        let mut lab = Lab::builder().nodes(nodes).flanneld(go_flanneld()).bare().ready_limit(LIMIT);
        lab = lab.env("KUBERNETES_SERVICE_HOST", SERVER.to_string());
        lab = lab.env("KUBERNETES_SERVICE_PORT", "6443");
        for number in 1..=nodes {
            lab = lab.node_env(number, "NODE_NAME", format!("node-{number}"));
        }
        let lab = lab.start().unwrap();
        let server = ApiServer::builder().inside(lab.switch().paths().net, SERVER).start();
        let token = server.service_account("flannel", &manifest_rules());
        let authority = std::fs::read_to_string(server.authority_file()).unwrap();
        let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        for node in lab.nodes() {
            let number = node.number();
            // A kubelet writes the annotation, and the Go flannel cannot do without any.
            let spec = NodeSpec::new(&format!("node-{number}"));
            let spec = spec.annotation("node.alpha.kubernetes.io/ttl", "0");
            server.create_node(&spec.cidr(format!("10.244.{number}.0/24")));
            // As they are in its pod, and nowhere else.
            let account = "/var/run/secrets/kubernetes.io/serviceaccount";
            node.exec(&["mkdir", "-p", account]).unwrap();
            node.write_file(format!("{account}/token"), &token).unwrap();
            node.write_file(format!("{account}/ca.crt"), &authority).unwrap();
            node.write_file("/run/net-conf.json", config).unwrap();
            node.flanneld().add_flag("--kube-subnet-mgr");
            node.flanneld().add_flag("--net-config-path=/run/net-conf.json");
        }
        lab.start_daemons().unwrap();
        Self { server, lab }
    }
}

#[test]
fn a_node_that_takes_its_subnet_from_kubernetes_is_looked_at_and_comes_over_as_was_said() {
    let mut cluster = OnKubernetes::start(2);
    let OnKubernetes { server, lab } = &cluster;
    let node = lab.node(1);
    let routes = |count: usize, words: &str| {
        lab.wait_until("routes to the others", LIMIT, || {
            node.ip(words).is_ok_and(|routes| routes.matches("dev flannel.1").count() == count)
        })
        .unwrap();
    };
    routes(1, "route");
    let (before, announced) = (state(node), server.annotations("node-1"));
    let text = check(node, &[]);
    assert_eq!(text.status.code(), Some(0), "{}{}", text.stdout, text.stderr);
    has(&found(node, "subnet"), 0, "stays", "10.244.1.0-24 is kept");
    has(&found(node, "mtu"), 0, "stays", "1450");
    has(&found(node, "devices"), 0, "stays", "flannel.1 is kept");
    has(&found(node, "routes"), 0, "changes", "1 are kept and get the protocol 244");
    assert_eq!(state(node), before, "looking has changed something");
    assert_eq!(server.annotations("node-1"), announced, "looking has changed something");

    // What it has said comes true, and others see no difference.
    let own = node.subnet_env().unwrap();
    node.flanneld().restart_with(&PathBuf::from(FLANNELCTL).with_file_name("flanneld")).unwrap();
    routes(1, "route show proto 244");
    assert_eq!(node.subnet_env().unwrap(), own);
    // But for where ours answers probes, which the Go flannel passes over.
    let mut now = server.annotations("node-1");
    now.remove("flannel.alpha.coreos.com/probe-port");
    assert_eq!(now, announced);
    node.flanneld().restart_with(&go_flanneld()).unwrap();

    // A Node that somebody has deleted, and an API server that is away.
    server.delete_node("node-1");
    has(&found(node, "subnet"), 1, "in-the-way", "no lease in the store is on it");
    cluster.server.kill();
    has(&found(cluster.lab.node(1), "store"), 2, "not-known", "192.168.100.254");
}
