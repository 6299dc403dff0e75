//! What is written into a Node.

use std::net::Ipv4Addr;

use flannel_kube::annotations::{AnnotationPrefix, Key};
use flannel_kube::lease::attrs;
use flannel_kube::node::Annotations;
use flannel_kube::patch;
use flannel_store::PublicAddresses;
use serde_json::{Value, json};

use crate::support::{annotate, dual, node, prefix};

fn announce(
    now: &Annotations<'_>,
    of: &Annotations<'_>,
    overwrites: &PublicAddresses,
) -> Option<Value> {
    let patch = patch::announce(&prefix(), now, &attrs(of).unwrap(), overwrites)?;
    Some(serde_json::from_str::<Value>(&patch).unwrap()["metadata"]["annotations"].clone())
}

#[test]
fn a_node_without_annotations_gets_all_of_them() {
    let wanted = dual("a", 1).annotations;
    let patch =
        announce(&node("a", &[]).annotations, &wanted, &PublicAddresses::default()).unwrap();
    let name = |suffix: &str| format!("flannel.alpha.coreos.com/{suffix}");
    let expected = json!({
        name("kube-subnet-manager"): "true",
        name("backend-type"): "vxlan",
        name("backend-data"): r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#,
        name("backend-v6-data"): r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:06"}"#,
        name("public-ip"): "192.0.2.1",
        name("public-ipv6"): "2001:db8::1",
    });
    assert_eq!(patch, expected);
}

#[test]
fn a_patch_carries_only_what_changes() {
    let wanted = dual("a", 1).annotations;
    assert_eq!(announce(&wanted, &wanted, &PublicAddresses::default()), None);
    let moved = annotate(dual("a", 1), &[(Key::PublicIpv6, "2001:db8::9")]).annotations;
    let patch = announce(&moved, &wanted, &PublicAddresses::default()).unwrap();
    assert_eq!(patch, json!({"flannel.alpha.coreos.com/public-ipv6": "2001:db8::1"}));
}

#[test]
fn what_was_announced_of_a_family_that_is_off_now_is_removed() {
    let both = dual("a", 1).annotations;
    let mut v4 = attrs(&both).unwrap();
    (v4.public_ipv6, v4.backend_v6_data) = (None, None);
    let patch = patch::announce(&prefix(), &both, &v4, &PublicAddresses::default()).unwrap();
    let patch: Value = serde_json::from_str(&patch).unwrap();
    let expected = json!({
        "flannel.alpha.coreos.com/public-ipv6": null,
        "flannel.alpha.coreos.com/backend-v6-data": null,
    });
    assert_eq!(patch["metadata"]["annotations"], expected);
}

#[test]
fn a_device_that_is_reached_in_the_other_family_is_announced() {
    let mut over_v4 = attrs(&dual("a", 1).annotations).unwrap();
    over_v4.public_ipv6 = None;
    let patch = patch::announce(
        &prefix(),
        &node("a", &[]).annotations,
        &over_v4,
        &PublicAddresses::default(),
    );
    let patch: Value = serde_json::from_str(&patch.unwrap()).unwrap();
    let written = &patch["metadata"]["annotations"];
    let name = |suffix: &str| format!("flannel.alpha.coreos.com/{suffix}");
    assert_eq!(written.get(name("public-ipv6")), None);
    assert_eq!(written[name("backend-v6-data")], r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:06"}"#);
}

#[test]
fn what_an_operator_overwrites_is_written_instead_of_our_address() {
    let wanted = dual("a", 1).annotations;
    let overwrites = PublicAddresses { v4: Some(Ipv4Addr::new(198, 51, 100, 7)), v6: None };
    let patch = announce(&wanted, &wanted, &overwrites).unwrap();
    assert_eq!(patch, json!({"flannel.alpha.coreos.com/public-ip": "198.51.100.7"}));
}

#[test]
fn a_backend_without_data_writes_null_as_the_go_flannel_does() {
    let mut host_gw = attrs(&dual("a", 1).annotations).unwrap();
    (host_gw.backend_data, host_gw.backend_v6_data) = (None, None);
    let patch =
        patch::announce(&prefix(), &Annotations::default(), &host_gw, &PublicAddresses::default());
    let patch: Value = serde_json::from_str(&patch.unwrap()).unwrap();
    let written = &patch["metadata"]["annotations"];
    assert_eq!(written["flannel.alpha.coreos.com/backend-data"], "null");
    assert_eq!(written["flannel.alpha.coreos.com/backend-v6-data"], "null");
}

/// The Go flannel looks for the stored MAC under a name that it never writes.
#[test]
fn what_was_announced_is_found_again_under_a_prefix_with_a_slash() {
    let prefix = AnnotationPrefix::parse("example.com/net").unwrap();
    let wanted = attrs(&dual("a", 1).annotations).unwrap();
    let patch =
        patch::announce(&prefix, &Annotations::default(), &wanted, &PublicAddresses::default());
    let patch: Value = serde_json::from_str(&patch.unwrap()).unwrap();
    let mut found = Annotations::default();
    for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        let key = prefix.key(name).unwrap_or_else(|| panic!("{name} is not one of ours"));
        found.set(key, value.as_str().unwrap().to_owned().into());
    }
    assert_eq!(attrs(&found).unwrap(), wanted);
}

#[test]
fn the_condition_is_the_one_that_the_go_flannel_writes() {
    let patch: Value =
        serde_json::from_str(&patch::network_is_available("2026-11-16T14:00:00Z")).unwrap();
    let expected = json!({"status": {"conditions": [{
        "type": "NetworkUnavailable", "status": "False",
        "lastHeartbeatTime": "2026-11-16T14:00:00Z", "lastTransitionTime": "2026-11-16T14:00:00Z",
        "reason": "FlannelIsUp", "message": "Flannel is running on this node",
    }]}});
    assert_eq!(patch, expected);
}
