use flannel_lease::LeaseAttrs;
use flannel_store::wire::{WatchResult, WireEvent};

use super::*;

fn subnet(third: u8) -> Subnet {
    format!("10.5.{third}.0-24").parse().unwrap()
}

fn entry(last: u8, version: u64) -> KeptLease {
    let attrs = LeaseAttrs { public_ip: Some([192, 0, 2, last].into()), ..Default::default() };
    KeptLease { attrs, expires: Some(1_000), version, owner: None, since: None }
}

fn watch_log() -> WatchLog {
    let watch_log = WatchLog::default();
    let config = Some(r#"{"Network":"10.5.0.0/16"}"#);
    watch_log.reset(10, &[ServerRun { id: 5, since: 1 }], config, [(subnet(1), entry(1, 9))]);
    watch_log
}

fn read(bytes: &Bytes) -> WatchResult {
    WatchResult::read(std::str::from_utf8(bytes).unwrap()).unwrap()
}

#[test]
fn a_newcomer_gets_the_whole_table_in_one_answer() {
    let watch_log = watch_log();
    let (bytes, cursor) = watch_log.answer(None, AnswerStyle::Stream).unwrap();
    let result = read(&bytes);
    assert_eq!(cursor, LogPosition { revision: 10, history: Some(5) });
    assert_eq!(result.cursor, LogPosition { revision: 10, history: Some(5) });
    assert_eq!(result.snapshot.unwrap()[0].lease().unwrap().subnet, subnet(1));
    assert!(result.config.unwrap().unwrap().contains("10.5.0.0/16"));
    assert_eq!(watch_log.answer(Some(cursor), AnswerStyle::Stream), None);
}

#[test]
fn all_who_wait_at_the_same_place_share_one_text() {
    let watch_log = watch_log();
    let cursor = watch_log.snapshot().cursor;
    watch_log.publish(11, vec![Event::Put(subnet(2), entry(2, 11)), Event::Gone(subnet(1))]);
    let (first, next) = watch_log.answer(Some(cursor), AnswerStyle::Poll).unwrap();
    let (second, _) = watch_log.answer(Some(cursor), AnswerStyle::Poll).unwrap();
    assert_eq!(first.as_ptr(), second.as_ptr());
    let events = read(&first).events;
    assert!(matches!(&events[..], [WireEvent::Added(_), WireEvent::Removed(s)] if *s == subnet(1)));
    assert_eq!(watch_log.answer(Some(next), AnswerStyle::Poll), None);
}

#[test]
fn a_renewal_that_changes_nothing_wakes_nobody() {
    let watch_log = watch_log();
    let cursor = watch_log.snapshot().cursor;
    let changes = watch_log.changes();
    watch_log.publish(11, vec![Event::Put(subnet(1), entry(1, 11))]);
    assert!(!changes.has_changed().unwrap());
    assert_eq!(watch_log.answer(Some(cursor), AnswerStyle::Poll), None);
    assert_eq!(watch_log.lease(&subnet(1)).unwrap().version, 11, "but it is in the table");
}

#[test]
fn who_fell_behind_takes_the_whole_table() {
    let watch_log = watch_log();
    let cursor = watch_log.snapshot().cursor;
    let count = MAX_KEPT_EVENTS as u64 + 1;
    for revision in 11..11 + count {
        watch_log.publish(revision, vec![Event::Put(subnet(3), entry(revision as u8, revision))]);
    }
    assert!(matches!(watch_log.since(cursor), News::Snapshot(_)));
    let recent = LogPosition { revision: count, ..cursor };
    assert!(matches!(watch_log.since(recent), News::Events(..)));
}

#[test]
fn config_is_told_on_streams_alone() {
    let watch_log = watch_log();
    let cursor = Some(watch_log.snapshot().cursor);
    watch_log.publish(11, vec![Event::Config(Some(r#"{"Network":"10.6.0.0/16"}"#.to_owned()))]);
    assert_eq!(watch_log.answer(cursor, AnswerStyle::Poll), None);
    let (bytes, _) = watch_log.answer(cursor, AnswerStyle::Stream).unwrap();
    let events = read(&bytes).events;
    assert!(
        matches!(&events[..], [WireEvent::Config(Some(text))] if text.contains("10.6.0.0/16")),
        "{events:?}"
    );
}
