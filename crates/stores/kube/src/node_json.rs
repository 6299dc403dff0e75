//! A Node in JSON.

use std::collections::BTreeMap;

use flannel_lease::machine_hash;
use serde::Deserialize;

use crate::annotations::AnnotationPrefix;
use crate::json::{self, Text, seconds};
use crate::message::{INITIAL_EVENTS_END, Result};
use crate::node::{NETWORK_UNAVAILABLE, NodeView};

pub(crate) fn read<'a>(object: &'a [u8], prefix: &AnnotationPrefix) -> Result<NodeView<'a>> {
    let Node { metadata, spec, status } = json::read(object)?;
    let is_ours = |condition: &Condition<'_>| condition.kind.0 == NETWORK_UNAVAILABLE;
    let condition = status.conditions.into_iter().flatten().find(is_ours);
    let mut view = NodeView {
        name: metadata.name.0,
        uid: metadata.uid.0,
        resource_version: metadata.resource_version.0,
        created: seconds(&metadata.created.0),
        pod_cidr: spec.pod_cidr.0,
        pod_cidrs: spec.pod_cidrs.into_iter().flatten().map(|cidr| cidr.0).collect(),
        machine: machine_hash(&status.node_info.machine_id.0),
        network_unavailable: condition.map(|condition| condition.status.0),
        ..NodeView::default()
    };
    for (name, value) in metadata.annotations.into_iter().flatten() {
        match prefix.key(&name.0) {
            Some(key) => view.annotations.set(key, value.0),
            None if name.0 == INITIAL_EVENTS_END => view.ends_initial_events = value.0 == "true",
            None => {}
        }
    }
    Ok(view)
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Node<'a> {
    metadata: Metadata<'a>,
    spec: Spec<'a>,
    status: NodeStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Metadata<'a> {
    name: Text<'a>,
    uid: Text<'a>,
    #[serde(rename = "resourceVersion")]
    resource_version: Text<'a>,
    #[serde(rename = "creationTimestamp")]
    created: Text<'a>,
    annotations: Option<BTreeMap<Text<'a>, Text<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Spec<'a> {
    #[serde(rename = "podCIDR")]
    pod_cidr: Text<'a>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<Text<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct NodeStatus<'a> {
    conditions: Option<Vec<Condition<'a>>>,
    #[serde(rename = "nodeInfo")]
    node_info: NodeInfo<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct NodeInfo<'a> {
    #[serde(rename = "machineID")]
    machine_id: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Condition<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    status: Text<'a>,
}
