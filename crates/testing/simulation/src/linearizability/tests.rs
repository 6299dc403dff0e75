use std::time::Duration;

use super::*;
use crate::operations::Moment;

/// A history by hand: `client called answered`, in the order of these numbers.
fn operation(client: &str, span: (u64, Option<u64>), call: Call, answer: Answer) -> Operation {
    let moment = |order| Moment { order, at: Duration::from_secs(order) };
    Operation {
        client: client.to_owned(),
        network: "_".to_owned(),
        call,
        called: moment(span.0),
        answer: span.1.map(|order| (moment(order), answer)),
    }
}

fn subnet() -> Subnet {
    "10.1.2.0-24".parse().unwrap()
}

fn machine(last: u8) -> Machine {
    Machine { v4: Some([192, 168, 0, last].into()), v6: None }
}

fn lease(last: u8, version: u64) -> LeaseSeen {
    LeaseSeen { machine: machine(last), version, reserved: false }
}

fn acquire(last: u8, span: (u64, u64), version: u64) -> Operation {
    let answer = Answer::Lease(subnet(), lease(last, version));
    operation("node", (span.0, Some(span.1)), Call::Acquire { machine: machine(last) }, answer)
}

fn renew(last: u8, span: (u64, u64), versions: (u64, u64)) -> Operation {
    let call = Call::Renew { subnet: subnet(), machine: machine(last), version: Some(versions.0) };
    let answer = Answer::Lease(subnet(), lease(last, versions.1));
    operation("node", (span.0, Some(span.1)), call, answer)
}

fn release(span: (u64, Option<u64>)) -> Operation {
    let call = Call::Release { subnet: subnet(), version: None };
    operation("operator", span, call, Answer::Done)
}

fn list(span: (u64, u64), leases: Vec<(Subnet, LeaseSeen)>) -> Operation {
    operation("reader", (span.0, Some(span.1)), Call::ListLeases, Answer::Leases(leases))
}

fn reserve(last: u8, span: (u64, u64)) -> Operation {
    let call = Call::Reserve { subnet: subnet(), machine: machine(last) };
    operation("operator", (span.0, Some(span.1)), call, Answer::Done)
}

#[test]
fn a_lease_that_is_taken_renewed_released_and_taken_by_another_is_linearizable() {
    let history = [
        acquire(1, (1, 2), 5),
        renew(1, (3, 4), (5, 6)),
        list((5, 6), vec![(subnet(), lease(1, 6))]),
        release((7, Some(8))),
        list((9, 10), vec![]),
        acquire(2, (11, 12), 9),
    ];
    check(&history).unwrap();
}

#[test]
fn overlapping_operations_may_have_happened_in_either_order() {
    check(&[acquire(1, (1, 6), 5), release((2, Some(7))), list((3, 4), vec![])]).unwrap();
    check(&[acquire(1, (1, 2), 5), release((3, Some(9))), list((4, 5), vec![])]).unwrap();
    let still_there = vec![(subnet(), lease(1, 5))];
    check(&[acquire(1, (1, 2), 5), release((3, Some(9))), list((4, 5), still_there)]).unwrap();
}

#[test]
fn two_machines_with_one_subnet_are_found() {
    let wrong = check(&[acquire(1, (1, 2), 5), acquire(2, (3, 4), 6)]).unwrap_err();
    assert_eq!(wrong.part, "10.1.2.0-24");
    assert_eq!(wrong.operations.len(), 2);
}

#[test]
fn a_renewal_answered_from_a_stale_state_is_found() {
    let wrong = check(&[acquire(1, (1, 2), 5), release((3, Some(4))), renew(1, (5, 6), (5, 7))]);
    assert!(wrong.unwrap_err().to_string().contains("at 6.000"));
    // An older version than one that was acknowledged before.
    check(&[acquire(1, (1, 2), 5), renew(1, (3, 4), (5, 5))]).unwrap_err();
}

#[test]
fn a_release_that_is_acknowledged_and_done_later_is_found() {
    let still_there = vec![(subnet(), lease(1, 5))];
    let history = [
        acquire(1, (1, 2), 5),
        release((3, Some(4))),
        list((5, 6), still_there),
        list((7, 8), vec![]),
    ];
    let wrong = check(&history).unwrap_err();
    // What came after the first answer that cannot be explained is left out.
    assert_eq!(wrong.operations.len(), 3);
    assert_eq!(wrong.operations[2].call, Call::ListLeases);
    assert!(wrong.lines().last().unwrap().contains("reader: list the leases: 10.1.2.0-24 is"));
}

#[test]
fn a_reservation_of_a_held_subnet_is_found_and_one_of_its_holder_is_right() {
    check(&[acquire(1, (1, 2), 5), reserve(2, (3, 4))]).unwrap_err();
    check(&[acquire(1, (1, 2), 5), reserve(1, (3, 4))]).unwrap();
    // What is reserved is not released.
    check(&[acquire(1, (1, 2), 5), reserve(1, (3, 4)), release((5, Some(6)))]).unwrap_err();
}

#[test]
fn an_unanswered_request_may_be_carried_out_later_or_never_but_not_before() {
    let open = release((3, None));
    let gone = list((5, 6), vec![]);
    let there = || list((5, 6), vec![(subnet(), lease(1, 5))]);
    let gone_later = list((7, 8), vec![]);
    check(&[acquire(1, (1, 2), 5), open.clone(), gone]).unwrap();
    check(&[acquire(1, (1, 2), 5), open.clone(), there()]).unwrap();
    check(&[acquire(1, (1, 2), 5), open.clone(), there(), gone_later.clone()]).unwrap();
    let back = list((9, 10), vec![(subnet(), lease(1, 5))]);
    check(&[acquire(1, (1, 2), 5), open, there(), gone_later, back]).unwrap_err();
}

#[test]
fn an_unanswered_acquisition_may_have_taken_any_subnet_once() {
    let call = Call::Acquire { machine: machine(1) };
    let open = operation("node", (1, None), call, Answer::Done);
    let there = list((3, 4), vec![(subnet(), lease(1, 7))]);
    check(&[open.clone(), there]).unwrap();
    let another = list((3, 4), vec![(subnet(), lease(2, 7))]);
    check(&[open, another]).unwrap_err();
}

#[test]
fn a_lease_may_end_by_itself_after_its_life_and_not_before() {
    let day = LEASE_TTL.as_secs();
    check(&[acquire(1, (1, 2), 5), list((day + 10, day + 11), vec![])]).unwrap();
    check(&[acquire(1, (1, 2), 5), list((day / 2, day / 2 + 1), vec![])]).unwrap_err();
}

#[test]
fn a_config_that_was_acknowledged_is_read_afterwards() {
    let write = |span, text: &str| {
        operation(
            "operator",
            span,
            Call::SetConfig { text: text.into(), force: false },
            Answer::Done,
        )
    };
    let read = |span, text: Option<&str>| {
        operation("reader", span, Call::ReadConfig, Answer::Config(text.map(str::to_owned)))
    };
    let history =
        |last| [write((1, Some(2)), "A"), write((3, None), "B"), read((5, Some(6)), last)];
    check(&history(Some("A"))).unwrap();
    check(&history(Some("B"))).unwrap();
    check(&history(None)).unwrap_err();
}

#[test]
fn revisions_grow_across_subnets() {
    let mut elsewhere = acquire(2, (3, 4), 5);
    elsewhere.answer = elsewhere
        .answer
        .map(|(at, _)| (at, Answer::Lease("10.1.3.0-24".parse().unwrap(), lease(2, 5))));
    assert_eq!(check(&[acquire(1, (1, 2), 5), elsewhere]).unwrap_err().part, "revisions");
}

#[test]
fn nothing_is_known_of_a_store_that_was_replaced() {
    let replaced = operation("operator", (3, Some(4)), Call::StoreReplaced, Answer::Done);
    let history = [acquire(1, (1, 2), 5), replaced, list((5, 6), vec![]), acquire(2, (7, 8), 3)];
    check(&history).unwrap();
}
