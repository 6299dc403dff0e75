//! `flannelctl migrate --check` on a node that the Go flannel serves, as it is and with obstacles.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

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
