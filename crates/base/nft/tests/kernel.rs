//! Every primitive, asked of the kernel in a network namespace of its own. Flowtables are tested as bytes only: not every
//! kernel has them.

use std::net::IpAddr;

use flannel_nft::{
    Batch, Comparison, ConnectionKey, Counter, Direction, Element, ElementData, Event, Expressions,
    Field, Hook, KeyType, Monitor, Nft, NftError, Set, SetData, Spot, TableFamily, TableLayout,
    TableOwnership, Verdict,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const FAMILY: TableFamily = TableFamily::Ipv4;
const TABLE: &str = "trial";

/// Takes the calling test into a network namespace of its own.
fn nft() -> Nft {
    // SAFETY: only the network namespace of this test's thread is left; no memory is shared by it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .expect("these tests make network namespaces: run them as root");
    Nft::open().expect("open nftables")
}

fn batch() -> Batch {
    let mut batch = Batch::new(FAMILY, TABLE);
    batch.table("a table for tests");
    batch
}

fn ip(last: u8) -> IpAddr {
    [10, 1, 2, last].into()
}

#[test]
fn table_chains_and_rules_are_read_back_as_written() {
    let mut nft = nft();
    let mut changes = batch();
    changes.chain("there");
    changes.base_chain("entry", Hook::FORWARD, "the way in");
    let rules = [
        Expressions::new().network(Field::Source, "10.0.0.0/8".parse().unwrap()),
        Expressions::new().not_network(Field::Destination, "10.64.0.0/10".parse().unwrap()),
        Expressions::new().from("eth0").udp_port(53).counter(),
        Expressions::new().marked(0x4000).mark(0x2000),
        Expressions::new().arriving().protocol(4),
        Expressions::new().connection(
            ConnectionKey::SourceIpv4,
            Some(Direction::Original),
            Comparison::Equal,
            &[10, 1, 2, 3],
        ),
    ]
    .map(|rule| rule.verdict(Verdict::jump("there")));
    rules.iter().for_each(|rule| changes.rule("entry", rule));
    changes.owned_rule("there", &Expressions::new().counter(), ("comment", "owner"), Spot::Last);
    nft.commit(&changes).unwrap();
    let table = nft.table(FAMILY, TABLE).unwrap().unwrap();
    assert_eq!((table.objects, table.is_dormant), (2, false));
    let chain = nft.chain(FAMILY, TABLE, "entry").unwrap().unwrap();
    assert!(chain.stands_at(Hook::FORWARD) && !chain.stands_at(Hook::INPUT));
    assert_eq!(chain.comment.as_deref(), Some("the way in"));
    assert_eq!(nft.chains(FAMILY, TABLE).unwrap().len(), 2);
    let read = nft.rules(FAMILY, TABLE, "entry").unwrap();
    assert!(read.iter().map(|rule| &rule.expressions).eq(&rules), "{read:#?}");
    let all = nft.all_rules(FAMILY, TABLE).unwrap();
    let owned = all.iter().find(|rule| rule.chain == "there").unwrap();
    let kept = (owned.comment.as_deref(), owned.owner.as_deref());
    assert_eq!(kept, (Some("comment"), Some("owner")));
    let mut removal = Batch::new(FAMILY, TABLE);
    removal.delete_rule("there", owned.handle);
    removal.delete_table();
    nft.commit(&removal).unwrap();
    assert_eq!(nft.table(FAMILY, TABLE).unwrap(), None);
    assert_eq!(nft.rules(FAMILY, TABLE, "entry").unwrap(), []);
}

#[test]
fn refused_change_undoes_the_whole_transaction_and_is_named() {
    let mut nft = nft();
    let mut changes = batch();
    changes.delete_chain("absent");
    let error = nft.commit(&changes).unwrap_err();
    assert!(error.is_absence(), "{error}");
    assert!(error.to_string().starts_with("could not remove the chain absent: "), "{error}");
    assert_eq!(nft.table(FAMILY, TABLE).unwrap(), None, "nothing of it was done");
}

#[test]
fn transaction_for_an_earlier_generation_is_outdated() {
    let mut nft = nft();
    nft.commit(&batch()).unwrap();
    let generation = nft.generation().unwrap();
    let mut change = Batch::new(FAMILY, TABLE);
    change.chain("one");
    nft.commit_at(generation, &change).unwrap();
    assert_ne!(nft.generation().unwrap(), generation);
    let mut late = Batch::new(FAMILY, TABLE);
    late.chain("two");
    let error = nft.commit_at(generation, &late).unwrap_err();
    assert!(matches!(error, NftError::Outdated), "{error}");
    assert!(!nft.has_chain(FAMILY, TABLE, "two").unwrap());
}

#[test]
fn sets_maps_and_verdict_maps_hold_their_elements() {
    let mut nft = nft();
    let mut changes = batch();
    changes.chain("there");
    let mut pods = Set::new("pods", &[KeyType::Ipv4Address], SetData::Nothing);
    pods.size = Some(512);
    let mut blocks = Set::new("blocks", &[KeyType::Ipv4Address], SetData::Nothing);
    blocks.is_interval = true;
    let pairs = Set::new("pairs", &[KeyType::Ipv4Address; 2], SetData::Nothing);
    let marks = Set::new("marks", &[KeyType::Port], SetData::Value(KeyType::Mark));
    let profiles = Set::new("profiles", &[KeyType::Ipv4Address], SetData::Verdict);
    let sets = [pods, blocks, pairs, marks, profiles];
    sets.iter().for_each(|set| changes.set(set));
    let jump = ElementData::Verdict(Verdict::jump("there"));
    let mark = ElementData::Value(7u32.to_ne_bytes().to_vec());
    let many: Vec<Element> =
        (0..3_000u32).map(|number| Element::new(&(0x0a02_0000 + number).to_be_bytes())).collect();
    let mut top = Element::range(&[10, 0, 0, 0], &[10, 0, 255, 255]);
    top.extend(Element::range(&[240, 0, 0, 0], &[255; 4]));
    changes.add_elements("pods", &[Element::address(ip(3))]);
    changes.add_elements("blocks", &top);
    changes.add_elements("pairs", &[Element::new(&[10, 1, 2, 3, 10, 1, 2, 4])]);
    changes.add_elements("marks", &[Element::new(&80u16.to_be_bytes()).standing_for(mark)]);
    let profile = Element::address(ip(3)).standing_for(jump);
    changes.add_elements("profiles", std::slice::from_ref(&profile));
    nft.commit(&changes).unwrap();
    let read = nft.sets(FAMILY, TABLE).unwrap();
    assert!(sets.iter().all(|set| read.contains(set)), "{read:?}");
    let elements = |nft: &mut Nft, set: &str| nft.elements(FAMILY, TABLE, set).unwrap();
    assert_eq!(elements(&mut nft, "profiles"), [profile]);
    assert_eq!(elements(&mut nft, "marks").len(), 1);
    let blocks = elements(&mut nft, "blocks");
    assert!(top.iter().all(|element| blocks.contains(element)), "{blocks:?}");

    // Rules that look into them, and elements that come and go.
    let mut changes = Batch::new(FAMILY, TABLE);
    changes.base_chain("entry", Hook::FORWARD, "");
    let rules = [
        Expressions::new().address_in(Field::Source, FAMILY, "pods").counter(),
        Expressions::new().address_in(Field::Destination, FAMILY, "blocks").verdict(Verdict::Drop),
        Expressions::new().address_pair_in(FAMILY, "pairs").verdict(Verdict::Accept),
        Expressions::new().address_verdict(Field::Destination, FAMILY, "profiles"),
    ];
    rules.iter().for_each(|rule| changes.rule("entry", rule));
    changes.delete_elements("pods", &[Element::address(ip(3))]);
    changes.flush_set("pairs");
    nft.commit(&changes).unwrap();
    let read = nft.rules(FAMILY, TABLE, "entry").unwrap();
    assert!(read.iter().map(|rule| &rule.expressions).eq(&rules), "{read:#?}");
    assert_eq!((elements(&mut nft, "pods").len(), elements(&mut nft, "pairs").len()), (0, 0));
    let mut changes = Batch::new(FAMILY, TABLE);
    let mut large = Set::new("large", &[KeyType::Ipv4Address], SetData::Nothing);
    large.is_constant = false;
    changes.set(&large);
    changes.add_elements("large", &many);
    changes.delete_set("marks");
    nft.commit(&changes).unwrap();
    assert_eq!(elements(&mut nft, "large").len(), many.len());
    assert_eq!(nft.sets(FAMILY, TABLE).unwrap().len(), 5);
}

#[test]
fn named_counter_outlives_the_chain_that_uses_it() {
    let mut nft = nft();
    let mut changes = batch();
    changes.counter("seen");
    changes.chain("there");
    changes.rule("there", &Expressions::new().named_counter("seen").verdict(Verdict::Return));
    nft.commit(&changes).unwrap();
    assert_eq!(nft.counter(FAMILY, TABLE, "seen").unwrap(), Some(Counter::default()));
    let mut changes = Batch::new(FAMILY, TABLE);
    changes.flush("there");
    changes.delete_chain("there");
    nft.commit(&changes).unwrap();
    assert_eq!(nft.counters(FAMILY, TABLE).unwrap(), [("seen".to_owned(), Counter::default())]);
    let mut changes = Batch::new(FAMILY, TABLE);
    changes.delete_counter("seen");
    nft.commit(&changes).unwrap();
    assert_eq!(nft.counter(FAMILY, TABLE, "seen").unwrap(), None);
}

#[test]
fn owned_table_is_changed_by_its_owner_alone_and_stays_if_persistent() {
    let mut owner = nft();
    let mut other = Nft::open().unwrap();
    let own = |ownership| {
        let mut batch = Batch::new(FAMILY, TABLE);
        batch.owned_table("", ownership);
        batch
    };
    let foreign = {
        let mut batch = Batch::new(FAMILY, TABLE);
        batch.chain("theirs");
        batch
    };
    match owner.commit(&own(TableOwnership::OwnedAndPersistent)) {
        // Kernels before 6.9.
        Err(error) if error.is_unsupported() => return,
        result => result.unwrap(),
    }
    let table = other.table(FAMILY, TABLE).unwrap().unwrap();
    assert_eq!(table.ownership, TableOwnership::OwnedAndPersistent);
    other.commit(&foreign).unwrap_err();
    drop(owner);
    assert!(other.table(FAMILY, TABLE).unwrap().is_some(), "it stays without its owner");
    other.commit(&own(TableOwnership::OwnedAndPersistent)).unwrap();
    other.commit(&foreign).unwrap();
    let mut removal = Batch::new(FAMILY, TABLE);
    removal.delete_table();
    other.commit(&removal).unwrap();

    let mut owner = Nft::open().unwrap();
    owner.commit(&own(TableOwnership::Owned)).unwrap();
    drop(owner);
    assert_eq!(other.table(FAMILY, TABLE).unwrap(), None, "it goes with its owner");
}

#[test]
fn flowtable_is_made_where_the_kernel_has_them() {
    let mut nft = nft();
    let mut changes = batch();
    let flowtable =
        flannel_nft::Flowtable { name: "fast".into(), priority: 0, devices: vec!["lo".into()] };
    changes.flowtable(&flowtable);
    match nft.commit(&changes) {
        Ok(()) => assert_eq!(nft.flowtables(FAMILY, TABLE).unwrap(), [flowtable]),
        Err(error) => println!("this kernel has no flowtables: {error}"),
    }
}

#[test]
fn monitor_tells_of_changes_and_who_has_made_them() {
    let mut nft = nft();
    let mut monitor = Monitor::open().unwrap();
    let of_trial = |event: &Event<'_>| event.table == TABLE;
    nft.commit(&batch()).unwrap();
    let heard = monitor.heard(of_trial).unwrap();
    let [change] = &heard.changes[..] else { panic!("{heard:?}") };
    assert_eq!(change.family, FAMILY as u8);
    assert!(change.by.as_ref().is_some_and(|by| by.starts_with("monitor_")), "{change:?}");
    nft.commit(&batch()).unwrap();
    assert_eq!(monitor.heard(|event| event.table == "another").unwrap().changes, []);
}

#[test]
fn layout_is_restored_where_it_differs() {
    let mut nft = nft();
    let layout = || {
        let guard = Expressions::new().arriving().verdict(Verdict::Drop);
        TableLayout::new(FAMILY, TABLE, "trial")
            .holder("ports", None)
            .leading(
                "entry",
                Some(Hook::DESTINATION_NAT),
                vec![Expressions::new().destined_here().verdict(Verdict::jump("ports"))],
            )
            .guard("guard", Hook::ARRIVAL, vec![guard])
    };
    let flaws = |nft: &mut Nft| {
        let present = nft.all_rules(FAMILY, TABLE).unwrap();
        layout().flaws(nft, &present).unwrap()
    };
    let restore = |nft: &mut Nft| {
        let mut batch = Batch::new(FAMILY, TABLE);
        layout().restore(&mut batch, &flaws(nft));
        nft.commit(&batch).unwrap();
        assert!(flaws(nft).is_empty());
    };
    restore(&mut nft);
    for spoil in [
        &|batch: &mut Batch| batch.flush("entry"),
        &|batch: &mut Batch| batch.rule("guard", &Expressions::new().verdict(Verdict::Accept)),
        &|batch: &mut Batch| {
            batch.flush("guard");
            batch.delete_chain("guard");
            batch.base_chain("guard", Hook::INPUT, "");
        },
    ] as [&dyn Fn(&mut Batch); 3]
    {
        let mut batch = Batch::new(FAMILY, TABLE);
        spoil(&mut batch);
        nft.commit(&batch).unwrap();
        assert_eq!(flaws(&mut nft).len(), 1);
        restore(&mut nft);
    }
}
