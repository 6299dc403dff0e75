//! Either implementation takes over from the other, with running pods: what one has added, the other
//! checks and deletes, and nothing is lost or left.

use serde_json::json;

use crate::node::{Node, Pod, V4, V6, Whose, go_plugins, run};

const PORT: &str = r#"[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                       {"hostPort": 8053, "containerPort": 53, "protocol": "udp"}]"#;

fn ports() -> serde_json::Value {
    serde_json::from_str(PORT).unwrap()
}

#[test]
fn pods_added_by_the_go_plugins_are_checked_and_deleted_by_ours() {
    let node = Node::new(&format!("{V4}{V6}"));
    let mut pods: Vec<Pod> =
        (0..3).map(|n| Pod::with_ports(&format!("pod-{n}"), ports())).collect();
    for pod in &mut pods {
        node.add(Whose::Go, pod);
    }
    assert_eq!(node.reserved().len(), 6);
    // In a node of both, nobody gets what another has.
    let ours = node.attached("pod-ours");
    assert!(pods.iter().all(|pod| pod.ip() != ours.ip()));
    for pod in &pods {
        node.check(Whose::Ours, pod);
        node.del(Whose::Ours, pod);
        node.del(Whose::Ours, pod);
    }
    assert_eq!(node.reserved().len(), 2);
    node.del(Whose::Ours, &ours);
    node.assert_clean();
}

#[test]
fn pods_added_by_our_plugins_are_checked_and_deleted_by_the_go_ones() {
    let node = Node::new(&format!("{V4}{V6}"));
    let mut pods: Vec<Pod> = (0..3).map(|n| Pod::new(&format!("pod-{n}"))).collect();
    for pod in &mut pods {
        node.add(Whose::Ours, pod);
    }
    let mut theirs = Pod::new("pod-theirs");
    node.add(Whose::Go, &mut theirs);
    assert!(pods.iter().all(|pod| pod.ip() != theirs.ip()));
    for pod in &pods {
        // The Go flannel plugin checks nothing; the bridge and host-local do.
        let mut conf = bridge_conf(&node);
        conf["prevResult"] = pod.result.clone();
        node.call(Whose::Go, "bridge", "CHECK", pod, &conf).expect_success();
        node.del(Whose::Go, pod);
    }
    node.del(Whose::Go, &theirs);
    node.assert_clean();
}

#[test]
fn mappings_in_nftables_are_checked_and_removed_by_the_go_portmap_s_nftables_flavour() {
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.portmap = json!({"backend": "nftables"});
    let mut pod = Pod::with_ports("pod-1", ports());
    node.add(Whose::Ours, &mut pod);
    node.check(Whose::Go, &pod);
    node.del(Whose::Go, &pod);
    node.assert_clean();
}

#[test]
fn mappings_by_the_go_portmap_s_nftables_flavour_are_checked_and_removed_by_ours() {
    let node = Node::new(&format!("{V4}{V6}"));
    let mut pod = Pod::with_ports("pod-1", ports());
    let added = node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf());
    pod.result = added.expect_success().json();
    let mut conf = node.portmap_conf(&pod);
    conf["backend"] = "nftables".into();
    conf["prevResult"] = pod.result.clone();
    node.call(Whose::Go, "portmap", "ADD", &pod, &conf).expect_success();
    assert!(run("nft", "list ruleset").contains("dnat to"));
    node.check(Whose::Ours, &pod);
    node.del(Whose::Ours, &pod);
    node.assert_clean();
}

#[test]
fn masquerading_by_either_is_removed_by_the_other() {
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.delegate = json!({"isDefaultGateway": true, "ipMasq": true});
    for backend in ["iptables", "nftables"] {
        let mut theirs = Pod::new("pod-theirs");
        node.delegate["ipMasqBackend"] = backend.into();
        node.add(Whose::Go, &mut theirs);
        assert!(run("nft", "list ruleset").contains(&theirs.ip().to_string()), "{backend}");
        node.delegate.as_object_mut().unwrap().remove("ipMasqBackend");
        node.del(Whose::Ours, &theirs);
        node.assert_clean();
    }
    let ours = node.attached("pod-ours");
    assert!(run("nft", "list ruleset").contains(&ours.ip().to_string()));
    node.del(Whose::Go, &ours);
    node.assert_clean();
}

#[test]
fn what_iptables_of_the_older_kind_holds_is_removed_too() {
    let node = Node::new(V4);
    let legacy = node.path("legacy");
    std::fs::create_dir(&legacy).unwrap();
    for name in ["iptables", "ip6tables"] {
        let program = format!("/usr/sbin/{name}-legacy");
        std::os::unix::fs::symlink(program, legacy.join(name)).unwrap();
    }
    let mut pod = Pod::with_ports("pod-1", ports());
    pod.result =
        node.call(Whose::Go, "flannel", "ADD", &pod, &node.flannel_conf()).expect_success().json();
    let mut conf = node.portmap_conf(&pod);
    conf["prevResult"] = pod.result.clone();
    let mut request = node.request(Whose::Go, "portmap", "ADD", &pod);
    request.search_path = format!("{}:/usr/sbin:/usr/bin:/bin", legacy.display());
    request.send(&conf.to_string()).expect_success();
    let listed = run("iptables-legacy", "-t nat -S");
    assert!(listed.contains("CNI-DN-"), "{listed}");
    node.del(Whose::Ours, &pod);
    let listed = run("iptables-legacy", "-t nat -S");
    assert!(!listed.contains("CNI-DN-"), "{listed}");
    node.assert_clean();
}

#[test]
fn our_host_local_serves_the_go_bridge() {
    let node = Node::new(V4);
    let mixed = node.path("mixed");
    std::fs::create_dir(&mixed).unwrap();
    std::os::unix::fs::symlink(go_plugins().join("bridge"), mixed.join("bridge")).unwrap();
    std::os::unix::fs::symlink(crate::support::FLANNEL, mixed.join("host-local")).unwrap();
    let mut pod = Pod::new("pod-1");
    let mut conf = bridge_conf(&node);
    let call = |command: &str, conf: &serde_json::Value| {
        let mut request = node.request(Whose::Go, "bridge", command, &pod);
        request.program = mixed.join("bridge");
        request.path = mixed.display().to_string();
        request.send(&conf.to_string()).expect_success()
    };
    let result = call("ADD", &conf).json();
    assert_eq!(result["ips"][0]["address"], "10.244.57.2/24");
    conf["prevResult"] = result;
    call("CHECK", &conf);
    call("DEL", &conf);
    pod.result = conf["prevResult"].clone();
    node.assert_clean();
}

#[test]
fn either_loopback_sets_lo_up_with_the_same_result() {
    let node = Node::new(V4);
    let conf = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
    let pod = Pod::new("pod-1");
    pod.netns.ip("link set lo down");
    let ours = node.call(Whose::Ours, "loopback", "ADD", &pod, &conf).expect_success();
    assert!(pod.netns.ip("-o link show lo").contains("UP"));
    let go = node.call(Whose::Go, "loopback", "ADD", &pod, &conf).expect_success();
    assert_eq!(ours.stdout, go.stdout);
    node.call(Whose::Ours, "loopback", "CHECK", &pod, &conf).expect_success();
    node.call(Whose::Ours, "loopback", "DEL", &pod, &conf).expect_success();
    let (_, msg) = node.call(Whose::Ours, "loopback", "CHECK", &pod, &conf).expect_error();
    assert_eq!(msg, "loopback interface is down");
}

fn bridge_conf(node: &Node) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0", "name": node.network, "type": "bridge", "bridge": "cni0",
        "isGateway": true, "hairpinMode": true, "mtu": 1450,
        "ipam": {
            "type": "host-local", "dataDir": node.path("networks"),
            "ranges": [[{"subnet": "10.244.57.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}],
        },
    })
}
