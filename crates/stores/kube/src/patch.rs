//! Patches of a Node, with only what is different there.

use std::collections::BTreeMap;

use flannel_lease::{LeaseAttrs, RawJson};
use flannel_store::PublicAddresses;
use serde_json::json;

use crate::annotations::{AnnotationPrefix, Key};
use crate::node::{Annotations, NETWORK_UNAVAILABLE};

/// The annotations that announce `attrs`; `None`: that one is not to be there.
pub fn announcement(
    attrs: &LeaseAttrs,
    overwrites: &PublicAddresses,
) -> [(Key, Option<String>); 7] {
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

pub(crate) fn annotations(
    prefix: &AnnotationPrefix,
    changes: impl IntoIterator<Item = (Key, Option<String>)>,
) -> String {
    let changes: BTreeMap<String, Option<String>> =
        changes.into_iter().map(|(key, text)| (prefix.name(key), text)).collect();
    json!({"metadata": {"annotations": changes}}).to_string()
}

/// A merge patch that makes the Node announce `attrs`; `None` when it does so already.
pub fn announce(
    prefix: &AnnotationPrefix,
    now: &Annotations<'_>,
    attrs: &LeaseAttrs,
    overwrites: &PublicAddresses,
) -> Option<String> {
    let is_new = |(key, wanted): &(Key, Option<String>)| now.get(*key) != wanted.as_deref();
    let mut changes = announcement(attrs, overwrites).into_iter().filter(is_new).peekable();
    changes.peek()?;
    Some(annotations(prefix, changes))
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
