//! Beside the Go flannel on the same API server, and in its place.

use flannel_kube::testing::NodeSpec;
use flannel_lab::Result;
use serde_json::{Map, Value, json};

use crate::support::{Kube, flanneld, go_flanneld, key, kube, name};

fn talk(kube: Kube) -> Result<()> {
    let (one, two) = kube.connected_pods(1, 2)?;
    // Both directions of a restart, and of a change of implementation.
    for (node, program) in
        [(1, go_flanneld()), (2, flanneld().to_owned()), (1, flanneld().to_owned())]
    {
        let before = as_go_sees_it(&kube, node);
        kube.lab.node(node).flanneld().restart_with(&program)?;
        kube.reach(&one, &two)?;
        assert_eq!(as_go_sees_it(&kube, node), before, "node {node}: the same to others");
    }
    Ok(())
}

/// What is written on a Node, without what the Go flannel passes over.
fn as_go_sees_it(kube: &Kube, node: u16) -> Map<String, Value> {
    let mut annotations = kube.server.annotations(&name(node));
    annotations.remove(&key("probe-port"));
    annotations
}

#[test]
fn pods_of_both_talk_over_vxlan() -> Result<()> {
    talk(kube(2).node_flanneld(2, go_flanneld()).start()?)
}

#[test]
fn pods_of_both_talk_over_a_dual_stack_of_vxlan() -> Result<()> {
    talk(kube(2).dual().node_flanneld(2, go_flanneld()).start()?)
}

#[test]
fn pods_of_both_talk_over_host_gw() -> Result<()> {
    talk(kube(2).backend(json!({"Type": "host-gw"})).node_flanneld(2, go_flanneld()).start()?)
}

/// A Node without any annotation makes it write into a map that is not there.
#[test]
fn a_node_without_annotations_is_no_reason_to_crash() -> Result<()> {
    let kube = kube(1).empty()?;
    kube.server.create_node(&NodeSpec::new(&name(1)).cidr("10.244.1.0/24"));
    assert!(kube.server.annotations(&name(1)).is_empty());
    kube.lab.start_daemons()?;
    assert_eq!(kube.annotation(1, "kube-subnet-manager").as_deref(), Some("true"));
    assert!(kube.server.annotation(&name(1), &key("backend-type")).is_some());
    Ok(())
}
