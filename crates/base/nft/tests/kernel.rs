//! Every primitive, asked of the kernel in a network namespace of its own.

use flannel_netlink::nfnetlink::{self, NFTABLES, Refused};
use flannel_netlink::{AttributeWriter, Connection, Protocol, RawRequest};
use flannel_nft::{
    Batch, Comparison, ConnectionKey, Direction, ElementData, Event, Expression, Expressions,
    Field, Header, Hook, Monitor, Nft, NftError, SetContents, Spot, TableFamily, TableLayout,
    Verdict,
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

/// Somebody else, who writes what is only read here: sets, counters, flowtables.
struct Other(Connection);

impl Other {
    fn new() -> Self {
        Self(Connection::open(Protocol::Netfilter).expect("open netlink"))
    }

    /// Makes a change of the table, with these attributes beside its name.
    fn change(&mut self, kind: u16, attributes: &AttributeWriter) -> Result<(), Refused> {
        let mut all = AttributeWriter::default().text(1, TABLE);
        all.append(attributes);
        let request = nfnetlink::request(NFTABLES, kind, FAMILY as u8, all);
        let flags = if [14, 20].contains(&kind) { 0 } else { 0x400 };
        self.0.commit(NFTABLES, None, &[RawRequest { flags, ..request }]).expect("an answer")
    }

    /// `data`: type and length of what the elements of a map stand for.
    fn set(&mut self, name: &str, flags: u32, key: (u32, u32), data: Option<(u32, u32)>) {
        let set = new().text(2, name).be32(3, flags).be32(4, key.0).be32(5, key.1).be32(10, 1);
        let set = match data {
            Some((kind, len)) => set.be32(6, kind).be32(7, len),
            None => set,
        };
        self.change(9, &set).expect("a set");
    }

    fn elements(&mut self, kind: u16, set: &str, elements: &[AttributeWriter]) {
        let mut list = new();
        elements.iter().for_each(|element| list.append(&new().nest(1, element)));
        self.change(kind, &new().text(2, set).nest(3, &list)).expect("elements");
    }
}

fn new() -> AttributeWriter {
    AttributeWriter::default()
}

fn element(key: &[u8]) -> AttributeWriter {
    new().nest(1, &new().bytes(1, key))
}

fn set_contents(nft: &mut Nft, name: &str) -> SetContents {
    let mut tables = nft.ruleset().expect("a ruleset");
    let table = tables.iter_mut().find(|it| it.name == TABLE).expect("the table");
    let at = table.sets.iter().position(|it| it.name == name).expect("the set");
    table.sets.remove(at)
}

fn load(offset: u32, register: u32) -> Expression {
    Expression::Payload { header: Header::Network, offset, len: 4, register }
}

fn lookup(set: &str, verdict: bool) -> Expression {
    Expression::Lookup { set: set.to_owned(), register: 1, inverted: false, verdict }
}

const COUNTER: Expression = Expression::Counter { packets: 0, bytes: 0 };

#[test]
fn table_chains_and_rules_are_read_back_as_written() {
    let mut nft = nft();
    let mut changes = batch();
    changes.chain("there");
    changes.base_chain("entry", Hook::FORWARD, "the way in");
    let rules = [
        Expressions::new().network(Field::Source, "10.0.0.0/8".parse().unwrap()),
        Expressions::new().not_network(Field::Destination, "10.64.0.0/10".parse().unwrap()),
        Expressions::new().from("eth0").udp_port(53),
        Expressions::new().marked(0x4000).mark(0x2000),
        Expressions::new().arriving().protocol(4),
        Expressions(vec![
            COUNTER,
            Expression::Connection {
                key: ConnectionKey::SourceIpv4,
                direction: Some(Direction::Original),
                register: 1,
            },
            Expression::Compare { register: 1, how: Comparison::Equal, value: vec![10, 1, 2, 3] },
        ]),
    ]
    .map(|rule| rule.verdict(Verdict::jump("there")));
    rules.iter().for_each(|rule| changes.rule("entry", rule));
    changes.owned_rule("there", &Expressions(vec![COUNTER]), ("comment", "owner"), Spot::Last);
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
fn sets_maps_and_verdict_maps_are_read_with_their_elements() {
    const ADD: u16 = 12;
    const REMOVE: u16 = 14;
    const IPV4: (u32, u32) = (7, 4);
    const INTERVAL: u32 = 4;
    const MAP: u32 = 8;
    let mut nft = nft();
    let mut changes = batch();
    changes.chain("there");
    changes.base_chain("entry", Hook::FORWARD, "");
    nft.commit(&changes).unwrap();
    let mut other = Other::new();
    other.set("pods", 0, IPV4, None);
    other.set("blocks", INTERVAL, IPV4, None);
    other.set("pairs", 0, (7 << 6 | 7, 8), None);
    other.set("marks", MAP, (13, 2), Some((19, 4)));
    other.set("profiles", MAP, IPV4, Some((0xffff_ff00, 16)));
    let end = |key: &[u8]| element(key).be32(3, 1);
    let blocks = [element(&[10, 0, 0, 0]), end(&[10, 1, 0, 0]), element(&[240, 0, 0, 0])];
    let mark = 7u32.to_ne_bytes();
    let jump = new().be32(1, -3i32 as u32).text(2, "there");
    other.elements(ADD, "pods", &[element(&[10, 1, 2, 3])]);
    other.elements(ADD, "blocks", &blocks);
    other.elements(ADD, "pairs", &[element(&[10, 1, 2, 3, 10, 1, 2, 4])]);
    other.elements(ADD, "marks", &[element(&[0, 80]).nest(2, &new().bytes(1, &mark))]);
    other.elements(ADD, "profiles", &[element(&[10, 1, 2, 3]).nest(2, &new().nest(2, &jump))]);
    let read = set_contents(&mut nft, "blocks");
    let bounds: Vec<_> =
        read.ranges.iter().map(|it| (&it.parts[0].first[..], &it.parts[0].last[..])).collect();
    let wanted = [[[10, 0, 0, 0], [10, 0, 255, 255]], [[240, 0, 0, 0], [255; 4]]];
    assert!(bounds.iter().eq(&wanted.each_ref().map(|[a, b]| (&a[..], &b[..]))), "{bounds:?}");
    assert_eq!(set_contents(&mut nft, "marks").ranges[0].data, ElementData::Value(mark.to_vec()));
    let verdict = ElementData::Verdict(Verdict::jump("there"));
    assert_eq!(set_contents(&mut nft, "profiles").ranges[0].data, verdict);

    // Rules that look into them, and elements that come and go.
    let mut changes = Batch::new(FAMILY, TABLE);
    let rules = [
        Expressions(vec![load(12, 1), lookup("pods", false), COUNTER]),
        Expressions(vec![load(16, 1), lookup("blocks", false)]).verdict(Verdict::Drop),
        // Registers of four bytes: the second one follows register 1.
        Expressions(vec![load(12, 1), load(16, 9), lookup("pairs", false)])
            .verdict(Verdict::Accept),
        Expressions(vec![load(16, 1), lookup("profiles", true)]),
    ];
    rules.iter().for_each(|rule| changes.rule("entry", rule));
    nft.commit(&changes).unwrap();
    other.elements(REMOVE, "pods", &[element(&[10, 1, 2, 3])]);
    let read = nft.rules(FAMILY, TABLE, "entry").unwrap();
    assert!(read.iter().map(|rule| &rule.expressions).eq(&rules), "{read:#?}");
    let len = |nft: &mut Nft, set: &str| set_contents(nft, set).ranges.len();
    assert_eq!((len(&mut nft, "pods"), len(&mut nft, "pairs")), (0, 1));
    let many: Vec<_> =
        (0..3_000u32).map(|number| element(&(0x0a02_0000 + number).to_be_bytes())).collect();
    other.set("large", 0, IPV4, None);
    other.elements(ADD, "large", &many);
    assert_eq!(len(&mut nft, "large"), many.len());
}

#[test]
fn named_counter_outlives_the_chain_that_uses_it() {
    let mut nft = nft();
    let mut changes = batch();
    changes.chain("there");
    nft.commit(&changes).unwrap();
    let mut other = Other::new();
    let name = new().text(2, "seen").be32(3, 1);
    other.change(18, &name.clone().nest(4, &new().be64(1, 0).be64(2, 0))).expect("a counter");
    let rule = Expressions(vec![Expression::NamedCounter("seen".into())]).verdict(Verdict::Return);
    let mut changes = Batch::new(FAMILY, TABLE);
    changes.rule("there", &rule);
    nft.commit(&changes).unwrap();
    assert_eq!(nft.rules(FAMILY, TABLE, "there").unwrap()[0].expressions, rule);
    let mut changes = Batch::new(FAMILY, TABLE);
    changes.flush("there");
    changes.delete_chain("there");
    nft.commit(&changes).unwrap();
    assert_eq!(nft.table(FAMILY, TABLE).unwrap().unwrap().objects, 1);
    other.change(20, &name).expect("it goes");
    assert_eq!(nft.table(FAMILY, TABLE).unwrap().unwrap().objects, 0);
}

#[test]
fn table_that_another_program_owns_is_read_and_not_changed() {
    let mut nft = nft();
    let mut owner = Other::new();
    let owned = new().be32(2, 2);
    match owner.change(0, &owned) {
        // Kernels before 5.12.
        Err(refused) if refused.error.errno == libc::EOPNOTSUPP => return,
        result => result.unwrap(),
    }
    assert!(nft.table(FAMILY, TABLE).unwrap().is_some());
    let mut change = Batch::new(FAMILY, TABLE);
    change.chain("ours");
    let error = nft.commit(&change).unwrap_err();
    assert!(error.to_string().starts_with("could not make the chain ours: "), "{error}");
    drop(owner);
    assert_eq!(nft.table(FAMILY, TABLE).unwrap(), None, "it goes with its owner");
}

#[test]
fn flowtable_is_known_where_the_kernel_has_them() {
    let mut nft = nft();
    let mut changes = batch();
    changes.base_chain("entry", Hook::FORWARD, "");
    nft.commit(&changes).unwrap();
    let hook = new().be32(1, 0).be32(2, 0).nest(3, &new().text(1, "lo"));
    if let Err(Refused { error, .. }) =
        Other::new().change(22, &new().text(2, "fast").nest(3, &hook))
    {
        println!("this kernel has no flowtables: {error}");
        return;
    }
    assert_eq!(nft.table(FAMILY, TABLE).unwrap().unwrap().objects, 2);
    let rule = Expressions(vec![Expression::FlowOffload("fast".into())]);
    let mut changes = Batch::new(FAMILY, TABLE);
    changes.rule("entry", &rule);
    nft.commit(&changes).unwrap();
    assert_eq!(nft.rules(FAMILY, TABLE, "entry").unwrap()[0].expressions, rule);
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
