//! What `flannelctl status` says of Nodes that get no packets, and of peers whose daemon is not at work.

use flannel_kube::testing::NodeSpec;
use flannel_lab::{LabError, Place as _, Result};
use serde_json::json;

use crate::served::served;
use crate::support::{Kube, LIMIT, cidr, key, kube, spec};

/// Another Node with the podCIDR of node 2, and one that announces no address.
fn add_nodes_that_get_nothing(kube: &Kube) {
    let twin = NodeSpec::new("node-2b").cidr(cidr(2));
    kube.server.create_node(&twin.vxlan("192.168.100.77", "02:00:00:00:00:77"));
    let nowhere = NodeSpec::new("nowhere").cidr(cidr(9));
    kube.server.create_node(&nowhere.vxlan("0.0.0.0", "02:00:00:00:00:09"));
}

const FINDINGS: [&str; 4] = [
    "the Nodes node-2 and node-2b have it",
    "pods of node-2b get nothing",
    "the Node nowhere",
    "its annotation public-ip is \"0.0.0.0\", which is no address of a node",
];

#[test]
fn nodes_that_get_no_packets_are_named_by_others_with_the_reason() -> Result<()> {
    let kube = kube(3).start()?;
    add_nodes_that_get_nothing(&kube);
    kube.complains(1, &FINDINGS)?;
    kube.complains(3, &FINDINGS)?;
    // The one whose subnet it is, too, is told.
    kube.complains(2, &FINDINGS[..2])
}

#[test]
fn nodes_of_a_lease_server_hear_of_nodes_that_get_no_packets_and_of_their_end() -> Result<()> {
    let (kube, _server) = served(kube(2), 2)?;
    kube.lab.start_daemons()?;
    add_nodes_that_get_nothing(&kube);
    kube.complains(1, &FINDINGS)?;
    kube.server.delete_node("node-2b");
    kube.server.delete_node("nowhere");
    kube.wait("both to be forgotten", || {
        let said = kube.flannelctl(1, &["status"]);
        said.is_ok_and(|(_, said)| !FINDINGS.iter().any(|finding| said.contains(finding)))
    })
}

#[test]
fn a_peer_that_waits_for_its_api_server_may_be_running_for_all_that_is_said() -> Result<()> {
    let kube = kube(2).start()?;
    kube.connected_pods(1, 2)?;
    let proxy = kube.proxy();
    proxy.close();
    let user = json!({"client-certificate": "admin.crt", "client-key": "admin.key"});
    let file = kube.server.kubeconfig("proxied", &proxy.url(), user);
    let daemon = kube.lab.node(2).flanneld();
    daemon.stop()?;
    kube.replace_flag(2, "--kubeconfig-file", file.display().to_string());
    daemon.start()?;
    kube.logged(2, &["no answer from"])?;
    kube.lab.wait_until("node 1 to say it", LIMIT, || {
        let (_, said) = kube.flannelctl(1, &["status"])?;
        let is_said =
            said.contains("has not joined its network yet, as while it waits for its store");
        if is_said { Ok(()) } else { Err(LabError::Spec(said)) }
    })?;
    assert!(daemon.is_running());
    Ok(())
}

/// Both would have one MAC and one address, and nobody would see why packets are lost.
#[test]
fn a_node_refuses_the_address_of_another_that_runs() -> Result<()> {
    let kube = kube(2).with_nodes()?;
    let [first, second] = [1, 2].map(|number| kube.lab.node(number).flanneld());
    first.start()?;
    first.wait_ready()?;
    kube.replace_flag(2, "--public-ip", "192.168.100.1");
    second.start()?;
    kube.wait("the second to refuse", || {
        let answer = kube.lab.node(2).namespace().http(8081, "GET", "/readyz", "", LIMIT);
        let words = "is of another node that is running";
        answer.is_ok_and(|it| it.is_ok_and(|it| it.status == 503 && it.body.contains(words)))
    })?;
    assert_eq!(kube.annotation(2, "public-ip"), None, "it announces nothing");
    assert_eq!(kube.annotation(1, "public-ip").as_deref(), Some("192.168.100.1"));
    assert!(first.is_ready());
    Ok(())
}

/// Forwarding entries of node `number` for a MAC.
fn leads_to(kube: &Kube, number: u16, mac: &str) -> Result<String> {
    let fdb = kube.lab.node(number).exec(&["bridge", "fdb", "show", "dev", "flannel.1"])?;
    Ok(fdb.lines().filter(|line| line.starts_with(mac)).collect::<Vec<_>>().join("\n"))
}

/// A kubelet can write whatever it likes into its own Node; this one is older than the victim's.
#[test]
fn a_node_that_comes_after_a_theft_sends_to_whose_address_gives_the_mac() -> Result<()> {
    let kube = kube(2).empty()?;
    let thief = NodeSpec::new("thief").cidr("10.244.100.0/24");
    kube.server.create_node(&thief.vxlan("192.168.100.100", "02:00:00:00:00:55"));
    kube.server.create_node(&spec(1, false));
    kube.lab.node(1).flanneld().start()?;
    kube.lab.node(1).flanneld().wait_ready()?;
    let data = kube.annotation(1, "backend-data").expect("what the victim announces");
    kube.server.annotate("thief", &key("backend-data"), Some(&data));
    kube.server.create_node(&spec(2, false));
    kube.lab.node(2).flanneld().start()?;
    kube.lab.node(2).flanneld().wait_ready()?;
    let announced: serde_json::Value = serde_json::from_str(&data).expect("JSON");
    let mac = announced["VtepMAC"].as_str().expect("a MAC");
    kube.wait("the victim's entry", || leads_to(&kube, 2, mac).is_ok_and(|it| !it.is_empty()))?;
    let leads = leads_to(&kube, 2, mac)?;
    assert!(leads.contains("dst 192.168.100.1 "), "{leads}");
    assert!(!leads.contains("dst 192.168.100.100"), "{leads}");
    kube.complains(2, &["10.244.100.0/24", "announce it"])
}

/// Neither the addresses nor Kubernetes tell which of them is the thief: the older Node may be, and the younger one too.
#[test]
fn of_two_nodes_with_one_mac_that_nobody_can_tell_apart_neither_gets_packets() -> Result<()> {
    let kube = kube(1).empty()?;
    let mac = "02:00:00:00:00:55";
    let node = |name: &str, number: u16| {
        let address = format!("192.168.100.{number}");
        NodeSpec::new(name).cidr(format!("10.244.{number}.0/24")).vxlan(&address, mac)
    };
    kube.server.create_node(&node("older", 200));
    kube.server.create_node(&node("younger", 100));
    kube.server.create_node(&spec(1, false));
    kube.lab.start_daemons()?;
    for subnet in ["10.244.100.0/24", "10.244.200.0/24"] {
        kube.complains(1, &[subnet, "nothing leads to it"])?;
    }
    kube.logged(1, &["knows which of them had it first", "so nothing is sent to either"])?;
    assert_eq!(leads_to(&kube, 1, mac)?, "");
    // One who is alone with it has it.
    kube.server.annotate(
        "older",
        &key("backend-data"),
        Some(r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:56"}"#),
    );
    kube.wait("the other's entry", || {
        leads_to(&kube, 1, mac).is_ok_and(|it| it.contains("dst 192.168.100.100"))
    })
}

#[test]
fn config_set_asks_nodes_and_writes_no_config_map_that_one_of_them_cannot_use() -> Result<()> {
    let kube = kube(2).start()?;
    let config = |vni: u16| {
        json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": vni}}).to_string()
    };
    let namespaces = "/api/v1/namespaces";
    kube.server.create(namespaces, &json!({"metadata": {"name": "kube-flannel"}}));
    let maps = format!("{namespaces}/kube-flannel/configmaps");
    let map =
        json!({"metadata": {"name": "kube-flannel-cfg"}, "data": {"net-conf.json": config(1)}});
    kube.server.create(&maps, &map);
    kube.lab.node(2).ip("link add stranger type vxlan id 42 dev eth0 dstport 8472")?;
    let kubeconfig = format!("--kubeconfig-file={}", kube.server.admin_kubeconfig().display());
    let file = kube.server.file("new.json");
    let set = |vni: u16| {
        std::fs::write(&file, config(vni)).unwrap();
        kube.flannelctl(1, &["config", "set", &kubeconfig, file.to_str().unwrap()])
    };
    let written = || {
        let path = format!("{maps}/kube-flannel-cfg");
        kube.server.must(&http::Method::GET, &path, None)["data"]["net-conf.json"].clone()
    };
    let (is_written, said) = set(42)?;
    assert!(!is_written && said.contains("nothing was written: 1 of 2 nodes"), "{said}");
    assert!(said.contains("stranger is in the way"), "{said}");
    assert_eq!(written(), config(1));
    let (is_written, said) = set(43)?;
    assert!(is_written, "{said}");
    assert_eq!(written(), config(43));
    kube.wait("no question to be left", || {
        (1..=2).all(|number| kube.annotation(number, "request").is_none())
    })
}
