//! What changes of Nodes mean for the leases.

use flannel_kube::annotations::Key;
use flannel_kube::lease::attrs;
use flannel_kube::node::NodeView;
use flannel_kube::table::NodeTable;
use flannel_store::{AnnouncedSince, LeaseConflict, StoreEvent, StoredLease};

use crate::support::{DUAL, V4, V6, annotate, dual, node};

fn table(nodes: &[NodeView<'_>]) -> NodeTable {
    let mut table = NodeTable::new("own", DUAL);
    table.begin_list();
    nodes.iter().for_each(|node| table.listed(node));
    table.end_list();
    table
}

/// In few words.
fn said(changes: impl IntoIterator<Item = StoreEvent>) -> Vec<String> {
    let say = |change| match change {
        StoreEvent::Put(StoredLease { lease, .. }) => {
            let (v4, v6) = (lease.attrs.public_ip, lease.attrs.public_ipv6);
            format!("{} at {v4:?} {v6:?}", lease.subnet)
        }
        StoreEvent::Gone(subnet) => format!("{subnet} gone"),
        other => panic!("{other:?}"),
    };
    changes.into_iter().map(say).collect()
}

/// Whoever copies what another Node announces is told from it by this, and its kubelet cannot choose it.
#[test]
fn a_lease_bears_the_age_of_its_node() {
    let at = |seconds| std::num::NonZeroU64::new(seconds);
    let mut table = table(&[NodeView { created: at(50), ..dual("a", 1) }, dual("b", 2)]);
    let created = |table: &NodeTable| -> Vec<u64> {
        table.leases().iter().map(|stored| stored.since.map_or(0, AnnouncedSince::number)).collect()
    };
    assert_eq!(created(&table), [50, 0]);
    let changes = table.put(&NodeView { created: at(70), ..dual("c", 3) });
    let [StoreEvent::Put(stored)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(stored.since, AnnouncedSince::about(70));
    assert_eq!(created(&table), [50, 0, 70]);
}

#[test]
fn a_heartbeat_changes_nothing() {
    let mut table = table(&[dual("a", 1)]);
    let mut beat = dual("a", 1);
    beat.resource_version = "77".into();
    beat.network_unavailable = Some("False".into());
    assert_eq!(table.put(&beat), []);
}

#[test]
fn another_machine_id_is_news_and_stands_in_the_lease() {
    let mut table = table(&[dual("a", 1)]);
    let machine = std::num::NonZeroU64::new(7);
    let changes = table.put(&NodeView { machine, ..dual("a", 1) });
    let [StoreEvent::Put(stored)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(stored.lease.attrs.machine, machine);
    assert_eq!(table.leases()[0].lease.attrs.machine, machine);
}

/// The Go flannel takes "unchanged in one family" for unchanged.
#[test]
fn a_change_of_one_family_in_a_dual_stack_is_a_change() {
    for (key, value) in [
        (Key::PublicIp, "198.51.100.1"),
        (Key::PublicIpv6, "2001:db8:1::1"),
        (Key::BackendData, r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}"#),
        (Key::BackendV6Data, r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}"#),
        (Key::BackendType, "host-gw"),
    ] {
        let mut table = table(&[dual("a", 1)]);
        let changed = annotate(dual("a", 1), &[(key, value)]);
        let changes = table.put(&changed);
        assert!(matches!(changes.as_slice(), [StoreEvent::Put(_)]), "{key:?}: {changes:?}");
    }
}

/// The Go flannel does not look at the podCIDR of a Node that it knows.
#[test]
fn a_pod_cidr_that_comes_later_or_changes_is_followed() {
    let mut late = dual("a", 1);
    (late.pod_cidr, late.pod_cidrs) = ("".into(), Vec::new());
    let mut table = table(&[late]);
    assert_eq!(said(table.put(&dual("a", 1))).len(), 1);
    let mut other = dual("a", 1);
    other.pod_cidrs = vec!["10.244.9.0/24".into()];
    assert_eq!(
        said(table.put(&other)),
        [
            "10.244.1.0-24&fd00:244:0:1::-64 gone",
            "10.244.9.0-24 at Some(192.0.2.1) Some(2001:db8::1)"
        ]
        .map(|text| text.replace(" Some(2001:db8::1)", " None"))
    );
}

/// The Go flannel goes on sending to it.
#[test]
fn a_node_whose_annotations_are_taken_away_is_gone() {
    let mut table = table(&[dual("a", 1)]);
    let bare = node("a", &["10.244.1.0/24", "fd00:244:0:1::/64"]);
    assert_eq!(said(table.put(&bare)), ["10.244.1.0-24&fd00:244:0:1::-64 gone"]);
    assert_eq!(table.put(&bare), []);
    assert_eq!(said(table.put(&dual("a", 1))).len(), 1);
}

#[test]
fn a_node_that_is_deleted_is_gone_and_one_that_is_made_again_is_back() {
    let mut table = table(&[dual("a", 1)]);
    assert_eq!(said(table.deleted("a")), ["10.244.1.0-24&fd00:244:0:1::-64 gone"]);
    assert_eq!(table.deleted("a"), None);
    assert_eq!(said(table.put(&dual("a", 1))).len(), 1);
}

#[test]
fn a_node_without_annotations_is_nobody() {
    let mut table = table(&[node("a", &["10.244.1.0/24"])]);
    assert!(table.leases().is_empty());
    assert_eq!(table.put(&node("b", &[])), []);
    assert!(table.is_empty());
}

#[test]
fn a_node_that_announces_no_address_is_named_with_the_reason_until_it_does() {
    let mut table = table(&[dual("a", 1), dual("b", 2)]);
    let unusable = |table: &NodeTable| table.findings().unusable;
    assert!(unusable(&table).is_empty());
    let nowhere = [(Key::PublicIp, "0.0.0.0"), (Key::PublicIpv6, "::")];
    assert_eq!(said(table.put(&annotate(dual("b", 2), &nowhere))).len(), 1, "it is gone");
    let why = &unusable(&table)["b"];
    assert!(why.contains("public-ip is \"0.0.0.0\", which is no address of a node"), "{why}");
    table.put(&dual("b", 2));
    assert!(unusable(&table).is_empty());
    table.put(&annotate(dual("b", 2), &nowhere));
    table.deleted("b");
    assert!(unusable(&table).is_empty());
}

#[test]
fn what_is_missing_from_a_new_list_is_gone() {
    let mut table = table(&[dual("a", 1), dual("b", 2)]);
    table.begin_list();
    table.listed(&dual("b", 2));
    table.end_list();
    let leases = table.leases();
    assert_eq!(leases.len(), 1);
    assert_eq!(leases[0].lease.subnet.to_string(), "10.244.2.0-24&fd00:244:0:2::-64");
}

/// Whoever has it by name first; and when that one goes, the other.
#[test]
fn two_nodes_with_one_subnet_take_turns_and_not_at_random() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut table = table(&[]);
        let twin = |name: &str, address: &str| annotate(dual(name, 1), &[(Key::PublicIp, address)]);
        for name in order {
            let address = if name == "a" { "192.0.2.10" } else { "192.0.2.11" };
            table.put(&twin(name, address));
        }
        let leases = table.leases();
        assert_eq!(leases.len(), 1);
        assert_eq!(leases[0].lease.attrs.public_ip.unwrap().to_string(), "192.0.2.10");
        // And it is told who gets nothing.
        let (holder, others) = ("a".into(), vec!["b".into()]);
        let conflict = LeaseConflict { subnet: leases[0].lease.subnet, holder, others };
        assert_eq!(table.findings().conflicts, [conflict]);
        let changes = said(table.deleted("a"));
        assert!(changes[0].contains("at Some(192.0.2.11)"), "{changes:?}");
        assert_eq!(table.findings().conflicts, []);
        assert_eq!(said(table.deleted("b")), ["10.244.1.0-24&fd00:244:0:1::-64 gone"]);
    }
}

#[test]
fn another_choice_of_families_shows_other_leases_of_the_same_nodes() {
    let mut table = table(&[dual("a", 1)]);
    for (families, subnet) in [(V4, "10.244.1.0-24"), (V6, "fd00:244:0:1::-64")] {
        assert!(table.set_families(families));
        assert_eq!(table.leases()[0].lease.subnet.to_string(), subnet);
    }
    assert!(!table.set_families(V6));
}

#[test]
fn our_own_lease_is_what_we_announced_whatever_somebody_put_into_our_node() {
    let mut table = table(&[dual("own", 1)]);
    let announced = attrs(&dual("own", 7).annotations).unwrap();
    table.announce(announced.clone());
    assert_eq!(table.leases()[0].lease.attrs, announced);
    assert_eq!(table.overwritten_attrs(), Some(&announced), "nobody has written it yet");
    let is_ours = |changes: Vec<StoreEvent>| {
        let [StoreEvent::Put(stored)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(stored.lease.attrs, announced);
    };
    let mut right = dual("own", 7);
    right.pod_cidrs = dual("own", 1).pod_cidrs;
    is_ours(table.put(&right));
    assert_eq!(table.overwritten_attrs(), None);

    let overwritten = annotate(
        right.clone(),
        &[(Key::PublicIp, "198.51.100.7"), (Key::PublicIpOverwrite, "198.51.100.7")],
    );
    is_ours(table.put(&overwritten));
    assert_eq!(table.overwritten_attrs(), None);

    let meddled = annotate(overwritten.clone(), &[(Key::PublicIp, "198.51.100.8")]);
    is_ours(table.put(&meddled));
    assert!(table.overwritten_attrs().is_some());

    let another = annotate(overwritten, &[(Key::PublicIpOverwrite, "198.51.100.9")]);
    is_ours(table.put(&another));
    assert!(table.overwritten_attrs().is_some(), "the operator wants another address");

    let bare = node("own", &["10.244.1.0/24", "fd00:244:0:1::/64"]);
    is_ours(table.put(&bare));
    assert!(table.overwritten_attrs().is_some());
}
