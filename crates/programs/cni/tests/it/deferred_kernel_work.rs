//! A plugin that has flanneld wait for the kernel: whatever becomes of flanneld, DEL does its work.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::node::{Node, Pod, V4, V6, Whose, run};

fn node() -> Node {
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.delegate["ipMasq"] = true.into();
    node
}

/// A pod with all that DEL has to remove.
fn pod(node: &Node) -> Pod {
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let mut pod = Pod::with_ports("pod-1", ports);
    node.add(Whose::Ours, &mut pod);
    pod
}

#[track_caller]
fn del(node: &Node, pod: &Pod, work_socket: &Path) {
    for (plugin, conf) in [("portmap", node.portmap_conf(pod)), ("flannel", node.flannel_conf())] {
        let mut request = node.request(Whose::Ours, plugin, "DEL", pod);
        request.work_socket = work_socket.display().to_string();
        request.send(&conf.to_string()).expect_success();
    }
    assert!(!pod.netns.ip("-o link").contains("eth0"));
    node.assert_clean();
}

#[test]
fn a_del_with_flanneld_s_help_returns_only_when_the_interface_is_gone() {
    let node = node();
    let path = node.path("cni.sock");
    flannel_cni::deferred_kernel_work::serve(&path).unwrap();
    for _ in 0..20 {
        del(&node, &pod(&node), &path);
    }
}

#[test]
fn two_hundred_dels_at_once_are_waited_for() {
    let node = node();
    let path = node.path("cni.sock");
    flannel_cni::deferred_kernel_work::serve(&path).unwrap();
    let mut pods: Vec<Pod> = (0..200).map(|n| Pod::new(&format!("pod-{n}"))).collect();
    for pod in &mut pods {
        let added = node.call(Whose::Ours, "flannel", "ADD", pod, &node.flannel_conf());
        pod.result = added.expect_success().json();
    }
    std::thread::scope(|scope| {
        for pod in &pods {
            let mut request = node.request(Whose::Ours, "flannel", "DEL", pod);
            request.work_socket = path.display().to_string();
            let conf = node.flannel_conf().to_string();
            scope.spawn(move || request.send(&conf).expect_success());
        }
    });
    node.assert_clean();
}

#[test]
fn nothing_depends_on_flanneld_s_help() {
    let node = node();
    let dead = node.path("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let file = node.path("file.sock");
    std::fs::write(&file, "").unwrap();
    // It lets everybody in and does nothing.
    let deaf = node.path("deaf.sock");
    let _listener = deaf_listener(&deaf);
    for path in [&node.path("absent.sock"), &dead, &file, &deaf] {
        del(&node, &pod(&node), path);
    }
}

#[test]
fn a_flanneld_that_hangs_costs_a_del_little() {
    let node = node();
    let path = node.path("deaf.sock");
    let _listener = deaf_listener(&path);
    let shortest = (0..3)
        .map(|_| {
            let pod = pod(&node);
            let begun = Instant::now();
            del(&node, &pod, &path);
            begun.elapsed()
        })
        .min();
    assert!(shortest < Some(Duration::from_secs(1)), "{shortest:?}");
}

fn deaf_listener(path: &Path) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 10).unwrap();
    listener
}

#[test]
fn what_makes_no_sense_does_not_keep_others_from_being_served() {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket,
    };
    let node = node();
    let path = node.path("cni.sock");
    flannel_cni::deferred_kernel_work::serve(&path).unwrap();
    for text in [&b""[..], b"x", b"\x01\x01\x00\x00\x00", b"much longer than anything it expects"] {
        let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let _ = send(&client, text, SendFlags::empty());
    }
    del(&node, &pod(&node), &path);
    assert!(flannel_cni::deferred_kernel_work::serve(&path).is_err(), "one is enough");
    let mode = run("stat", &format!("--format=%a {}", path.display()));
    assert_eq!(mode.trim(), "600");
}
