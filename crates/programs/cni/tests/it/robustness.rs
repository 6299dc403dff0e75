//! What happens when things go wrong, and when many things happen at once.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::node::{Node, Pod, V4, V6, Whose, apart, run};
use crate::traced::Traced;

#[test]
fn two_hundred_adds_at_once_get_two_hundred_addresses() {
    const PODS: usize = 200;
    let node = Node::new(&format!("{V4}{V6}"));
    let mut pods: Vec<Pod> = (0..PODS).map(|n| Pod::new(&format!("pod-{n}"))).collect();
    let conf = node.flannel_conf().to_string();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = pods
            .iter()
            .map(|pod| {
                let request = node.request(Whose::Ours, "flannel", "ADD", pod);
                let conf = &conf;
                scope.spawn(move || request.send(conf).expect_success().json())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (pod, result) in pods.iter_mut().zip(results) {
        pod.result = result;
    }
    let addresses: BTreeSet<_> = pods.iter().flat_map(Pod::addresses).collect();
    assert_eq!(addresses.len(), 2 * PODS);
    assert_eq!(node.reserved().len(), 2 * PODS);
    std::thread::scope(|scope| {
        for pod in &pods {
            let request = node.request(Whose::Ours, "flannel", "DEL", pod);
            let conf = &conf;
            scope.spawn(move || request.send(conf).expect_success());
        }
    });
    node.assert_clean();
}

/// What they do alone takes a hundred times as long as what they wait for each other with.
#[test]
fn the_lock_of_the_addresses_is_held_for_a_few_system_calls_only() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    node.del(Whose::Ours, &pod);
    let lock = fs::File::open(node.reservations_dir().join("lock")).unwrap();
    for command in ["ADD", "DEL"] {
        let request = node.request(Whose::Ours, "flannel", command, &pod);
        let traced = Traced::start(&request, &node.flannel_conf());
        let (mut held, mut all) = (0, 0);
        while traced.go_on() {
            all += 1;
            match lock.try_lock() {
                Ok(()) => lock.unlock().unwrap(),
                Err(fs::TryLockError::WouldBlock) => held += 1,
                Err(error) => panic!("{error}"),
            }
        }
        // Each stops it twice.
        assert!(held > 0 && held <= 2 * 12, "{command}: {held} of {all} stops");
    }
    node.assert_clean();
}

#[test]
fn a_del_returns_only_when_the_interface_is_gone() {
    let node = Node::new(V4);
    for _ in 0..20 {
        let pod = node.attached("pod-1");
        node.del(Whose::Ours, &pod);
        assert!(!pod.netns.ip("-o link").contains("eth0"));
        assert!(!run("ip", "-o link").contains("veth"));
    }
}

#[test]
fn defect_75_gc_collects_what_belongs_to_nothing_that_lives() {
    for backend in ["iptables", "nftables"] {
        gc_collects(backend);
    }
}

fn gc_collects(backend: &str) {
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.delegate["ipMasqBackend"] = backend.into();
    node.portmap = json!({"backend": backend});
    node.version = "1.1.0";
    node.delegate["ipMasq"] = true.into();
    let ports = || json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let mut pods: Vec<Pod> =
        ["pod-alive", "pod-dead", "pod-go"].iter().map(|id| Pod::with_ports(id, ports())).collect();
    node.add(Whose::Ours, &mut pods[0]);
    node.add(Whose::Ours, &mut pods[1]);
    let go = node.call(Whose::Go, "flannel", "ADD", &pods[2], &node.flannel_conf());
    pods[2].result = go.expect_success().json();
    // What a plugin that was killed may leave behind, and one of another network.
    fs::write(node.reservations_dir().join("10.244.57.200"), "").unwrap();
    fs::write(node.path("flannel/other"), r#"{"name":"other","type":"bridge"}"#).unwrap();
    let alive = pods[0].addresses();
    let list = json!([{"containerID": "pod-alive", "ifname": "eth0"}]);
    for (plugin, mut conf) in
        [("portmap", node.portmap_conf(&pods[0])), ("flannel", node.flannel_conf())]
    {
        conf["cni.dev/valid-attachments"] = list.clone();
        let mut request = node.request(Whose::Ours, plugin, "GC", &pods[0]);
        (request.container_id, request.netns, request.ifname) = Default::default();
        request.send(&conf.to_string()).expect_success();
    }
    let mut wanted: Vec<String> = alive.iter().map(ToString::to_string).collect();
    wanted.sort();
    assert_eq!(node.reserved(), wanted);
    let records: Vec<String> =
        crate::support::files(&node.path("flannel")).into_iter().map(|it| it.0).collect();
    assert_eq!(records, ["other", "pod-alive"]);
    let rules = match backend {
        "nftables" => run("nft", "list ruleset"),
        _ => run("iptables", "-t nat -S") + &run("ip6tables", "-t nat -S"),
    };
    for gone in ["pod-dead", "pod-go"] {
        assert!(!rules.contains(gone) && rules.contains("pod-alive"), "{rules}");
    }
    node.check(Whose::Ours, &pods[0]);
}

/// As many reservations as there are addresses in the subnet 10.244.`subnet`.0/24, of containers that nobody
/// knows.
fn fill(node: &Node, subnet: u8, age: Duration) {
    let directory = node.reservations_dir();
    fs::create_dir_all(&directory).unwrap();
    for last in 2..=254 {
        let path = directory.join(format!("10.244.{subnet}.{last}"));
        fs::write(&path, format!("forgotten-{last}\r\neth0")).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
}

#[test]
fn addresses_that_a_restart_of_the_host_left_behind_are_found_and_used() {
    let node = Node::new(&apart(V4, 58));
    fill(&node, 58, Duration::from_secs(3600));
    let pod = node.attached("pod-1");
    assert_eq!(node.reserved(), [pod.ip().to_string()]);
}

#[test]
fn addresses_of_running_pods_and_of_adds_under_way_are_never_taken() {
    let node = Node::new(V4);
    // Somebody must be inside, or the namespace cannot be seen.
    let running = node.attached("pod-running");
    let mut inhabitant =
        running.netns.inside(|| std::process::Command::new("sleep").arg("60").spawn().unwrap());
    fill(&node, 57, Duration::from_secs(3600));
    fs::write(node.reservations_dir().join(running.ip().to_string()), "pod-running\r\neth0")
        .unwrap();
    let file = fs::File::options()
        .write(true)
        .open(node.reservations_dir().join(running.ip().to_string()))
        .unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    let pod = node.attached("pod-1");
    assert_ne!(pod.ip(), running.ip());
    assert!(node.reserved().contains(&running.ip().to_string()));
    inhabitant.kill().unwrap();
    inhabitant.wait().unwrap();

    fill(&node, 57, Duration::from_secs(5));
    let pod = Pod::new("pod-2");
    let (code, msg) =
        node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf()).expect_error();
    assert_eq!(code, 11, "{msg}");
    assert!(
        msg.ends_with("failed to allocate for range 0: no IP addresses available in range set: 10.244.57.1-10.244.57.254"),
        "{msg}"
    );
}
