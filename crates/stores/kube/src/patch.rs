//! Patches of a Node, with only what is different there.

use flannel_lease::{LeaseAttrs, RawJson};
use serde_json::{Map, Value, json};

use crate::annotations::{AnnotationPrefix, Key};
use crate::lease::Overwrites;
use crate::node::{Annotations, NETWORK_UNAVAILABLE};

/// The annotations that announce `attrs`; `None`: that one is not to be there.
pub fn announcement(attrs: &LeaseAttrs, overwrites: &Overwrites) -> [(Key, Option<String>); 7] {
    // As the Go flannel writes it where there is an address; and of a device that is reached in the other family.
    let data = |data: &Option<RawJson>, address: &Option<String>| match data {
        Some(data) => Some(data.as_str().to_owned()),
        None => address.is_some().then(|| "null".to_owned()),
    };
    let public_ip = attrs.public_ip.map(|ip| overwrites.v4.unwrap_or(ip).to_string());
    let public_ipv6 = attrs.public_ipv6.map(|ip| overwrites.v6.unwrap_or(ip).to_string());
    [
        (Key::SubnetManager, Some("true".to_owned())),
        (Key::BackendType, Some(attrs.backend_type.to_string())),
        (Key::BackendData, data(&attrs.backend_data, &public_ip)),
        (Key::BackendV6Data, data(&attrs.backend_v6_data, &public_ipv6)),
        (Key::PublicIp, public_ip),
        (Key::PublicIpv6, public_ipv6),
        (Key::ProbePort, attrs.probe_port.map(|port| port.to_string())),
    ]
}

/// A merge patch that makes the Node announce `attrs`; `None` when it does so already.
pub fn announce(
    prefix: &AnnotationPrefix,
    now: &Annotations<'_>,
    attrs: &LeaseAttrs,
    overwrites: &Overwrites,
) -> Option<String> {
    let mut changed = Map::new();
    for (key, wanted) in announcement(attrs, overwrites) {
        if now.get(key) != wanted.as_deref() {
            changed.insert(prefix.name(key), wanted.map_or(Value::Null, Value::String));
        }
    }
    if changed.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"annotations": changed}}).to_string())
}

/// A strategic merge patch: says that the node's network works. `now` is a time as Kubernetes writes it.
pub fn network_is_available(now: &str) -> String {
    json!({"status": {"conditions": [{
        "type": NETWORK_UNAVAILABLE,
        "status": "False",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "FlannelIsUp",
        "message": "Flannel is running on this node",
    }]}})
    .to_string()
}
