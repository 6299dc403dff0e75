//! Events on the Node, for what an operator must know.

use std::time::{Duration, Instant};

use flannel_kube::testing::NodeSpec;
use flannel_lab::Result;
use http::Method;
use serde_json::Value;

use crate::rights::{as_pods, put_token, rules};
use crate::served::served;
use crate::support::{Kube, cidr, key, kube, name};

/// Of a node: reason, message and count.
fn events(kube: &Kube, number: u16) -> Vec<(String, String, u64)> {
    let path = "/api/v1/namespaces/default/events?limit=500";
    let list = kube.server.must(&Method::GET, path, None);
    let of = |event: &&Value| {
        event["involvedObject"]["kind"] == "Node" && event["involvedObject"]["name"] == name(number)
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let read = |event: &Value| {
        (text(&event["reason"]), text(&event["message"]), event["count"].as_u64().unwrap_or(0))
    };
    list["items"].as_array().unwrap().iter().filter(of).map(read).collect()
}

fn has(kube: &Kube, number: u16, reason: &str, words: &[&str]) -> bool {
    events(kube, number).iter().any(|(found, message, _)| {
        found == reason && words.iter().all(|word| message.contains(word))
    })
}

/// A fault that lasts this long is reported.
const LASTING: Duration = Duration::from_secs(8);

/// Pods are cut off until something is seen, and the API server is not.
fn cut_off(kube: &Kube, until: impl Fn() -> bool) -> Result<()> {
    kube.lab.node(1).exec(&["sysctl", "-w", "net.ipv4.ip_forward=0"])?;
    kube.wait("it to be seen that pods are cut off", until)?;
    kube.lab.node(1).exec(&["sysctl", "-w", "net.ipv4.ip_forward=1"])?;
    Ok(())
}

#[test]
fn what_an_operator_must_know_is_an_event_on_the_node_said_once_and_counted() -> Result<()> {
    let kube = kube(2).start()?;
    kube.connected_pods(1, 2)?;
    assert!(events(&kube, 1).is_empty(), "nothing is wrong: {:?}", events(&kube, 1));

    // The same fault twice, and its end.
    for count in 1..=2 {
        let told = |reason: &str| {
            let events = events(&kube, 1);
            let times = events.iter().filter(|(found, ..)| found == reason).map(|(.., n)| n);
            times.sum::<u64>() >= count
        };
        cut_off(&kube, || told("FlannelNotReady"))?;
        kube.wait("its end to be told", || told("FlannelReady"))?;
    }
    let told = events(&kube, 1);
    for reason in ["FlannelReady", "FlannelNotReady"] {
        assert_eq!(told.iter().filter(|(of, ..)| of == reason).count(), 1, "{told:?}");
    }

    // While the interface is lost nobody can be told; afterwards it is.
    let address = "192.168.100.1/24 dev eth0";
    kube.lab.node(1).ip(&format!("address del {address}"))?;
    std::thread::sleep(LASTING);
    kube.lab.node(1).ip(&format!("address add {address}"))?;
    kube.wait("the lost interface to be told", || has(&kube, 1, "FlannelNotReady", &["eth0"]))?;

    // Another subnet, and another Node that has the same one.
    kube.server.delete_node(&name(2));
    kube.server.create_node(&NodeSpec::new(&name(2)).cidr("10.244.22.0/24"));
    let changed = |words: &[&str]| has(&kube, 2, "FlannelSubnetChanged", words);
    kube.wait("the change to be told", || changed(&["10.244.2.0-24", "10.244.22.0-24"]))?;
    // The same while no daemon runs there.
    kube.lab.node(2).flanneld().stop()?;
    kube.server.delete_node(&name(2));
    kube.server.create_node(&NodeSpec::new(&name(2)).cidr("10.244.23.0/24"));
    kube.lab.node(2).flanneld().start()?;
    kube.wait("the next change to be told", || changed(&["10.244.23.0-24 now"]))?;
    let twin = NodeSpec::new("zz-twin").cidr(cidr(1)).vxlan("192.168.100.77", "02:00:00:00:00:77");
    kube.server.create_node(&twin);
    kube.wait("the clash to be told", || {
        has(&kube, 1, "FlannelSubnetClash", &["zz-twin", "same podCIDR"])
    })?;
    Ok(())
}

#[test]
fn without_the_right_to_write_events_one_line_says_so_and_all_else_goes_on() -> Result<()> {
    let kube = as_pods(1)?;
    let mut fewer = rules();
    fewer.as_array_mut().unwrap().retain(|rule| rule["resources"][0] != "events");
    assert_ne!(fewer, rules(), "the manifest allows them");
    let token = kube.server.service_account("flannel", &fewer);
    put_token(&kube, 1, &token)?;
    kube.server.annotate(&name(1), &key("unrelated"), Some("x"));
    kube.lab.start_daemons()?;
    let is_ready = || kube.lab.node(1).flanneld().is_ready();
    cut_off(&kube, || kube.lab.node(1).flanneld().log().contains("Cannot write events on Nodes"))?;
    kube.wait("it to be ready again", is_ready)?;
    kube.logged(1, &["Cannot write events on Nodes", "create events", "verbs: [create, patch]"])?;
    let again = Instant::now();
    cut_off(&kube, || again.elapsed() > LASTING)?;
    kube.wait("it to be ready again", is_ready)?;
    let log = kube.lab.node(1).flanneld().log();
    assert_eq!(log.matches("Cannot write events on Nodes").count(), 1, "{log}");
    Ok(())
}

/// The node itself has no right in Kubernetes: the server says it.
#[test]
fn trouble_of_a_node_behind_a_lease_server_is_an_event_on_its_node() -> Result<()> {
    let (kube, _server) = served(kube(2), 2)?;
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    assert!(events(&kube, 1).is_empty(), "nothing is wrong: {:?}", events(&kube, 1));
    cut_off(&kube, || has(&kube, 1, "FlannelNotReady", &["ip_forward"]))?;
    kube.wait("its end to be told", || has(&kube, 1, "FlannelReady", &[]))?;
    assert!(events(&kube, 2).is_empty(), "of node 2 there is nothing to say");

    // Another subnet, and another Node that has it too.
    let twin = NodeSpec::new("zz-twin").cidr("10.244.22.0/24");
    kube.server.create_node(&twin.vxlan("192.168.100.77", "02:00:00:00:00:77"));
    kube.server.delete_node(&name(2));
    kube.server.create_node(&NodeSpec::new(&name(2)).cidr("10.244.22.0/24"));
    kube.wait("the change and the clash to be told", || {
        has(&kube, 2, "FlannelSubnetChanged", &["was 10.244.2.0-24 and is 10.244.22.0-24"])
            && has(&kube, 2, "FlannelSubnetClash", &["zz-twin", "same podCIDR"])
    })?;

    // One that comes later, long before the node says again who it is.
    let late = NodeSpec::new("zz-late").cidr(cidr(1)).vxlan("192.168.100.78", "02:00:00:00:00:78");
    kube.server.create_node(&late);
    kube.wait("the later clash to be told", || {
        has(&kube, 1, "FlannelSubnetClash", &["zz-late", "same podCIDR"])
    })
}
