//! The extension backend: commands of the operator's make the network, here plain routes.

use std::time::Duration;

use flannel_lab::{Lab, LabError, Node, Result};
use serde_json::{Value, json};

use crate::mixed::leases_for_both;
use crate::probing::flannelctl;
use crate::support::{
    LIMIT, both_ways, connected_pods, flanneld, go_flanneld, lab, lease_path, measured, own_key,
    probe, put_peers, reach_each_other,
};

/// What was run on a node, one line each.
const LOG: &str = "/run/extension-log";
/// Called with the name of the event. It fails while there is a file of that name in /run/broken.
const SCRIPT: &str = r#"
data=$(cat)
echo "$1 net=$NETWORK,$IPV6NETWORK subnet=$SUBNET,$IPV6SUBNET ip=$PUBLIC_IP,$PUBLIC_IPV6 data=$data" >> /run/extension-log
while test -e "/run/slow-$1"; do sleep 0.1; done
test ! -e "/run/broken-$1" || { echo "$1 is broken" >&2; exit 1; }
case "$1" in
pre) cat /run/name ;;
add)
    ip route replace "$SUBNET" via "$PUBLIC_IP"
    test -z "$IPV6SUBNET" || ip -6 route replace "$IPV6SUBNET" via "$PUBLIC_IPV6" ;;
remove) ip route del "$SUBNET" ;;
esac
"#;

fn commands() -> Value {
    json!({
        "Type": "extension",
        "PreStartupCommand": "sh /run/extension pre",
        "PostStartupCommand": "sh /run/extension post",
        "SubnetAddCommand": "sh /run/extension add",
        "SubnetRemoveCommand": "sh /run/extension remove",
        "ShutdownCommand": "sh /run/extension shutdown",
    })
}

/// The lab with the script on every node, and no daemon.
fn prepared(builder: flannel_lab::LabBuilder) -> Result<Lab> {
    let lab = builder.backend_json(commands()).no_daemons().start()?;
    for node in lab.nodes() {
        node.write_file("/run/extension", SCRIPT)?;
        node.write_file("/run/name", &name(node.number()))?;
    }
    Ok(lab)
}

/// What a node announces of itself.
fn name(node: u16) -> String {
    format!("<node> & \"{node}\"")
}

fn start(lab: &Lab, node: u16) -> Result<()> {
    lab.node(node).flanneld().start()?;
    lab.node(node).flanneld().wait_ready()
}

/// The lines of an event.
fn ran(node: &Node, event: &str) -> Vec<String> {
    let log = node.read_file(LOG).unwrap_or_default();
    let prefix = format!("{event} ");
    log.lines().filter(|line| line.starts_with(&prefix)).map(str::to_owned).collect()
}

fn wait_for(lab: &Lab, what: &str, is: impl Fn() -> bool) -> Result<()> {
    let log = || lab.node(1).read_file(LOG).unwrap_or_default();
    lab.wait_until(what, LIMIT, || if is() { Ok(()) } else { Err(LabError::Spec(log())) })
}

fn subnet(lab: &Lab, node: u16) -> String {
    lab.node(node).subnet_env().unwrap().subnet.unwrap().trunc().to_string()
}

#[test]
fn defect_51_commands_get_what_they_need_to_know_and_pods_talk() -> Result<()> {
    let lab = prepared(lab(2).ipv6(true))?;
    start(&lab, 1)?;
    start(&lab, 2)?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let subnets = |number: u16| -> String {
        let env = lab.node(number).subnet_env().unwrap();
        format!("{},{}", env.subnet.unwrap().trunc(), env.subnet6.unwrap().trunc())
    };
    assert_eq!(ran(node, "pre"), ["pre net=, subnet=, ip=, data="]);
    let network = node.subnet_env()?.file.ipv6_networks[0];
    let post = format!(
        "post net=10.244.0.0/16,{network} subnet={} ip=192.168.100.1,fd00:100::1 data=",
        subnets(1)
    );
    assert_eq!(ran(node, "post"), [post]);
    let add =
        format!("add net=, subnet={} ip=192.168.100.2,fd00:100::2 data={}", subnets(2), name(2));
    wait_for(&lab, "the peer's command", || ran(node, "add") == [add.clone()])?;
    reach_each_other(&lab, &one, &two)?;

    // Nothing is run again without a reason, and a peer that goes is taken away with the data it had.
    let key = own_key(&lab, 2)?;
    lab.node(2).flanneld().stop()?;
    assert!(lab.etcd()?.delete(&lease_path(&lab, &key))?);
    let remove = add.replacen("add", "remove", 1);
    wait_for(&lab, "the removal", || ran(node, "remove") == [remove.clone()])?;
    assert_eq!((ran(node, "add").len(), ran(node, "post").len()), (1, 1));
    assert_eq!(ran(lab.node(2), "shutdown").len(), 1, "node 2 was stopped");
    assert_eq!(ran(lab.node(2), "remove").len(), 0);
    lab.node(1).flanneld().kill9();
    assert_eq!(ran(node, "shutdown").len(), 0, "killed");
    Ok(())
}

/// The configs that the manual shows.
fn examples() -> Vec<String> {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/extension.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let blocks = manual.split("```json\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_examples_of_the_manual_work() -> Result<()> {
    let examples = examples();
    assert_eq!(examples.len(), 2);
    for config in &examples {
        let lab = lab(2).config_json(config).start()?;
        let (one, two) = connected_pods(&lab)?;
        reach_each_other(&lab, &one, &two)?;
        lab.node(1).flanneld().restart()?;
        reach_each_other(&lab, &one, &two)?;
        let (key, route) = (own_key(&lab, 2)?, format!("route show {}", subnet(&lab, 2)));
        assert!(!lab.node(1).ip(&route)?.is_empty());
        lab.node(2).flanneld().stop()?;
        assert!(lab.etcd()?.delete(&lease_path(&lab, &key))?);
        lab.wait_until("the route to go", LIMIT, || match lab.node(1).ip(&route)? {
            gone if gone.is_empty() => Ok(()),
            there => Err(LabError::Spec(there)),
        })?;
    }
    Ok(())
}

#[test]
fn nodes_of_both_flannels_run_each_others_commands_and_pods_talk() -> Result<()> {
    let lab = prepared(lab(3).node_flanneld(2, go_flanneld()))?;
    for node in 1..=3 {
        start(&lab, node)?;
    }
    for (here, there) in [(1, 2), (2, 1), (2, 3), (3, 2)] {
        let told =
            format!("subnet={}, ip=192.168.100.{there}, data={}", subnet(&lab, there), name(there));
        wait_for(&lab, &format!("node {here} to know node {there}"), || {
            ran(lab.node(here), "add").iter().any(|line| line.contains(&told))
        })?;
    }
    lab.pod_on_every_node()?;
    lab.wait_until("all pods to reach each other", LIMIT, || {
        lab.matrix(Duration::from_secs(1))?.check()
    })?;
    // Whoever ends, the other takes away what led to it.
    for (stays, goes) in [(2, 3), (1, 2)] {
        let (key, gone) = (own_key(&lab, goes)?, format!("subnet={},", subnet(&lab, goes)));
        lab.node(goes).flanneld().stop()?;
        assert!(lab.etcd()?.delete(&lease_path(&lab, &key))?);
        wait_for(&lab, "the removal", || {
            ran(lab.node(stays), "remove").iter().any(|line| line.contains(&gone))
        })?;
    }
    Ok(())
}

#[test]
fn a_node_moves_from_go_to_ours_and_back_with_commands() -> Result<()> {
    let lab = prepared(lab(2).flanneld(go_flanneld()))?;
    start(&lab, 1)?;
    start(&lab, 2)?;
    let (one, two) = connected_pods(&lab)?;
    let before = leases_for_both(&lab)?;
    for (what, binary) in [
        ("from Go to ours", flanneld().to_owned()),
        ("from ours to Go", go_flanneld()),
        ("from Go to ours again", flanneld().to_owned()),
    ] {
        let traffic = both_ways(&lab, &one, &two)?;
        lab.node(1).flanneld().restart_with(&binary)?;
        traffic.flow(&lab)?;
        let reports = traffic.stop();
        measured(format_args!("{what}: {reports}"));
        reports.nothing_is_lost();
        assert_eq!(leases_for_both(&lab)?, before, "{what}");
    }
    Ok(())
}

#[test]
fn what_fails_is_told_and_tried_again() -> Result<()> {
    let lab = prepared(lab(2))?;
    let node = lab.node(1);
    start(&lab, 2)?;
    let not_ready = |part: &str| {
        lab.wait_until(part, LIMIT, || match probe(&lab, 1, "/readyz") {
            Ok(Ok((503, why))) if why.contains(part) => Ok(()),
            other => Err(LabError::Spec(format!("{other:?}"))),
        })
    };
    for event in ["pre", "post"] {
        node.write_file(format!("/run/broken-{event}"), "")?;
    }
    node.flanneld().start()?;
    not_ready("PreStartupCommand: exit status: 1: pre is broken")?;
    node.exec(&["rm", "/run/broken-pre"])?;
    not_ready("PostStartupCommand, for this node: exit status: 1: post is broken")?;
    assert_eq!(ran(node, "add"), [""; 0], "peers wait for it");
    node.exec(&["rm", "/run/broken-post"])?;
    node.flanneld().wait_ready()?;
    connected_pods(&lab).map(drop)
}

#[test]
fn a_network_changes_to_commands_and_back_while_it_runs() -> Result<()> {
    let lab = prepared(lab(2).flag("--allow-commands"))?;
    let vxlan = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}).to_string();
    let extension = json!({"Network": "10.244.0.0/16", "Backend": commands()}).to_string();
    lab.put_config(&vxlan)?;
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    // What is needed beforehand is tried again until it can be had; meanwhile all goes on as it was.
    node.write_file("/run/slow-pre", "")?;
    node.write_file("/run/broken-pre", "")?;
    lab.put_config(&extension)?;
    wait_for(&lab, "the first try", || ran(node, "pre").len() == 1)?;
    put_peers(&lab, 207..=207)?;
    lab.wait_until("a route to the new peer", LIMIT, || {
        match node.ip("route show 10.244.207.0/24") {
            Ok(route) if route.contains("flannel.1") => Ok(()),
            other => Err(LabError::Spec(format!("{other:?}"))),
        }
    })?;
    node.exec(&["rm", "/run/slow-pre"])?;
    wait_for(&lab, "the second try", || ran(node, "pre").len() == 2)?;
    let (status, why) = probe(&lab, 1, "/readyz")?.unwrap();
    assert!(status == 503 && why.contains("PreStartupCommand: exit status: 1"), "{status} {why}");
    assert!(node.ip("link show flannel.1").is_ok());
    node.exec(&["rm", "/run/broken-pre"])?;
    wait_for(&lab, "the commands", || ran(node, "add").len() == 1)?;
    lab.wait_until("the device to go", LIMIT, || match node.ip("link show flannel.1") {
        Ok(there) => Err(LabError::Spec(there)),
        Err(_) => Ok(()),
    })?;
    reach_each_other(&lab, &one, &two)?;
    lab.put_config(&vxlan)?;
    wait_for(&lab, "what is undone", || ran(node, "shutdown").len() == 1)?;
    assert_eq!(ran(node, "remove").len(), 1);
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_command_that_fails_is_among_what_differs_and_is_run_when_a_repair_is_asked_for() -> Result<()>
{
    let lab = prepared(lab(2))?;
    let node = lab.node(1);
    node.write_file("/run/broken-add", "")?;
    node.flanneld().start()?;
    start(&lab, 2)?;
    lab.wait_until("the command to be shown as missing", LIMIT, || {
        let (is_whole, said) = flannelctl(&lab, 1, &["diff"]);
        let shown = said.contains("add is broken") && said.contains(&subnet(&lab, 2));
        if shown && !is_whole { Ok(()) } else { Err(LabError::Spec(said)) }
    })?;
    let before = ran(node, "add").len();
    let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
    assert!(!is_whole && said.contains("commands: ") && said.contains("add is broken"), "{said}");
    assert!(ran(node, "add").len() > before, "it was tried, whatever pauses there are");
    node.exec(&["rm", "/run/broken-add"])?;
    let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
    assert!(is_whole, "{said}");
    let (is_whole, said) = flannelctl(&lab, 1, &["diff"]);
    assert!(is_whole, "{said}");
    // What an operator's commands have done is theirs to know: it is not done again without a reason.
    let runs = ran(node, "add").len();
    let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
    assert!(is_whole && said.contains("compared, all as wanted"), "{said}");
    assert_eq!(ran(node, "add").len(), runs);
    Ok(())
}

/// Waits until node 1 is not ready, and says so.
fn waits_for_the_switch(lab: &Lab) -> Result<()> {
    lab.wait_until("the node to wait", LIMIT, || match probe(lab, 1, "/readyz") {
        Ok(Ok((503, why)))
            if why.contains("--allow-commands") && why.contains("Backend.PreStartupCommand") =>
        {
            Ok(())
        }
        other => Err(LabError::Spec(format!("{other:?}"))),
    })
}

#[test]
fn commands_that_appear_while_a_node_runs_wait_for_its_operator() -> Result<()> {
    let lab = prepared(lab(2))?;
    let vxlan = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}).to_string();
    let extension = json!({"Network": "10.244.0.0/16", "Backend": commands()}).to_string();
    lab.put_config(&vxlan)?;
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    let traffic = both_ways(&lab, &one, &two)?;
    lab.put_config(&extension)?;
    waits_for_the_switch(&lab)?;
    let (_, said) = flannelctl(&lab, 1, &["status"]);
    assert!(said.contains("--allow-commands"), "{said}");
    let reports = traffic.stop();
    reports.nothing_is_lost();
    assert_eq!(lab.node(1).read_file(LOG).unwrap_or_default(), "", "nothing was run");
    assert!(lab.node(1).ip("link show flannel.1").is_ok());
    // Whoever restarts a daemon accepts the config as it is, as with the Go flannel.
    for node in lab.nodes() {
        node.flanneld().restart()?;
        node.flanneld().wait_ready()?;
    }
    reach_each_other(&lab, &one, &two)?;
    assert_eq!(ran(lab.node(1), "pre").len(), 1);
    // Another command waits again; the ones of the start go on.
    let mut other = commands();
    other["SubnetAddCommand"] = json!("touch /run/not-ours");
    let other = json!({"Network": "10.244.0.0/16", "Backend": other}).to_string();
    lab.put_config(&other)?;
    lab.wait_until("the other command to wait", LIMIT, || match probe(&lab, 1, "/readyz") {
        Ok(Ok((503, why))) if why.contains("(Backend.SubnetAddCommand,") => Ok(()),
        other => Err(LabError::Spec(format!("{other:?}"))),
    })?;
    assert!(lab.node(1).read_file("/run/not-ours").is_err());
    reach_each_other(&lab, &one, &two)
}

#[test]
fn commands_from_a_lease_server_wait_for_the_switch_of_the_node() -> Result<()> {
    let lab = prepared(lab(2).lease_server())?;
    lab.node(2).flanneld().add_flag("--allow-commands");
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    // The switch is each node's own: node 1, which serves the leases, has none.
    lab.node(2).flanneld().wait_ready()?;
    waits_for_the_switch(&lab)?;
    assert_eq!(ran(lab.node(2), "pre").len(), 1);
    assert_eq!(lab.node(1).read_file(LOG).unwrap_or_default(), "", "nothing was run");
    lab.node(1).flanneld().add_flag("--allow-commands");
    lab.node(1).flanneld().restart()?;
    lab.node(1).flanneld().wait_ready()?;
    connected_pods(&lab).map(drop)
}
