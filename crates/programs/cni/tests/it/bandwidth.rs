//! The bandwidth plugin beside the Go one.

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, V6, Whose, run};

fn conf(node: &Node, pod: &Pod, more: &Value) -> Value {
    let mut conf = json!({
        "cniVersion": node.version, "name": node.network, "type": "bandwidth",
        "capabilities": {"bandwidth": true}, "prevResult": pod.result,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        conf[key] = value.clone();
    }
    conf
}

/// As the container runtimes say it.
fn runtime(rate: u64, burst: u64) -> Value {
    json!({"runtimeConfig": {"bandwidth": {
        "ingressRate": rate, "ingressBurst": burst, "egressRate": rate * 2, "egressBurst": burst,
    }}})
}

fn host_end(pod: &Pod) -> String {
    pod.result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

fn ifbs() -> Vec<String> {
    run("ip", "-o link show type ifb")
        .lines()
        .map(|line| line.split(": ").nth(1).unwrap().to_owned())
        .collect()
}

/// What stands in the kernel, without what differs from one time to the next.
fn limits(pod: &Pod) -> String {
    let mut text = run("tc", &format!("qdisc show dev {}", host_end(pod)));
    for ifb in ifbs() {
        text += &run("tc", &format!("qdisc show dev {ifb}"));
        let link = run("ip", &format!("-o link show dev {ifb}"));
        let wanted = ["mtu", "qlen", "UP"].map(|word| {
            let mut words = link.split_whitespace().skip_while(|it| !it.contains(word));
            format!("{:?} {:?}", words.next().map(|it| it.contains("UP")), words.next())
        });
        text += &format!("{} {wanted:?}\n", ifb.len());
        assert!(
            run("tc", &format!("filter show dev {} ingress", host_end(pod)))
                .contains(&format!("mirred (Egress Redirect to device {ifb}) stolen")),
        );
    }
    text
}

#[test]
fn limits_are_the_go_plugin_s_and_either_checks_and_removes_the_other_s() {
    let node = Node::new(&format!("{V4}{V6}"));
    let mut pod = node.attached("pod-1");
    let ways = [
        runtime(8_000_000, 16_000_000),
        // containerd's burst.
        runtime(10_000_000, u32::MAX.into()),
        runtime(1_000_000, u32::MAX.into()),
        // More bytes in a second than 32 bits hold.
        runtime(80_000_000_000, 800_000_000),
        runtime(64, 8_000),
        json!({"ingressRate": 1_000_000, "ingressBurst": 80_000}),
        json!({"egressRate": 1_000_000, "egressBurst": 80_000, "runtimeConfig": {"bandwidth": {
            "ingressRate": 1, "ingressBurst": 1}}}),
        json!({"runtimeConfig": {"bandwidth": {}}}),
    ];
    let made = pod.result.clone();
    for way in &ways {
        let mut seen = Vec::new();
        for (first, last) in [(Whose::Go, Whose::Ours), (Whose::Ours, Whose::Go)] {
            pod.result = made.clone();
            let asked = conf(&node, &pod, way);
            let answer = node.call(first, "bandwidth", "ADD", &pod, &asked).expect_success();
            let mut result = answer.json();
            let added = result["interfaces"].as_array_mut().unwrap();
            if let Some(ifb) = added.get_mut(3) {
                assert!(run("ip", "-o link").contains(ifb["mac"].as_str().unwrap()));
                ifb["mac"] = Value::Null;
            }
            seen.push((limits(&pod), result));
            pod.result = answer.json();
            for whose in [first, last] {
                let asked = conf(&node, &pod, way);
                node.call(whose, "bandwidth", "CHECK", &pod, &asked).expect_success();
            }
            node.call(last, "bandwidth", "DEL", &pod, &asked).expect_success();
            node.call(last, "bandwidth", "DEL", &pod, &asked).expect_success();
            assert_eq!(ifbs(), [""; 0]);
            for place in ["root", "ingress"] {
                let arguments = format!("qdisc del dev {} {place}", host_end(&pod));
                let _ = std::process::Command::new("tc").args(arguments.split(' ')).output();
            }
        }
        assert_eq!(seen[0], seen[1], "{way}");
    }
}

#[test]
fn what_a_pod_sends_and_receives_passes_where_it_can_be_held_back() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    let asked = conf(&node, &pod, &runtime(8_000_000, 16_000_000));
    node.call(Whose::Ours, "bandwidth", "ADD", &pod, &asked).expect_success();
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let gateway = pod.result["ips"][0]["gateway"].as_str().unwrap().to_owned();
    pod.netns.inside(|| {
        let pod = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        pod.send_to(&[7; 1000], (gateway.as_str(), port)).unwrap();
    });
    let (_, from) = socket.recv_from(&mut [0; 2000]).unwrap();
    socket.send_to(&[8; 1000], from).unwrap();
    for link in [ifbs().remove(0), host_end(&pod)] {
        let passed = run("tc", &format!("-s -j qdisc show dev {link} root"));
        let passed: Value = serde_json::from_str(&passed).unwrap();
        assert!(passed[0]["bytes"].as_u64().unwrap() > 1000, "{link}: {passed}");
    }
}

#[test]
fn check_names_the_limit_that_is_gone_or_another() {
    let node = Node::new(V4);
    let mut pod = node.attached("pod-1");
    let way = runtime(8_000_000, 16_000_000);
    let asked = conf(&node, &pod, &way);
    pod.result = node.call(Whose::Ours, "bandwidth", "ADD", &pod, &asked).expect_success().json();
    let check = |more: &Value| {
        let asked = conf(&node, &pod, more);
        node.call(Whose::Ours, "bandwidth", "CHECK", &pod, &asked).expect_error().1
    };
    let said = check(&runtime(16_000_000, 16_000_000));
    assert!(said.contains("Rate doesn't match") && said.contains("1000000"), "{said}");
    run("tc", &format!("qdisc del dev {} root", host_end(&pod)));
    assert!(check(&way).contains(&format!("nothing limits {}", host_end(&pod))));
    node.call(Whose::Ours, "bandwidth", "ADD", &pod, &asked).expect_success();
    run("ip", &format!("link del {}", ifbs()[0]));
    assert!(check(&way).contains("there is no link bwp"));
    // An ADD that finds what an earlier one has left makes all of it anew.
    for _ in 0..2 {
        node.call(Whose::Ours, "bandwidth", "ADD", &pod, &asked).expect_success();
        node.call(Whose::Ours, "bandwidth", "CHECK", &pod, &asked).expect_success();
    }
}

#[test]
fn gc_removes_the_links_of_pods_that_are_gone_and_of_no_other_network() {
    let mut node = Node::new(V4);
    node.version = "1.1.0";
    let way = runtime(8_000_000, 16_000_000);
    let pods = ["pod-1", "pod-2"].map(|id| node.attached(id));
    for pod in &pods {
        node.call(Whose::Ours, "bandwidth", "ADD", pod, &conf(&node, pod, &way)).expect_success();
    }
    let third = node.attached("pod-3");
    let mut other = conf(&node, &third, &way);
    other["name"] = "cbr00".into();
    node.call(Whose::Ours, "bandwidth", "ADD", &third, &other).expect_success();
    assert_eq!(ifbs().len(), 3);
    let mut gc = conf(&node, &pods[0], &way);
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "pod-2", "ifname": "eth0"}]);
    node.call(Whose::Ours, "bandwidth", "GC", &pods[0], &gc).expect_success();
    assert_eq!(ifbs().len(), 2);
    node.call(Whose::Ours, "bandwidth", "CHECK", &pods[1], &conf(&node, &pods[1], &way))
        .expect_success();
    node.call(Whose::Ours, "bandwidth", "STATUS", &pods[0], &conf(&node, &pods[0], &way))
        .expect_success();
}

/// As an ADD leaves it that is killed right after it has made the link.
#[test]
fn gc_removes_a_link_that_bears_no_mark_but_that_of_its_making() {
    let mut node = Node::new(V4);
    node.version = "1.1.0";
    let way = runtime(8_000_000, 16_000_000);
    let pods = ["pod-1", "pod-2"].map(|id| node.attached(id));
    for (pod, name) in pods.iter().zip([node.network.as_str(), "another"]) {
        let mut asked = conf(&node, pod, &way);
        asked["name"] = name.into();
        node.call(Whose::Ours, "bandwidth", "ADD", pod, &asked).expect_success();
    }
    run("ip", "link add bwp0123456789ab type ifb");
    for ifb in ifbs() {
        std::process::Command::new("ip").args(["link", "set", &ifb, "alias", ""]).status().unwrap();
        assert!(!run("ip", &format!("link show {ifb}")).contains("alias"));
    }
    let mut gc = conf(&node, &pods[0], &way);
    gc["cni.dev/valid-attachments"] = json!([]);
    node.call(Whose::Ours, "bandwidth", "GC", &pods[0], &gc).expect_success();
    assert_eq!(ifbs().len(), 2, "those of another network, and of somebody else, stay");
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    for (more, said) in [
        (json!({"ingressRate": 8_000}), "if rate is set, burst must also be set"),
        (json!({"egressBurst": 8_000}), "if burst is set, rate must also be set"),
        (json!({"egressRate": 8, "egressBurst": 1_u64 << 40}), "burst cannot be more than 4GB"),
        (json!({"egressRate": 7, "egressBurst": 8}), "8 at least"),
        (json!({"ingressRate": -8, "ingressBurst": 8}), "'ingressRate' must be a whole number"),
        (json!({"runtimeConfig": {"bandwidth": 7}}), "'bandwidth' must be an object"),
    ] {
        let asked = conf(&node, &pod, &more);
        let (code, msg) = node.call(Whose::Ours, "bandwidth", "ADD", &pod, &asked).expect_error();
        assert!(code == 7 && msg.contains(said), "{more}: {msg}");
    }
    let mut alone = conf(&node, &pod, &runtime(8_000, 8_000));
    alone.as_object_mut().unwrap().remove("prevResult");
    let (_, msg) = node.call(Whose::Ours, "bandwidth", "ADD", &pod, &alone).expect_error();
    assert_eq!(msg, "must be called as chained plugin");
    assert_eq!(ifbs(), [""; 0]);
}
