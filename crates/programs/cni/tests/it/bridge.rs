//! The bridge plugin's keys, and what CHECK notices.

use serde_json::{Value, json};

use crate::node::{Netns, Node, Pod, V4, Whose, run};
use crate::traffic::{answers_tcp, serve_tcp};

impl Node {
    fn bridge(&self, more: Value) -> Value {
        let mut conf = json!({
            "cniVersion": "1.0.0", "name": self.network, "type": "bridge", "isGateway": true,
            "ipam": {
                "type": "host-local", "dataDir": self.path("networks"),
                "ranges": [[{"subnet": "10.244.57.0/24"}]],
            },
        });
        for (key, value) in more.as_object().unwrap() {
            conf[key] = value.clone();
        }
        conf
    }

    #[track_caller]
    fn add_by(&self, conf: &Value) -> Pod {
        let mut pod = Pod::new("pod-1");
        pod.result = self.call(Whose::Ours, "bridge", "ADD", &pod, conf).expect_success().json();
        pod
    }

    #[track_caller]
    fn refused(&self, conf: &Value) -> (u64, String) {
        let pod = Pod::new("pod-1");
        let error = self.call(Whose::Ours, "bridge", "ADD", &pod, conf).expect_error();
        assert_eq!(self.reserved(), [""; 0], "an address is lost");
        assert!(!run("ip", "-o link").contains("veth"), "an interface is left");
        error
    }
}

#[test]
fn a_bridge_with_another_address_is_refused_or_given_the_right_one() {
    let node = Node::new(V4);
    run("ip", "link add cni0 type bridge");
    run("ip", "addr add 10.9.9.1/24 dev cni0");
    let (_, msg) = node.refused(&node.bridge(json!({})));
    assert_eq!(
        msg,
        "failed to set bridge addr: \"cni0\" already has an IP address different from 10.244.57.1/24"
    );
    node.add_by(&node.bridge(json!({"forceAddress": true})));
    let addresses = run("ip", "-o addr show dev cni0");
    assert!(addresses.contains("10.244.57.1/24") && !addresses.contains("10.9.9.1"), "{addresses}");
}

#[test]
fn what_is_not_a_bridge_is_refused() {
    let node = Node::new(V4);
    run("ip", "link add cni0 type veth peer name cni1");
    for link in ["cni0", "cni1"] {
        run("ip", &format!("link set {link} alias occupied"));
    }
    let pod = Pod::new("pod-1");
    let (_, msg) =
        node.call(Whose::Ours, "bridge", "ADD", &pod, &node.bridge(json!({}))).expect_error();
    assert_eq!(msg, "\"cni0\" already exists but is not a bridge");
    assert_eq!(node.reserved(), [""; 0]);
}

#[test]
fn keys_of_the_bridge_do_what_they_say() {
    let node = Node::new(V4);
    let pod = node.add_by(&node.bridge(json!({
        "bridge": "br7", "mtu": 1400, "promiscMode": true, "portIsolation": true,
        "runtimeConfig": {"mac": "02:11:22:33:44:55", "ips": ["10.244.57.77/24"]},
        "dns": {"nameservers": ["192.0.2.53"]},
    })));
    assert_eq!(pod.ip().to_string(), "10.244.57.77");
    assert_eq!(pod.result["interfaces"][2]["mac"], "02:11:22:33:44:55");
    assert_eq!(pod.result["dns"]["nameservers"], json!(["192.0.2.53"]));
    let eth0 = pod.netns.ip("-o link show dev eth0");
    assert!(eth0.contains("mtu 1400") && eth0.contains("02:11:22:33:44:55"), "{eth0}");
    assert!(run("ip", "-d -o link show dev br7").contains("promiscuity 1"));
    let port = run("bridge", "-d link show");
    assert!(port.contains("isolated on") && port.contains("hairpin off"), "{port}");
    assert_eq!(
        std::fs::read_to_string("/proc/thread-self/net/dev").unwrap().matches("br7").count(),
        1
    );
}

#[test]
fn an_address_in_use_can_not_be_asked_for() {
    let node = Node::new(V4);
    let wish = node.bridge(json!({"runtimeConfig": {"ips": ["10.244.57.77"]}}));
    node.add_by(&wish);
    let mut other = Pod::new("pod-2");
    let (_, msg) = node.call(Whose::Ours, "bridge", "ADD", &other, &wish).expect_error();
    assert!(
        msg.contains("requested IP address 10.244.57.77 is not available in range set"),
        "{msg}"
    );
    other.id = "pod-3".into();
    let outside = node.bridge(json!({"runtimeConfig": {"ips": ["192.0.2.1"]}}));
    let (_, msg) = node.call(Whose::Ours, "bridge", "ADD", &other, &outside).expect_error();
    assert_eq!(msg, "failed to allocate all requested IPs: 192.0.2.1");
    let gateway = node.bridge(json!({"args": {"cni": {"ips": ["10.244.57.1"]}}}));
    let (_, msg) = node.call(Whose::Ours, "bridge", "ADD", &other, &gateway).expect_error();
    assert!(msg.contains("requested ip 10.244.57.1 is subnet's gateway"), "{msg}");
    assert_eq!(node.reserved(), ["10.244.57.77"], "nothing is kept of what failed");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let node = Node::new(V4);
    for (more, words) in [
        (
            json!({"hairpinMode": true, "promiscMode": true}),
            "cannot set hairpin mode and promiscuous mode",
        ),
        (
            json!({"disableContainerInterface": true}),
            "cannot use IPAM when DisableContainerInterface",
        ),
        (
            json!({"ipMasq": true, "ipMasqBackend": "ebtables"}),
            "'ipMasqBackend' must be \"iptables\" or \"nftables\", not \"ebtables\"",
        ),
        (json!({"vlan": 4095}), "invalid VLAN ID 4095 (must be between 0 and 4094)"),
        (json!({"vlanTrunk": [{"id": 0}]}), "incorrect trunk id parameter"),
        (json!({"mtu": "big"}), "'mtu' must be a whole number"),
        (json!({"bridge": "much too long a name"}), "must be the name of a network interface"),
    ] {
        let (code, msg) = node.refused(&node.bridge(more));
        assert!(code == 7 && msg.contains(words), "{code} {msg}");
    }
    // Switched off they are nothing to speak of.
    node.add_by(&node.bridge(json!({"vlan": 0, "macspoofchk": false, "vlanTrunk": []})));
}

#[test]
fn a_network_without_addresses_is_only_plugged_in() {
    let node = Node::new(V4);
    let mut conf = node.bridge(json!({"isGateway": false}));
    conf.as_object_mut().unwrap().remove("ipam");
    let pod = node.add_by(&conf);
    assert!(pod.result.get("ips").is_none());
    assert!(pod.netns.ip("-o link show dev eth0").contains("state UP"));
    node.call(Whose::Ours, "bridge", "CHECK", &pod, &conf).expect_success();
    node.call(Whose::Ours, "bridge", "DEL", &pod, &conf).expect_success();
}

#[test]
fn duplicate_detection_is_waited_for_only_when_asked_for() {
    let node = Node::new(V4);
    let mut conf = node.bridge(json!({"enabledad": true}));
    conf["ipam"]["ranges"] = json!([[{"subnet": "fd00:9::/64"}]]);
    let pod = node.add_by(&conf);
    let shown = pod.netns.ip("-o addr show dev eth0 scope global");
    assert!(
        shown.contains("fd00:9::2/64") && !shown.contains("tentative") && !shown.contains("nodad"),
        "{shown}"
    );
}

#[test]
fn defect_75_check_notices_what_is_missing() {
    let node = Node::new(V4);
    for (vandalism, complaint) in [
        ("addr del 10.244.57.IP/24 dev eth0", "Failed to match addr"),
        ("route del 10.244.0.0/16", "Expected Route to 10.244.0.0/16 not found"),
        ("link set eth0 down", "Interface eth0 is down"),
        ("link set eth0 address 02:00:00:00:00:99", "Mac doesn't match"),
        ("link del eth0", "Interface name eth0 not found"),
    ] {
        let pod = node.attached("pod-1");
        node.check(Whose::Ours, &pod);
        let last = pod.ip().to_string().rsplit('.').next().unwrap().to_owned();
        pod.netns.ip(&vandalism.replace("IP", &last));
        let answer = node.call(Whose::Ours, "flannel", "CHECK", &pod, &node.flannel_conf());
        let (_, msg) = answer.expect_error();
        assert!(msg.contains(complaint), "{vandalism}: {msg}");
        node.del(Whose::Ours, &pod);
    }
    let pod = node.attached("pod-1");
    run("ip", "link set cni0 down");
    let host_end = pod.result["interfaces"][1]["name"].as_str().unwrap();
    run("ip", &format!("link set {host_end} nomaster"));
    let (_, msg) =
        node.call(Whose::Ours, "flannel", "CHECK", &pod, &node.flannel_conf()).expect_error();
    assert!(msg.contains("CNI veth created for bridge cni0 was not found"), "{msg}");
}

#[test]
fn check_notices_a_lost_reservation_and_lost_port_mappings() {
    let mut node = Node::new(V4);
    node.portmap = json!({"backend": "nftables"});
    let mut pod = Pod::with_ports("pod-1", json!([{"hostPort": 1, "containerPort": 1}]));
    node.add(Whose::Ours, &mut pod);
    node.check(Whose::Ours, &pod);
    run("nft", "flush chain ip cni_hostport hostports");
    let (_, msg) =
        node.call(Whose::Ours, "portmap", "CHECK", &pod, &node.portmap_conf(&pod)).expect_error();
    assert!(msg.contains("missing hostport rules"), "{msg}");
    std::fs::remove_file(node.reservations_dir().join(pod.ip().to_string())).unwrap();
    let (code, msg) =
        node.call(Whose::Ours, "flannel", "CHECK", &pod, &node.flannel_conf()).expect_error();
    assert!(code == 3 && msg.contains("Failed to find address added by container"), "{code} {msg}");
}

const GATEWAY: ([u8; 4], u16) = ([10, 244, 57, 1], 7777);

/// Whether this kernel's bridges know VLANs.
fn has_vlans() -> bool {
    let made = std::process::Command::new("ip")
        .args("link add probe type bridge vlan_filtering 1".split_whitespace())
        .output()
        .unwrap();
    if made.status.success() {
        run("ip", "link del probe");
    }
    made.status.success()
}

#[test]
fn pods_are_in_the_vlan_that_is_asked_for_or_refused_where_the_kernel_has_none() {
    let node = Node::new(V4);
    let conf = node.bridge(json!({
        "vlan": 100, "vlanTrunk": [{"minID": 200, "maxID": 202}], "isGateway": true,
    }));
    let pod = Pod::new("pod-1");
    if !has_vlans() {
        let answer = node.call(Whose::Ours, "bridge", "ADD", &pod, &conf);
        let (_, msg) = answer.expect_error();
        assert!(msg.contains("could not make the bridge cni0 tell VLANs apart"), "{msg}");
        assert!(answer.stdout.contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{}", answer.stdout);
        node.assert_clean();
        return;
    }
    let result = node.call(Whose::Ours, "bridge", "ADD", &pod, &conf).expect_success().json();
    assert_eq!(result["interfaces"][3]["name"], "cni0.100");
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let vlans = run("bridge", &format!("vlan show dev {port}"));
    let numbers: Vec<&str> =
        vlans.split_whitespace().filter(|word| word.parse::<u16>().is_ok()).collect();
    assert_eq!(numbers, ["100", "200", "201", "202"], "{vlans}");
    assert!(vlans.contains("100 PVID Egress Untagged"), "{vlans}");
    assert!(run("ip", "-o addr show dev cni0.100").contains("10.244.57.1/24"));
    serve_tcp(&Netns::current(), GATEWAY.into());
    assert!(answers_tcp(Some(&pod.netns), GATEWAY.into()));
    node.call(Whose::Ours, "bridge", "DEL", &pod, &conf).expect_success();
}

#[test]
fn a_pod_that_sends_from_another_s_mac_address_is_not_heard() {
    let node = Node::new(V4);
    let conf = node.bridge(json!({"macspoofchk": true, "isGateway": true}));
    for (adds, deletes) in
        [(Whose::Ours, Whose::Go), (Whose::Go, Whose::Ours), (Whose::Ours, Whose::Ours)]
    {
        let pod = Pod::new("pod-1");
        node.call(adds, "bridge", "ADD", &pod, &conf).expect_success();
        if adds == Whose::Ours && deletes == Whose::Go {
            serve_tcp(&Netns::current(), GATEWAY.into());
        }
        let reaches = || answers_tcp(Some(&pod.netns), GATEWAY.into());
        assert!(reaches(), "{adds:?}: from its own");
        pod.netns.ip("link set eth0 address 02:00:00:00:00:01");
        assert!(!reaches(), "{adds:?}: from another");
        let rules = run("nft", "list table bridge nat");
        assert_eq!(rules.matches("macspoofchk-pod-1-eth0").count(), 4, "{rules}");
        node.call(deletes, "bridge", "DEL", &pod, &conf).expect_success();
        let rules = run("nft", "list table bridge nat");
        assert!(!rules.contains("pod-1"), "{deletes:?}: {rules}");
    }
}
