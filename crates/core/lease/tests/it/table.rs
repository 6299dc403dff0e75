//! The lease table: its changes, applied in order, always give what the table shows.

use std::collections::BTreeMap;

use flannel_lease::{Change, Lease, LeaseAttrs, LeaseTable, Subnet};
use proptest::prelude::*;

use crate::support::{cases, lease, subnet};

const OWN: &str = "10.5.1.0-24";
const PEER: &str = "10.5.2.0-24";
const OTHER: &str = "10.5.3.0-24";

fn table_with_own() -> LeaseTable {
    let mut table = LeaseTable::new();
    assert_eq!(table.set_own(Some(subnet(OWN))), []);
    table
}

fn shown(table: &LeaseTable) -> Vec<String> {
    table.iter().map(|(subnet, _)| subnet.to_string()).collect()
}

#[test]
fn a_lease_is_new_then_changed_then_gone() {
    let mut table = table_with_own();
    let peer = lease(PEER, "192.168.0.2");
    assert_eq!(table.put(peer.clone()), Some(Change::New(peer.clone())));
    let moved = lease(PEER, "192.168.0.3");
    assert_eq!(table.put(moved.clone()), Some(Change::Changed(moved.clone())));
    assert_eq!(table.get(&moved.subnet), Some(&moved.attrs));
    assert_eq!((table.len(), table.is_empty()), (1, false));
    assert_eq!(table.remove(&peer.subnet), Some(Change::Gone(peer.subnet)));
    assert_eq!((table.len(), table.is_empty()), (0, true));
    assert_eq!(table.remove(&peer.subnet), None, "nobody knew it");
}

#[test]
fn a_renewal_is_no_change() {
    let mut table = table_with_own();
    table.put(lease(PEER, "192.168.0.2"));
    assert_eq!(table.put(lease(PEER, "192.168.0.2")), None);
}

#[test]
fn a_snapshot_reports_what_differs_removals_first() {
    let mut table = table_with_own();
    table.put(lease(PEER, "192.168.0.2"));
    table.put(lease("10.5.4.0-24", "192.168.0.4"));
    assert_eq!(
        table.snapshot(vec![lease(OTHER, "192.168.0.3"), lease("10.5.4.0-24", "192.168.0.4")]),
        [Change::Gone(subnet(PEER)), Change::New(lease(OTHER, "192.168.0.3"))]
    );
    assert_eq!(shown(&table), [OTHER, "10.5.4.0-24"]);
}

#[test]
fn defect_4_a_snapshot_reports_changed_attributes() {
    let mut table = table_with_own();
    table.snapshot(vec![lease(PEER, "192.168.0.2"), lease(OTHER, "192.168.0.3")]);
    assert_eq!(
        table.snapshot(vec![lease(PEER, "192.168.0.99"), lease(OTHER, "192.168.0.3")]),
        [Change::Changed(lease(PEER, "192.168.0.99"))]
    );
}

#[test]
fn defect_4_snapshots_never_report_the_own_lease() {
    let mut table = table_with_own();
    let leases = || vec![lease(OWN, "192.168.0.1"), lease(PEER, "192.168.0.2")];
    assert_eq!(table.snapshot(leases()), [Change::New(lease(PEER, "192.168.0.2"))]);
    assert_eq!(table.snapshot(leases()), []);
    assert_eq!(table.snapshot(vec![lease(PEER, "192.168.0.2")]), [], "not even that it vanished");
}

#[test]
fn the_own_lease_is_neither_shown_nor_reported() {
    let mut table = table_with_own();
    assert_eq!(table.put(lease(OWN, "192.168.0.1")), None);
    assert_eq!(table.put(lease(OWN, "192.168.0.9")), None);
    assert_eq!(table.get(&subnet(OWN)), None);
    assert_eq!((shown(&table), table.len(), table.own()), (vec![], 0, Some(subnet(OWN))));
    assert_eq!(table.remove(&subnet(OWN)), None);
}

#[test]
fn a_lease_that_becomes_our_own_leaves_the_table() {
    let mut table = LeaseTable::new();
    table.put(lease(OWN, "192.168.0.1"));
    assert_eq!(table.set_own(Some(subnet(OWN))), [Change::Gone(subnet(OWN))]);
    assert_eq!(table.set_own(Some(subnet(OWN))), [], "nothing new");
}

#[test]
fn whoever_took_our_former_subnet_appears_when_we_move() {
    let mut table = table_with_own();
    table.put(lease(OWN, "192.168.0.77"));
    table.put(lease(PEER, "192.168.0.1"));
    assert_eq!(
        table.set_own(Some(subnet(PEER))),
        [Change::Gone(subnet(PEER)), Change::New(lease(OWN, "192.168.0.77"))]
    );
    assert_eq!(shown(&table), [OWN]);
}

#[test]
fn defect_16_a_dual_stack_lease_is_not_the_ipv4_lease_it_begins_like() {
    let mut table = table_with_own();
    let dual = "10.5.1.0-24&fd00:1::-64";
    assert_eq!(
        table.put(lease(dual, "192.168.0.2")),
        Some(Change::New(lease(dual, "192.168.0.2")))
    );
    assert_eq!(table.remove(&subnet(OWN)), None);
    assert_eq!(shown(&table), [dual]);
}

#[test]
fn of_two_leases_for_one_subnet_in_a_snapshot_the_last_counts() {
    let mut table = table_with_own();
    let changes = table.snapshot(vec![lease(PEER, "192.168.0.2"), lease(PEER, "192.168.0.3")]);
    assert_eq!(changes, [Change::New(lease(PEER, "192.168.0.3"))]);
}

#[test]
fn defect_5_sixty_thousand_peers_find_room() {
    let keys = (0..60_000u32).map(|n| format!("10.{}.{}.0-24", n / 256, n % 256));
    let leases: Vec<Lease> = keys.map(|key| lease(&key, "192.168.0.2")).collect();
    let mut table = table_with_own();
    let put = leases.iter().filter_map(|lease| table.put(lease.clone())).count();
    assert_eq!(put, 59_999, "all but our own");
    assert_eq!(table.snapshot(leases), []);
}

#[derive(Clone, Debug)]
enum Step {
    Own(Option<Subnet>),
    Snapshot(Vec<Lease>),
    Put(Lease),
    Remove(Subnet),
}

/// Few subnets and few attributes, so that steps meet.
fn any_lease() -> impl Strategy<Value = Lease> {
    (any_key(), 0u8..3).prop_map(|(subnet, host)| Lease {
        subnet,
        attrs: LeaseAttrs { public_ip: Some([192, 168, 0, host].into()), ..Default::default() },
    })
}

fn any_key() -> impl Strategy<Value = Subnet> {
    prop::sample::select(vec![
        OWN,
        PEER,
        OTHER,
        "10.5.1.0-24&fd00:1::-64",
        "10.5.2.0-24&fd00:1::-64",
        "fd00:1::-64",
    ])
    .prop_map(subnet)
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => prop::option::of(any_key()).prop_map(Step::Own),
        2 => prop::collection::vec(any_lease(), 0..8).prop_map(Step::Snapshot),
        4 => any_lease().prop_map(Step::Put),
        3 => any_key().prop_map(Step::Remove),
    ]
}

/// A reader that knows the changes alone, and refuses those that change nothing.
#[derive(Default)]
struct Reader(BTreeMap<Subnet, LeaseAttrs>);

impl Reader {
    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match change {
                Change::New(lease) => {
                    let before = self.0.insert(lease.subnet, lease.attrs);
                    assert_eq!(before, None, "{} was there", lease.subnet);
                }
                Change::Changed(lease) => {
                    let before = self.0.insert(lease.subnet, lease.attrs.clone());
                    assert!(before.is_some(), "{} was not there", lease.subnet);
                    assert_ne!(before, Some(lease.attrs), "nothing changed for {}", lease.subnet);
                }
                Change::Gone(subnet) => {
                    assert!(self.0.remove(&subnet).is_some(), "{subnet} was not there")
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn a_reader_of_the_changes_knows_the_table(steps in prop::collection::vec(any_step(), 0..40)) {
        let mut table = LeaseTable::new();
        let mut reader = Reader::default();
        let mut truth = BTreeMap::new();
        for step in steps {
            match step {
                Step::Own(own) => reader.apply(table.set_own(own)),
                Step::Snapshot(leases) => {
                    truth = leases.iter().map(|lease| (lease.subnet, lease.attrs.clone())).collect();
                    reader.apply(table.snapshot(leases));
                }
                Step::Put(lease) => {
                    truth.insert(lease.subnet, lease.attrs.clone());
                    reader.apply(table.put(lease));
                }
                Step::Remove(subnet) => {
                    truth.remove(&subnet);
                    reader.apply(table.remove(&subnet));
                }
            }
            let table_shows: BTreeMap<_, _> = table.iter().map(|(s, a)| (*s, a.clone())).collect();
            let mut peers = truth.clone();
            table.own().map(|own| peers.remove(&own));
            prop_assert_eq!(&table_shows, &peers);
            prop_assert_eq!(&table_shows, &reader.0);
            prop_assert_eq!(table.len(), peers.len());
        }
    }
}
