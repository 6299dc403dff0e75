//! What is written into this node's own Node, and only what is different there.

use flannel_lease::{LeaseAttrs, RawJson};
use serde_json::{Map, Value, json};

use crate::annotations::{AnnotationPrefix, Key};
use crate::lease::Overwrites;
use crate::message::NETWORK_UNAVAILABLE;
use crate::node::Annotations;

/// The annotations that announce `attrs`; `None`: that one is not to be there.
pub fn announcement(attrs: &LeaseAttrs, overwrites: &Overwrites) -> [(Key, Option<String>); 6] {
    let data = |data: &Option<RawJson>| data.as_ref().map_or("null", RawJson::as_str).to_owned();
    let public_ip = attrs.public_ip.map(|ip| overwrites.v4.unwrap_or(ip).to_string());
    let public_ipv6 = attrs.public_ipv6.map(|ip| overwrites.v6.unwrap_or(ip).to_string());
    [
        (Key::SubnetManager, Some("true".to_owned())),
        (Key::BackendType, Some(attrs.backend_type.clone())),
        (Key::BackendData, public_ip.is_some().then(|| data(&attrs.backend_data))),
        (Key::BackendV6Data, public_ipv6.is_some().then(|| data(&attrs.backend_v6_data))),
        (Key::PublicIp, public_ip),
        (Key::PublicIpv6, public_ipv6),
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
