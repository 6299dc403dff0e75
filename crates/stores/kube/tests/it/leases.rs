//! From a Node to a lease.

use flannel_kube::annotations::Key;
use flannel_kube::lease::{in_families, lease_of, overwrites, subnet};
use flannel_lease::Lease;

use crate::support::{DUAL, V4, V6, annotate, dual, node};

fn member(node: &flannel_kube::node::NodeView<'_>) -> Lease {
    match lease_of(node) {
        Ok(Some(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_is_flannels_only_when_it_says_exactly_true() {
    for value in ["", "True", "false", "1", "true "] {
        let other = annotate(dual("a", 1), &[(Key::SubnetManager, value)]);
        assert_eq!(lease_of(&other), Ok(None), "{value:?}");
    }
    assert_eq!(lease_of(&node("a", &["10.244.1.0/24"])), Ok(None));
    assert!(matches!(lease_of(&dual("a", 1)), Ok(Some(_))));
}

#[test]
fn the_networks_of_a_node_count_in_either_order() {
    let one = subnet(&node("a", &["10.244.1.0/24", "fd00:244:0:1::/64"])).unwrap().unwrap();
    let other = subnet(&node("a", &["fd00:244:0:1::/64", "10.244.1.0/24"])).unwrap().unwrap();
    assert_eq!(one, other);
    assert_eq!(one.to_string(), "10.244.1.0-24&fd00:244:0:1::-64");
}

#[test]
fn a_node_that_has_only_the_older_field_has_a_subnet_too() {
    let mut old = node("a", &["10.244.1.0/24"]);
    old.pod_cidrs.clear();
    assert_eq!(subnet(&old).unwrap().unwrap().to_string(), "10.244.1.0-24");
    assert_eq!(subnet(&node("a", &[])), Ok(None));
    assert!(subnet(&node("a", &["10.244.1.0"])).is_err());
}

#[test]
fn a_lease_has_the_families_that_are_used_here_and_the_node_has() {
    let lease = member(&dual("a", 1));
    assert_eq!(in_families(lease.clone(), DUAL).unwrap(), lease);

    let v4 = in_families(lease.clone(), V4).unwrap();
    assert_eq!(v4.subnet.to_string(), "10.244.1.0-24");
    assert_eq!((v4.attrs.public_ipv6, &v4.attrs.backend_v6_data), (None, &None));

    let v6 = in_families(lease.clone(), V6).unwrap();
    assert_eq!(v6.subnet.to_string(), "fd00:244:0:1::-64");
    assert_eq!((v6.attrs.public_ip, &v6.attrs.backend_data), (None, &None));
}

/// The Go flannel leaves such a node out altogether.
#[test]
fn a_node_of_one_family_is_reached_by_that_one_where_both_are_used() {
    let mut only_v4 = dual("a", 1);
    only_v4.pod_cidrs.truncate(1);
    let lease = in_families(member(&only_v4), DUAL).unwrap();
    assert_eq!(lease.subnet.to_string(), "10.244.1.0-24");
    assert_eq!(in_families(member(&only_v4), V6), None);

    let silent = annotate(dual("a", 1), &[(Key::PublicIp, ""), (Key::PublicIpv6, "")]);
    assert_eq!(in_families(member(&silent), DUAL), None, "nobody can send to it");
}

#[test]
fn a_node_with_one_address_has_it_in_every_network_for_packets_of_both_families() {
    let over_v4 = member(&annotate(dual("a", 1), &[(Key::PublicIpv6, "")]));
    for (families, subnet) in [
        (DUAL, "10.244.1.0-24&fd00:244:0:1::-64"),
        (V6, "fd00:244:0:1::-64"),
        (V4, "10.244.1.0-24"),
    ] {
        let lease = in_families(over_v4.clone(), families).unwrap();
        assert_eq!(lease.subnet.to_string(), subnet);
        assert_eq!(lease.attrs.public_ip, over_v4.attrs.public_ip);
        assert!(lease.attrs.backend_data.is_some());
    }
    let over_v6 = member(&annotate(dual("a", 1), &[(Key::PublicIp, "")]));
    let lease = in_families(over_v6.clone(), V4).unwrap();
    assert_eq!(lease.subnet.to_string(), "10.244.1.0-24");
    assert_eq!(lease.attrs.public_ipv6, over_v6.attrs.public_ipv6);
    assert!(lease.attrs.backend_v6_data.is_some());
}

#[test]
fn what_cannot_be_read_of_a_node_is_said() {
    let broken = annotate(dual("a", 1), &[(Key::BackendData, "{")]);
    assert!(matches!(lease_of(&broken), Err(why) if why.contains("backend-data")));
    let nowhere = annotate(node("a", &[]), &[(Key::SubnetManager, "true")]);
    assert!(matches!(lease_of(&nowhere), Err(why) if why.contains("podCIDR")));
    let large = format!("\"{}\"", "ü".repeat(100_000));
    for (key, text, said) in [
        (Key::BackendData, large.as_str(), "more than 8192 bytes"),
        (Key::BackendV6Data, large.as_str(), "more than 8192 bytes"),
        (Key::BackendType, large.as_str(), "may have 64"),
    ] {
        let node = annotate(dual("a", 1), &[(key, text)]);
        let kept = node.annotations.get(key).map_or(0, str::len);
        assert!(kept < 9_000, "{kept} bytes of it are kept");
        let Err(why) = lease_of(&node) else { panic!("{key:?}") };
        assert!(why.contains(said) && why.len() < 300, "{why}");
    }
    let zero = annotate(dual("a", 1), &[(Key::PublicIp, "0.0.0.0"), (Key::PublicIpv6, "")]);
    assert!(matches!(lease_of(&zero), Err(why) if why.contains("0.0.0.0")));
    // As the Go flannel writes it for backends that have none, and for an extension without a command.
    for none in ["null", ""] {
        let lease = member(&annotate(dual("a", 1), &[(Key::BackendData, none)]));
        assert_eq!(lease.attrs.backend_data, None);
    }
}

#[test]
fn an_address_that_an_operator_has_misspelt_is_named() {
    let node = annotate(node("a", &[]), &[(Key::PublicIpOverwrite, "192.0.2")]);
    let error = overwrites(&node.annotations).unwrap_err();
    assert!(error.contains("public-ip-overwrite") && error.contains("192.0.2"), "{error}");
    for (key, ip) in [(Key::PublicIpOverwrite, "0.0.0.0"), (Key::PublicIpv6Overwrite, "ff02::1")] {
        let node = annotate(dual("a", 1), &[(key, ip)]);
        let error = overwrites(&node.annotations).unwrap_err();
        assert!(error.contains(key.suffix()) && error.contains(ip), "{error}");
    }
}
