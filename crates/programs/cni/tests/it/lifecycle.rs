//! ADD and DEL from beginning to end, with real interfaces.

use std::fs;

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, V6, Whose, run};
use crate::support::files;

/// The documented cases: each document is byte for byte what the reference saves.
fn life_cycle(families: &str, document: &str, addresses: &[&str], by_exec: bool) {
    let mut node = Node::new(families);
    node.delegate = Value::Null;
    let mut conf = node.flannel_conf();
    conf.as_object_mut().unwrap().remove("cniVersion");
    conf.as_object_mut().unwrap().remove("ipam");
    conf["cniVersion"] = "0.3.1".into();
    // The document must be the reference's, so the addresses go where they go by default.
    let networks = "/var/lib/cni/networks/cni-flannel-test";
    let _ = fs::remove_dir_all(networks);
    conf["name"] = "cni-flannel-test".into();
    let pod = Pod::new("some-container-id");
    let whose = if by_exec { Whose::Go } else { Whose::Ours };
    let call = |command| {
        let mut request = node.request(whose, "flannel", command, &pod);
        request.program = crate::support::FLANNEL.into();
        request.by_exec = by_exec;
        request.send(&conf.to_string()).expect_success()
    };
    let result = call("ADD").json();
    let got: Vec<&str> = result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].as_str().unwrap())
        .collect();
    assert_eq!(got, addresses);
    assert_eq!(
        files(&node.path("flannel")),
        [("some-container-id".into(), 0o600, document.into())]
    );
    for address in addresses {
        assert!(pod.netns.ip("addr show dev eth0").contains(address));
    }
    call("DEL");
    assert_eq!(files(&node.path("flannel")), []);
    call("DEL");
    let _ = fs::remove_dir_all(networks);
}

const ENV_V4: &str = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n";
const ENV_V6: &str = "FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\n";

#[test]
fn documented_cases_of_adding_and_deleting() {
    let document = |ranges: &str, routes: &str| {
        format!(
            r#"{{"cniVersion":"0.3.1","ipMasq":false,"ipam":{{"ranges":[{ranges}],"routes":[{routes}],"type":"host-local"}},"isGateway":true,"mtu":1450,"name":"cni-flannel-test","type":"bridge"}}"#
        )
    };
    let (range4, range6) = (r#"[{"subnet":"10.1.17.0/24"}]"#, r#"[{"subnet":"fc00::/64"}]"#);
    let (route4, route6) = (r#"{"dst":"10.1.0.0/16"}"#, r#"{"dst":"fc00::/48"}"#);
    for by_exec in [false, true] {
        life_cycle(ENV_V4, &document(range4, route4), &["10.1.17.2/24"], by_exec);
        let two = "FLANNEL_NETWORK=10.1.0.0/16,192.168.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\n";
        let routes = format!(r#"{route4},{{"dst":"192.168.0.0/16"}}"#);
        life_cycle(two, &document(range4, &routes), &["10.1.17.2/24"], by_exec);
        life_cycle(ENV_V6, &document(range6, route6), &["fc00::2/64"], by_exec);
        life_cycle(
            &format!("{ENV_V4}{ENV_V6}"),
            &document(&format!("{range4},{range6}"), &format!("{route4},{route6}")),
            &["10.1.17.2/24", "fc00::2/64"],
            by_exec,
        );
    }
}

#[test]
fn a_pod_looks_as_the_go_plugins_would_have_made_it() {
    let node = Node::new(&format!("{V4}{V6}"));
    let picture = |whose| {
        let mut pod = Pod::new("pod-1");
        node.add(whose, &mut pod);
        let mut lines: Vec<String> = [
            pod.netns.ip("-o addr show dev eth0 scope global"),
            pod.netns.ip("route"),
            pod.netns.ip("-6 route show default"),
            pod.netns.ip("-6 route show fd00:244::/56"),
            pod.netns.ip("-o link show dev eth0"),
            run("ip", "-o addr show dev cni0 scope global"),
            run("bridge", "-d link show"),
            format!("{:#}", pod.result),
        ]
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| line.trim().to_owned())
        .collect();
        node.del(Whose::Ours, &pod);
        let addresses = pod.addresses();
        let is = |word: &str, at: usize| {
            let bare = word.trim_matches(['"', ',']).split('/').next().unwrap_or_default();
            bare == addresses[at].to_string()
        };
        // What differs from one to the next: names, MAC addresses, indices, the address given out.
        for line in &mut lines {
            // Ours is not tried out first. So says the flag.
            *line = line.replace(" nodad", "");
            let words: Vec<&str> = line
                .split_whitespace()
                .map(|word| match word {
                    _ if is(word, 0) => "IP4",
                    _ if is(word, 1) => "IP6",
                    _ if word.matches(':').count() >= 5 => "MAC",
                    _ if word.trim_matches('"').starts_with("veth") => "VETH",
                    _ if word.contains("@if") => "PAIR",
                    _ if word.ends_with(':') && word[..word.len() - 1].parse::<u32>().is_ok() => {
                        "N:"
                    }
                    _ if word.contains("/proc/") => "NETNS",
                    _ => word,
                })
                .collect();
            *line = words.join(" ");
        }
        lines.sort();
        lines.join("\n")
    };
    let ours = picture(Whose::Ours);
    let go = picture(Whose::Go);
    assert_eq!(ours, go);
}

#[test]
fn every_version_of_the_protocol_gets_its_own_form_of_result() {
    let mut node = Node::new(V4);
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        node.version = version;
        let pod = node.attached("pod-1");
        let result = &pod.result;
        assert_eq!(result["cniVersion"], version);
        let address =
            if version < "0.3.0" { &result["ip4"]["ip"] } else { &result["ips"][0]["address"] };
        assert!(address.as_str().unwrap().starts_with("10.244.57."), "{result}");
        node.del(Whose::Ours, &pod);
    }
    node.assert_clean();
}

#[test]
fn defect_74_two_attachments_of_one_container_do_not_take_each_other_s_place() {
    let node = Node::new(V4);
    let first = node.attached("pod-1");
    let mut second = Pod::new("pod-1");
    second.ifname = "net1".into();
    second.netns = first.netns;
    node.add(Whose::Ours, &mut second);
    assert_eq!(files(&node.path("flannel")).len(), 2);
    node.del(Whose::Ours, &second);
    let links = second.netns.ip("-o link");
    assert!(links.contains("eth0") && !links.contains("net1"), "{links}");
    let first = Pod { netns: second.netns, result: first.result, ..Pod::new("pod-1") };
    assert_eq!(node.reserved(), [first.ip().to_string()]);
    node.del(Whose::Ours, &first);
    node.assert_clean();
}

#[test]
fn what_is_in_the_way_is_not_removed_and_nothing_is_left_behind() {
    let node = Node::new(V4);
    let pod = Pod::new("pod-1");
    pod.netns.ip("link add eth0 type bridge");
    let answer = node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf());
    let (_, msg) = answer.expect_error();
    assert!(msg.contains("already exists"), "{msg}");
    assert!(pod.netns.ip("-o link").contains("eth0"), "somebody else's interface is gone");
    assert_eq!(node.reserved(), [""; 0]);
}

#[test]
fn del_works_without_a_namespace_and_with_one_that_is_gone() {
    let node = Node::new(V4);
    for netns in ["", "/run/netns/long-gone", "/etc/hostname"] {
        let pod = node.attached("pod-1");
        let mut request = node.request(Whose::Ours, "flannel", "DEL", &pod);
        request.netns = netns.into();
        request.send(&node.flannel_conf().to_string()).expect_success();
        assert_eq!(node.reserved(), [""; 0]);
        assert_eq!(files(&node.path("flannel")), []);
    }
}

#[test]
fn an_add_by_flannel_does_not_need_any_other_program() {
    let node = Node::new(V4);
    let pod = Pod::new("pod-1");
    let mut request = node.request(Whose::Ours, "flannel", "ADD", &pod);
    request.path = "/does/not/exist".into();
    request.send(&node.flannel_conf().to_string()).expect_success();
    request.by_exec = true;
    let (_, msg) = request.send(&node.flannel_conf().to_string()).expect_error();
    assert_eq!(
        msg,
        "failed to delegate add: failed to find plugin \"bridge\" in path [/does/not/exist]"
    );
    let mut conf = node.flannel_conf();
    conf["delegateByExec"] = json!(true);
    request.by_exec = false;
    let (_, msg) = request.send(&conf.to_string()).expect_error();
    assert!(msg.contains("failed to find plugin"), "{msg}");
}

/// After an ADD that failed, runtimes call DEL until it succeeds.
#[test]
fn an_add_that_is_refused_leaves_nothing_for_del_to_stumble_over() {
    let mut node = Node::new(V4);
    for delegate in [
        json!({"type": "no-such-plugin"}),
        json!({"vlan": 5}),
        json!({"mtu": "big"}),
        json!({"hairpinMode": true, "promiscMode": true}),
    ] {
        node.delegate = delegate;
        let pod = Pod::new("pod-1");
        node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf()).expect_error();
        node.del(Whose::Ours, &pod);
        node.assert_clean();
    }
}

#[test]
fn a_container_that_was_there_before_a_restart_of_the_host_gets_its_address_again() {
    let node = Node::new(&format!("{V4}{V6}"));
    let before = node.attached("pod-1");
    let (addresses, id) = (before.addresses(), before.id.clone());
    // Namespace, bridge and rules end with the host; what is on disk stays.
    drop(before);
    run("ip", "link del cni0");
    node.attached("pod-2");
    let after = node.attached(&id);
    assert_eq!(after.addresses(), addresses);
    node.check(Whose::Ours, &after);
    assert_eq!(node.reserved().len(), 4);
}

#[test]
fn what_cannot_be_written_down_is_not_done_and_said_with_the_code_for_it() {
    let node = Node::new(V4);
    // Nobody, not even root, makes a file below a file.
    fs::write(node.path("flannel"), "").unwrap();
    let pod = Pod::new("pod-1");
    let answer = node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf());
    let (code, msg) = answer.expect_error();
    assert!(code == 5 && msg.contains("could not save the delegate's configuration"), "{msg}");
    fs::remove_file(node.path("flannel")).unwrap();
    fs::write(node.path("networks"), "").unwrap();
    let answer = node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf());
    let (code, msg) = answer.expect_error();
    assert!(code == 5 && msg.contains("networks/cbr0"), "{code} {msg}");
    fs::remove_file(node.path("networks")).unwrap();
    node.del(Whose::Ours, &pod);
    node.assert_clean();
}
