//! `flannelctl test connectivity`: test pods on every node, and what they find; nothing of it stays.

use std::process::Stdio;
use std::time::{Duration, Instant};

use flannel_lab::{Families, Lab, LabBuilder, LabError, Process, Result};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{LIMIT, flanneld, go_flanneld, lab, measured};

/// What says which store it is.
fn store(lab: &Lab) -> Vec<String> {
    match lab.etcd() {
        Ok(etcd) => vec![
            format!("--etcd-endpoints={}", etcd.endpoints()),
            format!("--etcd-prefix={}", lab.spec().etcd_prefix),
        ],
        Err(_) => {
            let server = lab.node(1).nic().v4.expect("an address").addr();
            vec![format!("--remote={server}:10253")]
        }
    }
}

fn command(lab: &Lab, more: &[&str]) -> Vec<String> {
    let program = flanneld().with_file_name("flannelctl").display().to_string();
    let mut words = vec![program, "test".to_owned(), "connectivity".to_owned()];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words.extend(store(lab));
    words
}

fn run(lab: &Lab, more: &[&str]) -> (i32, String, String) {
    let words = command(lab, more);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = lab.node(1).output(&words).unwrap();
    (output.status.code().unwrap(), output.stdout, output.stderr)
}

fn begin(lab: &Lab, words: &[String]) -> Result<Process> {
    let mut command = std::process::Command::new(&words[0]);
    command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    lab.node(1).spawn(command)
}

/// The report, and how it ended.
fn tested(lab: &Lab, more: &[&str]) -> (i32, Value) {
    let began = Instant::now();
    let (status, stdout, stderr) = run(lab, &[&["-o", "json"], more].concat());
    measured(format_args!("a test took {:?}", began.elapsed()));
    let report = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{error}: {status} {stdout}{stderr}"));
    (status, report)
}

/// The nodes of each pair that is broken, in order, and the names of what failed of it.
fn broken(lab: &Lab, report: &Value) -> Vec<(u16, u16, String)> {
    let number = |name: &Value| {
        let is_it = |node: &&flannel_lab::Node| {
            node.nic().v4.is_some_and(|net| name == net.addr().to_string().as_str())
        };
        lab.nodes().iter().find(is_it).expect("a node").number()
    };
    let mut all = Vec::new();
    for pair in report["pairs"].as_array().unwrap().iter().filter(|pair| pair["whole"] == false) {
        let tests = pair["tests"].as_array().unwrap().iter();
        let failed = tests.filter(|test| test.get("failure").is_some());
        let names: Vec<&str> = failed.map(|test| test["test"].as_str().unwrap()).collect();
        all.push((number(&pair["from"]), number(&pair["to"]), names.join(" ")));
    }
    all.sort();
    all
}

/// What of a test pod is on any node.
fn left(lab: &Lab) -> String {
    let mut text = String::new();
    for node in lab.nodes() {
        text += &node
            .ip("-o link show type veth")
            .unwrap_or_default()
            .lines()
            .filter(|line| line.contains("flannel-t"))
            .collect::<Vec<_>>()
            .join("\n");
        for family in ["-4", "-6"] {
            let routes = node.ip(&format!("{family} route show table all")).unwrap_or_default();
            text += &routes
                .lines()
                .filter(|line| line.contains("flannel-t"))
                .collect::<Vec<_>>()
                .join("\n");
        }
    }
    if let Ok(etcd) = lab.etcd() {
        for directory in ["requests", "answers"] {
            let keys = etcd.list(&format!("{}/{directory}/", lab.spec().etcd_prefix)).unwrap();
            text += &keys.into_iter().map(|(key, _)| key).collect::<Vec<_>>().join("\n");
        }
    }
    text
}

fn nothing_is_left(lab: &Lab, within: Duration) -> Result<()> {
    let began = Instant::now();
    lab.wait_until("nothing to be left", within, || match left(lab) {
        left if left.is_empty() => Ok(()),
        left => Err(LabError::Spec(left)),
    })?;
    measured(format_args!("nothing is left after {:?}", began.elapsed()));
    Ok(())
}

fn whole(lab: &Lab, pairs: usize, tests: &[&str]) -> Result<()> {
    let (status, report) = tested(lab, &[]);
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(report["whole"], true, "{report:#}");
    assert_eq!(report["testedPairs"], pairs, "{report:#}");
    for pair in report["pairs"].as_array().unwrap() {
        let names: Vec<&str> = pair["tests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["test"].as_str().unwrap())
            .collect();
        assert_eq!(names, tests, "{report:#}");
    }
    nothing_is_left(lab, Duration::from_secs(5))
}

const ALL: [&str; 4] = ["tcp", "udp", "mtu", "node"];

#[test]
fn a_healthy_network_of_both_families_is_whole_with_pods_beside_the_test_s_own() -> Result<()> {
    let lab = lab(3).overlay(Families::Dual).underlay(Families::Dual).flag("--ip-masq").start()?;
    lab.pod_on_every_node()?;
    whole(&lab, 12, &ALL)?;
    let (status, text, _) = run(&lab, &[]);
    assert!(status == 0 && text.contains("all 6 pairs reach each other"), "{text}");
    Ok(())
}

#[test]
fn a_healthy_udp_network_without_masquerade_passes_and_junit_says_it_too() -> Result<()> {
    // Without --ip-masq, and with a tunnel that carries nothing but pods' addresses.
    let lab = lab(3).lease_server().backend("udp").start()?;
    whole(&lab, 6, &ALL)?;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    let (status, text, _) = run(&lab, &["-o", "wide", "--junit", &path]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("family") && text.contains("IPv4"), "{text}");
    let junit = std::fs::read_to_string(file.path()).unwrap();
    assert!(junit.contains("tests=\"24\" failures=\"0\" errors=\"0\" skipped=\"0\""), "{junit}");
    let (status, _, said) = run(&lab, &["--nodes", "nobody"]);
    assert!(status == 2 && said.contains("no node is called nobody"), "{said}");
    nothing_is_left(&lab, Duration::from_secs(5))
}

fn planted(lab: &Lab, node: u16, hook: &str, rule: &str) {
    let table = format!(
        "add table inet planted {{ chain it {{ type filter hook {hook} priority -300; {rule} drop; }}; }}"
    );
    lab.node(node).exec(&["nft", &table]).unwrap();
}

fn mended(lab: &Lab, node: u16) {
    lab.node(node).exec(&["nft", "delete table inet planted"]).unwrap();
}

/// Both ways between a node and each of the others.
fn cells(node: u16, failed: &str) -> Vec<(u16, u16, String)> {
    let others = (1..=3).filter(|other| *other != node);
    let mut all: Vec<_> = others
        .flat_map(|other| [(node, other), (other, node)])
        .map(|(a, b)| (a, b, failed.to_owned()))
        .collect();
    all.sort();
    all
}

fn layers(report: &Value) -> Vec<&str> {
    let pairs = report["pairs"].as_array().unwrap().iter().filter(|pair| pair["whole"] == false);
    let mut layers: Vec<&str> = pairs.map(|pair| pair["layer"].as_str().unwrap()).collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

#[test]
fn a_planted_fault_is_in_the_cells_that_it_breaks_and_in_no_others() -> Result<()> {
    let lab = lab(3).flag("--ip-masq").start()?;
    whole(&lab, 6, &ALL)?;

    planted(&lab, 2, "prerouting", "udp dport 8472");
    let (status, report) = tested(&lab, &[]);
    assert_eq!(status, 1);
    assert_eq!(broken(&lab, &report), cells(2, "tcp udp mtu node"), "{report:#}");
    assert_eq!(layers(&report), ["tunnel"], "{report:#}");
    mended(&lab, 2);

    // Only what is forwarded: the nodes themselves reach each other.
    planted(&lab, 3, "forward", "meta l4proto { tcp, udp }");
    let (status, report) = tested(&lab, &[]);
    assert_eq!(status, 1);
    // What the node itself sends is not forwarded there, and still arrives.
    let from = |(from, to, tests): (u16, u16, String)| match from {
        3 => (from, to, "tcp udp mtu".to_owned()),
        _ => (from, to, tests),
    };
    let expected: Vec<_> = cells(3, "tcp udp mtu node").into_iter().map(from).collect();
    assert_eq!(broken(&lab, &report), expected, "{report:#}");
    assert_eq!(layers(&report), ["host"], "{report:#}");
    let (_, text, _) = run(&lab, &[]);
    assert!(text.contains("advises (host): `flannelctl check`"), "{text}");
    mended(&lab, 3);

    planted(&lab, 1, "prerouting", "udp dport 8472 meta length > 1400");
    let (status, report) = tested(&lab, &[]);
    assert_eq!(status, 1);
    let found = broken(&lab, &report);
    let pairs: Vec<_> = found.iter().map(|(from, to, _)| (*from, *to)).collect();
    assert_eq!(pairs, [(1, 2), (1, 3), (2, 1), (3, 1)], "{report:#}");
    assert!(found.iter().all(|(.., tests)| tests == "tcp mtu"), "{found:?}");
    assert_eq!(layers(&report), ["underlay"], "{report:#}");
    mended(&lab, 1);

    // What pods of this node send comes from the node, for those who get it.
    let rule = "add table ip planted { chain it { type nat hook postrouting priority 10; oifname \"flannel.1\" masquerade; }; }";
    lab.node(2).exec(&["nft", rule])?;
    let (status, report) = tested(&lab, &["--nodes", "192.168.100.1,192.168.100.2"]);
    lab.node(2).exec(&["nft", "delete table ip planted"])?;
    assert_eq!(status, 1);
    assert_eq!(report["testedPairs"], 2, "{report:#}");
    assert_eq!(broken(&lab, &report), [(2, 1, "tcp udp mtu".to_owned())], "{report:#}");
    assert!(report.to_string().contains("a rule masquerades what pods send each other"));

    // And what the node itself sends is not masqueraded, though it should be.
    let rule = "add table ip planted { chain it { type filter hook output priority -300; ip daddr 10.244.0.0/16 udp dport 8476 notrack; }; }";
    lab.node(3).exec(&["nft", rule])?;
    let (status, report) = tested(&lab, &["--nodes", "192.168.100.1,192.168.100.3"]);
    lab.node(3).exec(&["nft", "delete table ip planted"])?;
    assert_eq!(status, 1);
    assert_eq!(broken(&lab, &report), [(3, 1, "node".to_owned())], "{report:#}");
    whole(&lab, 6, &ALL)
}

#[test]
fn what_a_test_that_is_killed_has_made_goes_by_itself() -> Result<()> {
    for builder in [lab(2), lab(2).lease_server()] {
        let lab = builder.start()?;
        for signal in [Signal::KILL, Signal::TERM] {
            // Nodes that try each other for three seconds, because they do not reach each other.
            planted(&lab, 2, "prerouting", "udp dport 8472");
            let words = command(&lab, &[]);
            let child = begin(&lab, &words)?;
            lab.wait_until("test pods", LIMIT, || match left(&lab) {
                left if left.matches("flannel-test0").count() >= 2 => Ok(()),
                left => Err(LabError::Spec(left)),
            })?;
            child.signal(signal)?;
            child.wait(LIMIT)?;
            let within = if signal == Signal::KILL { 25 } else { 5 };
            nothing_is_left(&lab, Duration::from_secs(within))?;
            mended(&lab, 2);
        }
        whole(&lab, 2, &ALL)?;
    }
    Ok(())
}

#[test]
fn what_a_daemon_that_is_killed_amid_a_test_has_made_is_gone_when_it_is_back() -> Result<()> {
    let lab = lab(2).start()?;
    planted(&lab, 2, "prerouting", "udp dport 8472");
    let words = command(&lab, &["--timeout", "20"]);
    let child = begin(&lab, &words)?;
    lab.wait_until("test pods", LIMIT, || match left(&lab) {
        left if left.matches("flannel-test0").count() >= 2 => Ok(()),
        left => Err(LabError::Spec(left)),
    })?;
    lab.node(1).flanneld().kill9();
    child.kill();
    lab.wait_until("the other node to be rid of it", LIMIT, || {
        match lab.node(2).ip("-o link show type veth")? {
            links if !links.contains("flannel-t") => Ok(()),
            links => Err(LabError::Spec(links)),
        }
    })?;
    assert!(left(&lab).contains("flannel-test0"), "who was killed tidies up nothing");
    mended(&lab, 2);
    lab.node(1).flanneld().start()?;
    nothing_is_left(&lab, Duration::from_secs(20))?;
    whole(&lab, 2, &ALL)
}

#[test]
fn nodes_with_the_go_flannel_are_not_tested_and_never_broken() -> Result<()> {
    let lab = mixed(lab(3)).start()?;
    let (status, report) = tested(&lab, &[]);
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(report["testedPairs"], 2, "{report:#}");
    let nodes = report["nodes"].as_array().unwrap();
    let untested: Vec<&Value> = nodes.iter().filter(|node| node["tested"] == false).collect();
    assert_eq!(untested.len(), 1, "{report:#}");
    assert!(untested[0]["why"].as_str().unwrap().contains("Go flannel"), "{report:#}");
    assert_eq!(tested(&lab, &["--require-all"]).0, 1, "a node was not tested");
    nothing_is_left(&lab, Duration::from_secs(5))
}

fn mixed(builder: LabBuilder) -> LabBuilder {
    builder.node_flanneld(3, go_flanneld())
}
