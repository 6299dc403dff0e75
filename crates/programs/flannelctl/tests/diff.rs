//! `flannelctl diff` and `flannelctl repair` on a node whose entries somebody else writes, too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::process::Command;
use std::time::Duration;

use flannel_lab::{Lab, Node, Output};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(30);

fn run(node: &Node, words: &[&str]) -> Output {
    node.output(&[&[FLANNELCTL], words].concat()).unwrap()
}

fn healthy(lab: &Lab, node: &Node) {
    lab.wait_until("nothing to differ", LIMIT, || {
        let output = run(node, &["diff"]);
        let same = output.stdout.contains("the kernel has all") && output.status.code() == Some(0);
        if same { Ok(()) } else { Err(format!("{}{}", output.stdout, output.stderr)) }
    })
    .unwrap();
}

#[test]
fn what_is_wanted_and_what_the_kernel_has_are_shown_beside_each_other() {
    let lab = Lab::builder().nodes(2).backend("vxlan").ipv6(true).start().unwrap();
    let node = lab.node(1);
    lab.pod_on_every_node().unwrap();
    lab.wait_until("a route to the other", LIMIT, || {
        node.ip("route show proto 244").is_ok_and(|routes| !routes.is_empty())
    })
    .unwrap();
    healthy(&lab, node);
    let peer = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
    {
        // Faster than the daemon, which makes pauses after ten repairs.
        let mut vandal = Command::new("sh");
        vandal.args([
            "-c",
            &format!("while true; do ip route replace {peer} via 192.168.100.2; sleep 0.005; done"),
        ]);
        let _vandal = node.spawn(vandal).unwrap();
        let (wanted, found) = (
            format!("- route {peer} via {} dev flannel.1 onlink", peer.addr()),
            format!("+ route {peer} via 192.168.100.2 dev eth0"),
        );
        lab.wait_until("both to be shown", LIMIT, || {
            let output = run(node, &["diff"]);
            let both = [&wanted, &found].iter().all(|line| output.stdout.contains(*line));
            if both && output.status.code() == Some(1) { Ok(()) } else { Err(output.stdout) }
        })
        .unwrap();
        let json: Value = serde_json::from_str(&run(node, &["diff", "-o", "json"]).stdout).unwrap();
        assert!(json.as_array().is_some(), "{json}");
    }
    // It waits, and is asked not to.
    let repaired = run(node, &["repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{}{}", repaired.stdout, repaired.stderr);
    assert!(repaired.stdout.contains("kernel: "), "{}", repaired.stdout);
    healthy(&lab, node);
    let again = run(node, &["repair"]);
    assert!(again.stdout.contains("compared, all as wanted"), "{}", again.stdout);
    let events = run(node, &["events"]).stdout;
    assert!(events.contains("repair-asked"), "{events}");
}

/// With WireGuard a node has blackholes for the whole network, which IPv6 shows on the device `lo`.
#[test]
fn a_healthy_dual_stack_wireguard_network_has_no_differences() {
    let backend = Lab::builder().nodes(2).backend("wireguard").ipv6(true);
    let lab = backend.lease_server().start().unwrap();
    for node in lab.nodes() {
        healthy(&lab, node);
    }
    // No flag names the store: it is that of the daemon.
    let tested = run(lab.node(1), &["test", "connectivity", "--require-all"]);
    assert_eq!(tested.status.code(), Some(0), "{}{}", tested.stdout, tested.stderr);
}

#[test]
fn peers_that_are_watched_are_shown_when_they_change() {
    let lab = Lab::builder().nodes(2).backend("vxlan").start().unwrap();
    let node = lab.node(1);
    let mut watch = Command::new("timeout");
    watch.args(["4", "sh", "-c", &format!("{FLANNELCTL} peers --watch > /run/peers.txt")]);
    let watch = node.spawn(watch).unwrap();
    lab.wait_until("the other node", LIMIT, || {
        node.read_file("/run/peers.txt").is_ok_and(|text| text.contains("192.168.100.2"))
    })
    .unwrap();
    watch.wait(Duration::from_secs(20)).unwrap();
    let text = node.read_file("/run/peers.txt").unwrap();
    assert!(
        text.matches("programmed").count() <= 2,
        "what does not change is not repeated: {text}"
    );
}
