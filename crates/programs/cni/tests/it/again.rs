//! A second ADD of what is there, what GC may be told, and what to say when it is too early.

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, V6, Whose, run};
use crate::support::files;

/// Everything that makes up an attached pod.
fn picture(node: &Node, pod: &Pod) -> Vec<String> {
    let unsteady = |line: &str| !line.contains("packets") && !line.contains("valid_lft");
    [
        pod.netns.ip("-o link show eth0"),
        pod.netns.ip("-o addr show eth0"),
        pod.netns.ip("route"),
        run("ip", "-o link"),
        run("nft", "list ruleset"),
        format!("{:?}", node.reserved()),
        format!("{:?}", files(&node.path("flannel"))),
    ]
    .iter()
    .flat_map(|text| text.lines())
    .filter(|line| unsteady(line))
    .map(str::to_owned)
    .collect()
}

#[test]
fn a_second_add_of_a_running_pod_fails_and_leaves_it_as_it_is() {
    let mut node = Node::new(&format!("{V4}{V6}"));
    for (whose, masq) in [(Whose::Ours, true), (Whose::Ours, false), (Whose::Go, false)] {
        node.delegate = json!({"isDefaultGateway": true, "ipMasq": masq});
        let mut pod = Pod::with_ports(
            "pod-1",
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]),
        );
        node.add(whose, &mut pod);
        let before = picture(&node, &pod);
        // Another configuration does not change it either.
        for extra in [json!({}), json!({"mtu": 1300})] {
            let mut conf = node.flannel_conf();
            for (key, value) in extra.as_object().unwrap() {
                conf["delegate"][key] = value.clone();
            }
            for _ in 0..2 {
                let (_, msg) = node.call(Whose::Ours, "flannel", "ADD", &pod, &conf).expect_error();
                assert!(msg.contains("eth0") && msg.contains("already"), "{msg}");
                assert_eq!(picture(&node, &pod), before);
            }
        }
        node.del(Whose::Ours, &pod);
        node.assert_clean();
    }
}

#[test]
fn a_second_add_by_the_bridge_itself_fails_and_leaves_the_pod_as_it_is() {
    let node = Node::new(V4);
    let conf = json!({
        "cniVersion": "1.0.0", "name": node.network, "type": "bridge", "isGateway": true,
        "ipMasq": true,
        "ipam": {
            "type": "host-local", "dataDir": node.path("networks"),
            "ranges": [[{"subnet": "10.244.57.0/24"}]],
        },
    });
    let mut pod = Pod::new("pod-1");
    pod.result = node.call(Whose::Ours, "bridge", "ADD", &pod, &conf).expect_success().json();
    let before = picture(&node, &pod);
    let (_, msg) = node.call(Whose::Ours, "bridge", "ADD", &pod, &conf).expect_error();
    assert!(msg.contains("already"), "{msg}");
    assert_eq!(picture(&node, &pod), before);
    node.call(Whose::Ours, "bridge", "CHECK", &pod, &conf).expect_success();
    node.call(Whose::Ours, "bridge", "DEL", &pod, &conf).expect_success();
    node.assert_clean();
}

fn gc(node: &Node, plugin: &str, mut conf: Value, list: Option<Value>) {
    if let Some(list) = list {
        conf["cni.dev/valid-attachments"] = list;
    }
    let mut request = node.request(Whose::Ours, plugin, "GC", &Pod::new("x"));
    (request.container_id, request.netns, request.ifname) = Default::default();
    request.send(&conf.to_string()).expect_success();
}

#[test]
fn gc_without_a_list_or_with_null_is_that_of_a_client_without_pods() {
    let mut node = Node::new(V4);
    node.version = "1.1.0";
    node.delegate["ipMasq"] = true.into();
    for list in [None, Some(Value::Null), Some(json!([]))] {
        let mut pod = Pod::with_ports(
            "pod-1",
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]),
        );
        node.add(Whose::Ours, &mut pod);
        gc(&node, "portmap", node.portmap_conf(&pod), list.clone());
        gc(&node, "flannel", node.flannel_conf(), list.clone());
        pod.netns.ip("link del eth0");
        node.assert_clean();
        let pod = node.attached("pod-2");
        let mut conf = node.flannel_conf();
        conf["type"] = "host-local".into();
        gc(&node, "host-local", conf, list);
        assert_eq!(node.reserved(), [""; 0]);
        node.del(Whose::Ours, &pod);
    }
}

#[test]
fn a_missing_subnet_env_is_a_reason_to_try_again_later() {
    let node = Node::new(V4);
    std::fs::remove_file(node.path("subnet.env")).unwrap();
    let pod = Pod::new("pod-1");
    let (code, msg) =
        node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf()).expect_error();
    assert!(code == 11 && msg.contains("subnet.env: no such file or directory"), "{code} {msg}");
    node.write_subnet_env("FLANNEL_MTU=no\n");
    let (code, msg) =
        node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf()).expect_error();
    assert!(code == 999, "what somebody else has written will not mend itself: {code} {msg}");
}

#[test]
fn who_holds_the_lock_is_waited_for_once_and_the_runtime_is_told_to_try_again() {
    let node = Node::new(&format!("{V4}{V6}"));
    let pod = node.attached("pod-1");
    let lock = std::fs::File::open(node.reservations_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let new = Pod::new("pod-2");
    std::thread::scope(|scope| {
        for (command, pod) in [("ADD", &new), ("DEL", &pod)] {
            let request = node.request(Whose::Ours, "flannel", command, pod);
            let conf = node.flannel_conf().to_string();
            scope.spawn(move || {
                let start = std::time::Instant::now();
                let (code, msg) = request.send(&conf).expect_error();
                let took = start.elapsed().as_secs();
                assert!(code == 11 && msg.contains("held the lock"), "{command}: {code} {msg}");
                assert!((29..50).contains(&took), "{command}: {took} s");
            });
        }
    });
    lock.unlock().unwrap();
    for pod in [new, pod] {
        node.del(Whose::Ours, &pod);
    }
    node.assert_clean();
}
