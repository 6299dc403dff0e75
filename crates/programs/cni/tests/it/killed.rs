//! Plugins that are killed, at every one of their system calls in turn. Between two of them nothing
//! changes that anybody else can see, so these are all the ways there are to be cut short.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, V6, Whose};
use crate::support::Request;
use crate::traced::Traced;

/// Kills a plugin as it begins its `nth` system call. `false`: it has ended before.
fn killed_at(nth: usize, request: &Request, conf: &Value) -> bool {
    let traced = Traced::start(request, conf);
    for _ in 0..2 * nth - 1 {
        if !traced.go_on() {
            return false;
        }
    }
    traced.kill();
    true
}

/// How many system calls a program needs for its own sake, before it does anything.
fn calls_of_its_own() -> usize {
    const FAREWELL: usize = 8;
    let traced = Traced::start(&Request::new("VERSION"), &json!({}));
    (1..).find(|_| !traced.go_on()).map_or(0, |stops| stops / 2) - FAREWELL
}

/// Does something for every system call of a plugin that can be the last.
fn at_every_call(node: &Node, work: impl Fn(&mut Pod, &dyn Fn(&Pod, &str, &str, Value))) {
    let first = calls_of_its_own();
    for nth in first.. {
        let reached = std::cell::Cell::new(true);
        let kill = |pod: &Pod, plugin: &str, command: &str, mut conf: Value| {
            if !pod.result.is_null() {
                conf["prevResult"] = pod.result.clone();
            }
            let request = node.request(Whose::Ours, plugin, command, pod);
            reached.set(killed_at(nth, &request, &conf));
        };
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        work(&mut Pod::with_ports("pod-1", ports), &kill);
        node.assert_clean();
        if !reached.get() {
            assert!(nth > first + 30, "it ended after {nth} system calls");
            return;
        }
    }
}

/// With all that an ADD can have to do.
fn node() -> Node {
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.version = "1.1.0";
    node.delegate["ipMasq"] = true.into();
    node
}

#[test]
fn an_add_killed_at_any_system_call_is_undone_by_del() {
    let node = node();
    at_every_call(&node, |pod, kill| {
        kill(pod, "flannel", "ADD", node.flannel_conf());
        node.del(Whose::Ours, pod);
    });
}

#[test]
fn an_add_killed_at_any_system_call_is_made_good_by_the_next() {
    let node = node();
    at_every_call(&node, |pod, kill| {
        kill(pod, "flannel", "ADD", node.flannel_conf());
        // Where nothing but the answer was missing, the pod is attached, and DEL comes first.
        if pod.netns.ip("-o link").contains("eth0") && pod.netns.ip("-o addr").contains("10.244.") {
            let answer = node.call(Whose::Ours, "flannel", "ADD", pod, &node.flannel_conf());
            let (_, msg) = answer.expect_error();
            assert!(msg.contains("already exists"), "{msg}");
            node.call(Whose::Ours, "flannel", "DEL", pod, &node.flannel_conf()).expect_success();
        }
        node.add(Whose::Ours, pod);
        assert_eq!(node.reserved().len(), 2);
        node.check(Whose::Ours, pod);
        node.del(Whose::Ours, pod);
    });
}

#[test]
fn an_add_killed_at_any_system_call_is_collected_by_gc() {
    let node = node();
    at_every_call(&node, |pod, kill| {
        kill(pod, "flannel", "ADD", node.flannel_conf());
        // The container is forgotten, and with its namespace go its interfaces. Time passes.
        pod.netns.inside(|| drop(Command::new("ip").args(["link", "del", "eth0"]).output()));
        for item in fs::read_dir(node.path("flannel")).into_iter().flatten().flatten() {
            let file = fs::File::options().write(true).open(item.path()).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(120)).unwrap();
        }
        let mut conf = node.flannel_conf();
        conf["cni.dev/valid-attachments"] = json!([]);
        let mut request = node.request(Whose::Ours, "flannel", "GC", pod);
        (request.container_id, request.netns, request.ifname) = Default::default();
        request.send(&conf.to_string()).expect_success();
    });
}

#[test]
fn a_del_killed_at_any_system_call_is_finished_by_the_next() {
    let node = node();
    at_every_call(&node, |pod, kill| {
        node.add(Whose::Ours, pod);
        kill(pod, "flannel", "DEL", node.flannel_conf());
        node.del(Whose::Ours, pod);
    });
}

#[test]
fn port_mappings_killed_at_any_system_call_are_removed_by_del() {
    let node = node();
    for command in ["ADD", "DEL"] {
        at_every_call(&node, |pod, kill| {
            node.add(Whose::Ours, pod);
            kill(pod, "portmap", command, node.portmap_conf(pod));
            node.del(Whose::Ours, pod);
        });
    }
}
