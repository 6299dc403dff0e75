//! `flannelctl trace --live`: a fault is planted between any two devices of both nodes, and real packets show where they
//! are lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::process::Command;
use std::time::Duration;

use flannel_lab::{Lab, LabBuilder, Node, Pod, Process};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(30);

struct Traced {
    lab: Lab,
    one: Pod,
    two: Pod,
    /// A pod has processes, by which its network is found.
    _running: Vec<Process>,
}

fn started(builder: LabBuilder) -> Traced {
    let lab = builder.start().unwrap();
    let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let running = [&one, &two].map(|pod| {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        pod.spawn(sleep).unwrap()
    });
    Traced { lab, one, two, _running: running.into() }
}

fn shell(node: &Node, command: &str) {
    node.exec(&["sh", "-ec", command]).unwrap();
}

impl Traced {
    fn addresses(&self) -> (String, String) {
        (self.one.v4().unwrap().to_string(), self.two.v4().unwrap().to_string())
    }

    /// The status, and what became of the packets.
    fn trace(&self) -> (i32, Value) {
        let (from, to) = self.addresses();
        let words = [FLANNELCTL, "trace", &from, &to, "--live", "-o", "json"];
        let output = self.lab.node(1).output(&words).unwrap();
        let traced: Value = serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
        (output.status.code().unwrap(), traced)
    }

    fn comes_back(&self, when: &str) {
        self.lab
            .wait_until("packets to come back", LIMIT, || {
                let (status, traced) = self.trace();
                let home = traced["live"]["lostBefore"].is_null();
                if status == 0 && home { Ok(()) } else { Err(format!("{when}: {traced:#}")) }
            })
            .unwrap();
    }

    /// What somebody is told on the other node who listens there while packets are sent here.
    fn listen(&self) -> (i32, Value) {
        let (from, to) = self.addresses();
        let words = [
            FLANNELCTL,
            "trace",
            &from,
            &to,
            "--live",
            "--listen",
            "--seconds",
            "20",
            "-o",
            "json",
        ];
        let output = std::thread::scope(|scope| {
            let listening = scope.spawn(|| self.lab.node(2).output(&words).unwrap());
            // It is not told when it listens: the packets are sent again should they come too soon.
            for _ in 0..2 {
                std::thread::sleep(Duration::from_secs(1));
                if !listening.is_finished() {
                    self.trace();
                }
            }
            listening.join().unwrap()
        });
        let said: Value = serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
        (output.status.code().unwrap(), said)
    }

    /// Where packets should have been seen next, on either node, and the hop that is named.
    fn is_lost(&self, fault: &str, before: &str, hop: &str) {
        let (status, traced) = self.trace();
        is_lost_before(status, &traced, fault, before, hop);
    }
}

fn is_lost_before(status: i32, traced: &Value, fault: &str, before: &str, hop: &str) {
    let next = &traced["live"]["lostBefore"];
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let said = ["at", "packet", "place", "direction"].map(|key| text(&next[key])).join(" ");
    let hops = traced["hops"].as_array().unwrap().iter();
    let named = hops.filter(|one| one["way"] == "live" && one["condition"] == "wrong");
    let named: Vec<String> = named.map(|one| text(&one["hop"])).collect();
    let expected = (1, before, vec![hop.to_owned()]);
    assert_eq!((status, said.as_str(), named), expected, "{fault}: {traced:#}");
}

/// A table of nftables with one rule.
fn drops(family: &str, hook: &str, rule: &str) -> String {
    format!(
        "nft 'add table {family} planted {{ chain it {{ type filter hook {hook} priority 0; {rule} drop; }}; }}'"
    )
}

#[test]
fn a_packet_that_is_lost_between_any_two_devices_is_last_seen_before_it() {
    let traced = started(Lab::builder().nodes(2).backend("vxlan"));
    let lab = &traced.lab;
    traced.comes_back("at first");
    seen_at(16, traced.trace());

    let (own, theirs) = traced.addresses();
    let tunnel = "udp dport 8472";
    let (to_two, to_one) = (format!("ip daddr {theirs}"), format!("ip daddr {own}"));
    let (here, there) = (lab.node(1), lab.node(2));
    let request = |place: &str| format!("sender request {place}");
    let far = |place: &str| format!("receiver {place}");
    let back = |place: &str| format!("sender answer {place}");
    let faults: [(&Node, String, String, &str); 12] = [
        (here, drops("bridge", "input", &to_two), request("bridge in"), "bridge"),
        (here, drops("inet", "forward", &to_two), request("tunnel out"), "rules"),
        (here, drops("inet", "output", tunnel), request("underlay out"), "fdb"),
        (there, drops("inet", "input", tunnel), far("request tunnel in"), "tunnel"),
        (there, drops("inet", "forward", &to_two), far("request bridge out"), "rules"),
        (there, drops("bridge", "postrouting", &to_two), far("request veth out"), "bridge"),
        (there, drops("bridge", "input", &to_one), far("answer bridge in"), "bridge"),
        (there, drops("inet", "forward", &to_one), far("answer tunnel out"), "rules"),
        (there, drops("inet", "output", tunnel), far("answer underlay out"), "fdb"),
        (here, drops("inet", "input", tunnel), back("tunnel in"), "tunnel"),
        (here, drops("inet", "forward", &to_one), back("bridge out"), "rules"),
        (here, drops("bridge", "postrouting", &to_one), back("veth out"), "bridge"),
    ];
    for (node, fault, before, hop) in faults {
        shell(node, &fault);
        traced.is_lost(&fault, &before, hop);
        for family in ["bridge", "inet"] {
            let _ = node.output(&["nft", "delete", "table", family, "planted"]);
        }
        traced.comes_back(&fault);
    }
    // In the pods.
    let gateway = here.subnet_env().unwrap().subnet.unwrap().addr().to_string();
    traced.one.exec(&["ip", "route", "del", "default"]).unwrap();
    traced.is_lost("the pod has no route", "sender request veth in", "pod");
    traced.one.exec(&["ip", "route", "add", "default", "via", &gateway]).unwrap();
    traced.two.exec(&["sh", "-ec", &drops("inet", "input", "ip protocol icmp")]).unwrap();
    traced.is_lost("the other pod drops it", "receiver answer veth in", "pod");
    traced.two.exec(&["nft", "delete table inet planted"]).unwrap();
    traced.comes_back("the pods are well");
    // Between the nodes: there the receiver does not see them, and back what it has sent is not seen by the sender.
    let on_the_wire =
        |to: u8| drops("bridge", "forward", &format!("ip daddr 192.168.100.{to} {tunnel}"));
    let heal = || lab.switch().exec(&["nft", "delete table bridge planted"]).unwrap();
    lab.switch().exec(&["sh", "-ec", &on_the_wire(2)]).unwrap();
    traced.is_lost("there", "receiver request underlay in", "underlay");
    heal();
    traced.comes_back("the way there");
    lab.switch().exec(&["sh", "-ec", &on_the_wire(1)]).unwrap();
    traced.is_lost("back", "sender answer underlay in", "underlay");
    heal();
    traced.comes_back("the way back");
    for left in ["requests", "answers"] {
        let keys = lab.etcd().unwrap().list(&format!("/coreos.com/network/{left}/")).unwrap();
        assert!(keys.is_empty(), "nobody is asked any more: {keys:?}");
    }
}

/// Of the 16 places of a way through vxlan, so many were looked at, and all packets were seen there.
fn seen_at(places: usize, (status, whole): (i32, Value)) {
    assert_eq!(status, 0, "{whole:#}");
    let passages = whole["live"]["passages"].as_array().unwrap();
    assert_eq!(passages.len(), 16, "{whole:#}");
    let looked = passages.iter().filter(|one| !one["seen"].is_null());
    let counts: Vec<u64> = looked.map(|one| one["seen"]["count"].as_u64().unwrap()).collect();
    assert!(counts.len() == places && counts.iter().all(|count| *count >= 3), "{whole:#}");
}

#[test]
fn without_a_daemon_that_could_be_asked_somebody_listens_on_the_other_node() {
    let traced = started(Lab::builder().nodes(2).backend("vxlan"));
    traced.lab.node(2).flanneld().pause().unwrap();
    seen_at(8, traced.trace());
    seen_at(8, traced.listen());
    let there = traced.lab.node(2);
    shell(there, &drops("inet", "input", "udp dport 8472"));
    let (status, here) = traced.trace();
    let text = here.to_string();
    let says = ["--live --listen", "could not be asked", "did not answer within 4 s"];
    let silent = says.iter().find(|what| !text.contains(**what));
    assert!(status == 1 && silent.is_none(), "{silent:?}: {here:#}");
    let (status, there) = traced.listen();
    is_lost_before(status, &there, "the port", "receiver request tunnel in", "tunnel");
}

#[test]
fn the_other_node_is_asked_through_a_lease_server_too() {
    let traced = started(Lab::builder().nodes(2).backend("vxlan").lease_server());
    // On the node that serves: without tokens nobody else may ask.
    seen_at(16, traced.trace());
}

#[test]
fn packets_of_other_ways_are_followed_too() {
    let traced = started(Lab::builder().nodes(2).backend("host-gw").ipv6(true));
    traced.comes_back("without a tunnel");
    let (status, whole) = traced.trace();
    assert_eq!((status, whole["live"]["passages"].as_array().unwrap().len()), (0, 12), "{whole:#}");
    let node = traced.lab.node(1);
    let run = |from: &str, to: &str| {
        let output = node.output(&[FLANNELCTL, "trace", from, to, "--live"]).unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{from} {to}: {}{}",
            output.stdout,
            output.stderr
        );
        output.stdout
    };
    // Of the other family, from the other end, and from the node itself.
    let (own6, theirs6) =
        (traced.one.v6().unwrap().to_string(), traced.two.v6().unwrap().to_string());
    let said = run(&own6, &theirs6);
    assert!(said.contains("packets go there and come back"), "{said}");
    let (own, theirs) = traced.addresses();
    run(&theirs, &own);
    run("192.168.100.1", &theirs);
    // Between pods of one node.
    let neighbour = traced.lab.pod(1).unwrap();
    run(&own, &neighbour.v4().unwrap().to_string());
}
