use std::time::SystemTime;

use flannel_state::{DaemonState, NetworkState, SCHEMA, Verdict};

use super::*;

const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

fn row(last: u8) -> LeaseRow {
    LeaseRow {
        subnet: format!("10.5.{last}.0-24").parse().expect("a key"),
        name: None,
        v4: Some([192, 0, 2, last].into()),
        v6: None,
        backend: "vxlan".to_owned(),
        ends: Some(SystemTime::UNIX_EPOCH),
    }
}

fn table(lasts: &[u8]) -> LeaseTable {
    let leases = lasts.iter().map(|last| row(*last)).collect();
    LeaseTable { config: Some(CONFIG.to_owned()), subnets: SubnetOrigin::Pool, leases }
}

fn report(verdict: Verdict) -> Answer {
    let network = NetworkState { verdict, ..NetworkState::starting("_") };
    let state = DaemonState {
        schema: SCHEMA,
        version: "1".to_owned(),
        hostname: "n".to_owned(),
        started: String::new(),
        now: String::new(),
        networks: vec![network],
    };
    Answer::Report(Box::new(NodeReport::of(state, "_").expect("it is there")), Vec::new())
}

fn ids(nodes: Vec<&NodeView>) -> Vec<String> {
    nodes.iter().map(|node| node.lease.subnet.to_string()).collect()
}

#[test]
fn who_looks_is_told_what_has_changed_since_and_who_left() {
    let (mut picture, now) = (Picture::default(), Instant::now());
    picture.store_read(table(&[1, 2]), now);
    let before = picture.version;
    picture.store_read(table(&[1, 2]), now);
    assert_eq!(picture.version, before, "nothing has changed");

    let one = row(1);
    let address = one.address().expect("it has one");
    picture.answered(&one.subnet, address, report(Verdict::CutOff), None, now);
    let (changed, gone) = picture.since(before).expect("it is remembered");
    assert_eq!((ids(changed), gone), (vec!["10.5.1.0-24".to_owned()], vec![]));

    let before = picture.version;
    picture.store_read(table(&[2, 3]), now);
    let (changed, gone) = picture.since(before).expect("it is remembered");
    assert_eq!((ids(changed), gone), (vec!["10.5.3.0-24".to_owned()], vec![one.subnet]));
}

#[test]
fn a_picture_that_begins_anew_is_told_whole() {
    let (mut picture, now) = (Picture::default(), Instant::now());
    picture.store_read(table(&[1]), now);
    let before = picture.version;
    picture = Picture::after(&picture);
    picture.store_read(table(&[2]), now);
    assert!(picture.since(before).is_none(), "who left in between is not known");
}

#[test]
fn each_node_has_its_turn_and_nobody_a_second_one_before() {
    let (mut picture, now) = (Picture::default(), Instant::now());
    picture.store_read(table(&[1, 2, 3]), now);
    let period = Duration::from_secs(2);
    let mut ask = |at, most| -> Vec<Subnet> {
        picture.due(at, period, most).into_iter().map(|(_, lease)| lease.subnet).collect()
    };
    assert_eq!(ask(now, 2), [row(1).subnet, row(2).subnet]);
    assert_eq!(ask(now, 2), [row(3).subnet]);
    assert_eq!(ask(now + period, 9), [], "all are still waited for");
    let address = row(1).address().expect("it has one");
    picture.answered(&row(1).subnet, address, report(Verdict::Ready), None, now);
    assert_eq!(picture.due(now, period, 9), []);
    assert_eq!(picture.due(now + period, period, 9), [(address, row(1))]);
}

#[test]
fn what_a_node_said_is_not_taken_for_the_next_one_that_has_its_subnet() {
    let (mut picture, now) = (Picture::default(), Instant::now());
    picture.store_read(table(&[1]), now);
    let former = row(1).address().expect("it has one");
    picture.answered(&row(1).subnet, former, report(Verdict::Ready), None, now);
    let mut other = table(&[1]);
    other.leases[0].v4 = Some([192, 0, 2, 99].into());
    picture.store_read(other, now);
    assert_eq!(picture.nodes[&row(1).subnet].health, Health::Unasked);
    picture.answered(&row(1).subnet, former, report(Verdict::Ready), None, now);
    assert_eq!(picture.nodes[&row(1).subnet].health, Health::Unasked, "it came too late");
}

#[test]
fn a_node_that_does_not_answer_keeps_what_it_said_last() {
    let (mut picture, now) = (Picture::default(), Instant::now());
    picture.store_read(table(&[1]), now);
    let address = row(1).address().expect("it has one");
    picture.answered(&row(1).subnet, address, report(Verdict::Ready), None, now);
    picture.answered(&row(1).subnet, address, Answer::Silent("gone".to_owned()), None, now);
    let node = &picture.nodes[&row(1).subnet];
    assert_eq!((node.health, node.why.as_deref()), (Health::Silent, Some("gone")));
    assert_eq!((node.name(), node.report.is_some()), ("n".to_owned(), true));
}

#[test]
fn a_config_that_nobody_can_use_says_so() {
    let mut picture = Picture::default();
    let mut table = table(&[]);
    table.config = Some("{\"Network\":\"<b>\"}".to_owned());
    picture.store_read(table, Instant::now());
    assert!(picture.config.problem.is_some_and(|why| why.contains("no node can use")));
}
