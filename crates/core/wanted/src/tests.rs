//! The desired state as requesters, repairs and failures change it.

use flannel_common::{Backoff, Secret};
use flannel_state::EntryCondition;

use super::*;
use crate::{EntryQuery, Requesters, Status};

const POLICY: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(30)),
};

/// An entry of a tunnel's table, with a key that nobody is to see.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    subnet: u32,
    version: u32,
    device: &'static str,
    psk: Secret,
}

const PSK: &str = "hunter2";

impl KeyedEntry for Peer {
    type Key = u32;
    type Device = &'static str;

    fn key(&self) -> u32 {
        self.subnet
    }

    fn devices(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.device)
    }

    fn describe(&self) -> String {
        format!("peer {} version {}", self.subnet, self.version)
    }

    fn kind(&self) -> &'static str {
        "peer"
    }
}

fn peer(subnet: u32, version: u32) -> Peer {
    Peer { subnet, version, device: "wg0", psk: Secret::new(PSK) }
}

fn on(subnet: u32, device: &'static str) -> Peer {
    Peer { device, ..peer(subnet, 0) }
}

fn take(wanted: &mut Wanted<u32, Peer>) -> Vec<u32> {
    let batch = wanted.batch();
    wanted.entries(&batch).map(Peer::key).collect()
}

fn settle(wanted: &mut Wanted<u32, Peer>) {
    let batch = wanted.batch();
    wanted.written(batch, &BTreeSet::new());
}

#[test]
fn filling_at_once_is_the_same_as_setting_one_by_one() {
    let desired: Vec<(u32, Vec<Peer>)> =
        (0..50).map(|n| (n, vec![peer(n, 1), peer(n / 2 + 100, n)])).collect();
    let mut filled = Wanted::new(POLICY);
    filled.add(desired.clone());
    let mut set = Wanted::new(POLICY);
    for (requester, entries) in desired.into_iter().rev() {
        set.set(requester, entries);
    }
    assert_eq!(filled.contested(), 25);
    for wanted in [&mut filled, &mut set] {
        assert_eq!(wanted.bad(), 75);
        assert_eq!(take(wanted).len(), 75);
    }
    assert!(filled.iter().eq(set.iter()));
    settle(&mut filled);
    assert!(!filled.is_dirty() && filled.bad() == 0);
    for requester in 0..50 {
        filled.set(requester, Vec::new());
    }
    assert_eq!(filled.len(), 0);
}

#[test]
fn what_is_told_in_batches_is_the_same_as_what_is_told_one_by_one() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut batched, mut single) = (Wanted::new(POLICY), Wanted::new(POLICY));
        for _ in 0..20 {
            let mut entries = || -> Vec<Peer> {
                (0..rng.u32(0..4)).map(|_| peer(rng.u32(0..30), rng.u32(0..3))).collect()
            };
            let lists: Vec<Vec<Peer>> = (0..8).map(|_| entries()).collect();
            let count = rng.usize(0..8);
            let changes: Vec<(u32, Vec<Peer>)> =
                lists.into_iter().take(count).map(|list| (rng.u32(0..20), list)).collect();
            let before: BTreeSet<u32> = batched.iter().map(Peer::key).collect();
            let unwanted: BTreeSet<u32> =
                batched.update(changes.clone()).iter().map(Peer::key).collect();
            for change in changes {
                single.update(vec![change]);
            }
            assert!(batched.iter().eq(single.iter()), "seed {seed}");
            assert_eq!(batched.contested(), single.contested(), "seed {seed}");
            assert!(batched.requesters.names().eq(single.requesters.names()), "seed {seed}");
            let after: BTreeSet<u32> = batched.iter().map(Peer::key).collect();
            assert!(before.difference(&after).all(|gone| unwanted.contains(gone)), "seed {seed}");
            assert!(unwanted.is_disjoint(&after), "seed {seed}");
            for wanted in [&mut batched, &mut single] {
                settle(wanted);
                assert!(!wanted.is_dirty() && wanted.bad() == 0, "seed {seed}");
            }
        }
    }
}

#[test]
fn a_requesters_entries_are_replaced_as_a_whole() {
    let mut wanted = Wanted::new(POLICY);
    assert_eq!(wanted.set(1, vec![peer(1, 1), peer(2, 1)]), []);
    settle(&mut wanted);
    assert_eq!(wanted.set(1, vec![peer(2, 9), peer(3, 1)]), [peer(1, 1)]);
    let dirty = take(&mut wanted);
    assert_eq!(dirty, [peer(2, 9).key(), peer(3, 1).key()]);
    assert_eq!(wanted.set(1, vec![]), [peer(2, 9), peer(3, 1)]);
    assert_eq!(wanted.len(), 0);
}

#[test]
fn an_unchanged_entry_is_not_written_again() {
    let mut wanted = Wanted::new(POLICY);
    wanted.set(1, vec![peer(1, 1)]);
    settle(&mut wanted);
    wanted.set(1, vec![peer(1, 1)]);
    assert!(!wanted.is_dirty());
}

#[test]
fn the_lower_requester_wins_whatever_the_order_of_arrival() {
    for order in [[1, 2], [2, 1]] {
        let mut wanted = Wanted::new(POLICY);
        for requester in order {
            wanted.set(requester, vec![peer(7, requester)]);
        }
        let key = peer(7, 1).key();
        assert_eq!(wanted.get(&key), Some(&peer(7, 1)));
        assert_eq!(wanted.set(1, vec![]), []);
        assert_eq!(wanted.get(&key), Some(&peer(7, 2)));
        assert_eq!(wanted.set(2, vec![]), [peer(7, 2)]);
    }
}

#[test]
fn what_failed_is_tried_again_when_circumstances_change() {
    let mut wanted = Wanted::new(POLICY);
    let mut rng = fastrand::Rng::with_seed(1);
    let now = Instant::now();
    let key = peer(1, 1).key();
    wanted.set(1, vec![peer(1, 1), peer(2, 1)]);
    for _ in 0..9 {
        take(&mut wanted);
        wanted.failed(&key, "no such device".to_owned(), now, &mut rng);
        wanted.succeeded(&peer(2, 1).key());
        assert!(!wanted.is_dirty());
        wanted.retry_failed();
        assert_eq!(wanted.next_wake(), None);
    }
    assert_eq!(take(&mut wanted), std::slice::from_ref(&key));
    let (pause, news) = wanted.failed(&key, "no such device".to_owned(), now, &mut rng).unwrap();
    assert!(pause < Duration::from_millis(100), "{pause:?}");
    assert!(!news);
}

#[test]
fn an_entry_that_is_undone_again_and_again_is_left_alone_for_a_while() {
    let mut wanted = Wanted::new(POLICY);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = Instant::now();
    let key = peer(1, 1).key();
    wanted.set(1, vec![peer(1, 1)]);
    settle(&mut wanted);
    for _ in 0..POLICY.at_once {
        assert_eq!(wanted.disturbed(&key, now, &mut rng), Repair::Now);
        settle(&mut wanted);
    }
    let Repair::Later(pause) = wanted.disturbed(&key, now, &mut rng) else {
        panic!("it must be left alone now")
    };
    assert!(!wanted.is_dirty());
    assert_eq!(wanted.disturbed(&key, now, &mut rng), Repair::AlreadyDue);
    now += pause;
    wanted.wake(now);
    assert!(wanted.is_dirty(), "and tried again after the pause");
    settle(&mut wanted);
    now += POLICY.calm + Duration::from_secs(1);
    assert_eq!(wanted.disturbed(&key, now, &mut rng), Repair::Now, "calm restores patience");
}

#[test]
fn a_failing_entry_is_retried_with_growing_pauses_and_says_so_once() {
    let mut wanted = Wanted::new(POLICY);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = Instant::now();
    let key = peer(1, 1).key();
    wanted.set(1, vec![peer(1, 1)]);
    let mut pauses = Vec::new();
    for round in 0..12 {
        assert!(take(&mut wanted).contains(&key));
        let (pause, news) = wanted.failed(&key, "no".into(), now, &mut rng).unwrap();
        assert_eq!(news, round == 0);
        pauses.push(pause);
        now += pause;
        wanted.wake(now);
    }
    assert!(pauses[0] < Duration::from_millis(100));
    assert!(
        pauses[11] <= POLICY.refused.most.mul_f64(1.25) && pauses[11] > Duration::from_secs(20)
    );
    take(&mut wanted);
    wanted.succeeded(&key);
    assert_eq!(wanted.problems().count(), 0);
    assert_eq!(wanted.next_wake(), None);
}

#[test]
fn an_entry_nobody_wants_any_more_is_not_retried() {
    let mut wanted = Wanted::new(POLICY);
    let mut rng = fastrand::Rng::with_seed(1);
    let now = Instant::now();
    wanted.set(1, vec![peer(1, 1)]);
    take(&mut wanted);
    wanted.failed(&peer(1, 1).key(), "no".into(), now, &mut rng);
    wanted.set(1, vec![]);
    assert_eq!(wanted.next_wake(), None);
    wanted.wake(now + Duration::from_secs(3600));
    assert!(!wanted.is_dirty());
}

#[test]
fn which_devices_are_referred_to_follows_every_change() {
    let devices = ["flannel.1", "eth0", "eth1"];
    let mut rng = fastrand::Rng::with_seed(1);
    let mut wanted = Wanted::new(POLICY);
    for round in 0..2000 {
        let entries = (0..rng.u32(0..4)).map(|_| on(rng.u32(0..3), devices[rng.usize(0..3)]));
        let entries: Vec<Peer> = entries.collect();
        if round % 100 == 0 {
            wanted = Wanted::new(POLICY);
            wanted.add(vec![(0, entries.clone()), (1, entries)]);
        } else {
            wanted.set(rng.u32(0..3), entries);
        }
        for name in devices {
            let walked = wanted.iter().any(|peer| peer.device == name);
            let told = wanted.devices().any(|device| *device == name);
            assert_eq!(told, walked, "{name} in round {round}");
        }
    }
}

#[test]
fn what_could_not_be_handed_over_is_in_the_next_batch_too() {
    let mut wanted = Wanted::new(POLICY);
    wanted.replace((0..20).map(|n| (n, vec![peer(n, 0)])).collect());
    settle(&mut wanted);
    wanted.update(vec![(1, vec![peer(1, 1)])]);
    assert_eq!(take(&mut wanted), [1]);
    wanted.update(vec![(2, vec![peer(2, 1)])]);
    assert_eq!(take(&mut wanted), [1, 2]);
    settle(&mut wanted);
    assert!(take(&mut wanted).is_empty());
}

#[test]
fn the_problems_are_all_that_is_not_as_wanted_in_order() {
    for seed in 0..100 {
        let (mut rng, now) = (fastrand::Rng::with_seed(seed), Instant::now());
        let mut wanted = Wanted::new(POLICY);
        wanted.replace((0..100).map(|n| (n, vec![peer(n, 0)])).collect());
        settle(&mut wanted);
        for _ in 0..30 {
            let key = rng.u32(0..100);
            match rng.u8(0..6) {
                0 => drop(wanted.failed(&key, "no".to_owned(), now, &mut rng)),
                1 => drop(wanted.disturbed(&key, now, &mut rng)),
                2 => drop(wanted.update(vec![(key, vec![peer(key, rng.u32(0..9))])])),
                3 => drop(wanted.update(vec![(key, vec![])])),
                4 => drop(wanted.batch()),
                _ => wanted.seen(&key),
            }
            let walked = wanted.slots.iter().filter(|slot| !slot.good).map(|slot| slot.entry.key());
            let told = wanted.problems().map(|slot| slot.entry.key());
            assert!(told.eq(walked), "seed {seed}");
        }
    }
}

#[test]
fn no_secret_of_an_entry_is_shown_however_it_fares() {
    let mut wanted = Wanted::new(POLICY);
    let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
    wanted.set(1, vec![peer(1, 1), peer(2, 1)]);
    let mut shown = vec![format!("{:?}", peer(1, 1)), peer(1, 1).describe()];
    let mut show = |wanted: &Wanted<u32, Peer>| {
        let status = Status::of(wanted);
        shown.extend([format!("{status:?}"), status.to_string()]);
        shown.extend(status.problems.iter().map(|problem| format!("{problem} {problem:?}")));
        status
    };
    assert_eq!(show(&wanted).problems[0].to_string(), "peer 1 version 1: not yet written");
    settle(&mut wanted);
    assert!(show(&wanted).is_settled());
    wanted.failed(&2, "the device refuses it".to_owned(), now, &mut rng);
    let status = show(&wanted);
    assert_eq!(
        status.to_string(),
        "2 entries, 1 still to come (peer 2 version 1: the device refuses it)"
    );
    wanted.set(2, vec![Peer { psk: Secret::new("hunter22"), ..peer(2, 1) }]);
    assert_eq!(show(&wanted).contested, 1);
    assert!(shown.iter().all(|text| !text.contains(PSK)), "{shown:#?}");
}

#[test]
fn another_secret_is_another_version_to_be_written() {
    let mut wanted = Wanted::new(POLICY);
    wanted.set(1, vec![peer(1, 1)]);
    settle(&mut wanted);
    wanted.set(1, vec![Peer { psk: Secret::new("other"), ..peer(1, 1) }]);
    assert!(wanted.is_marked(&1));
}

#[test]
fn what_one_lets_go_and_another_takes_up_in_one_go_is_not_unwanted() {
    let mut wanted = Wanted::new(POLICY);
    assert_eq!(wanted.replace(vec![(1, vec![peer(1, 1), peer(2, 1)])]), []);
    assert_eq!(wanted.update(vec![(1, vec![]), (2, vec![peer(2, 1)])]), [peer(1, 1)]);
    assert_eq!(wanted.replace(vec![(3, vec![peer(3, 1)])]), [peer(2, 1)]);
}

fn report(
    wanted: &Wanted<u32, Peer>,
    of: Requesters<u32>,
    wrong_only: bool,
) -> Vec<(u32, String, EntryCondition, Option<String>)> {
    let reports = wanted.report(&EntryQuery { of, wrong_only }, Instant::now());
    reports.into_iter().map(|it| (it.requester, it.entry, it.condition, it.why)).collect()
}

#[test]
fn each_entry_says_to_whom_it_belongs_and_why_it_is_not_there() {
    let mut wanted = Wanted::new(POLICY);
    let (now, mut rng) = (Instant::now(), fastrand::Rng::with_seed(1));
    wanted.replace(vec![
        (1, vec![peer(10, 0)]),
        (2, vec![peer(20, 0), peer(21, 0)]),
        (3, vec![peer(10, 7)]),
    ]);
    let all = report(&wanted, Requesters::After(None), false);
    let missing = |it: &(u32, String, EntryCondition, Option<String>)| {
        (it.2, it.3.as_deref()) == (EntryCondition::Missing, Some("not yet written"))
    };
    assert!(all[..3].iter().all(missing), "{all:?}");
    settle(&mut wanted);
    wanted.failed(&21, "no such device".to_owned(), now, &mut rng);
    for _ in 0..POLICY.at_once {
        assert_eq!(wanted.disturbed(&20, now, &mut rng), Repair::Now);
        settle(&mut wanted);
    }
    assert!(matches!(wanted.disturbed(&20, now, &mut rng), Repair::Later(_)));
    let failure = report(&wanted, Requesters::After(None), true);
    let [left_alone, refused, contested] = &failure[..] else { panic!("{failure:?}") };
    assert_eq!((left_alone.0, left_alone.2), (2, EntryCondition::Missing));
    let why = left_alone.3.as_deref().unwrap();
    assert!(why.starts_with("changed by somebody else again and again"), "{why}");
    let no_device = Some("no such device".to_owned());
    let words = "peer 21 version 0".to_owned();
    assert_eq!(*refused, (2, words, EntryCondition::Refused, no_device));
    let why = Some("another requester wants another version: peer 10 version 0".to_owned());
    assert_eq!(*contested, (3, "peer 10 version 7".to_owned(), EntryCondition::Contested, why));
    // One by one, in order; and of those alone who are asked for.
    let of = |who| Requesters::These(vec![who]);
    assert_eq!(report(&wanted, of(3), true), failure[2..]);
    assert_eq!(report(&wanted, of(1), true), []);
    assert_eq!(report(&wanted, Requesters::After(Some(1)), false).len(), 3);
    assert_eq!(report(&wanted, Requesters::After(Some(3)), false), []);
}

#[test]
fn a_comparison_tries_all_that_waits_and_tells_what_it_found() {
    let mut wanted = Wanted::new(POLICY);
    let (now, mut rng) = (Instant::now(), fastrand::Rng::with_seed(1));
    wanted.replace((1..=4).map(|who| (who, vec![peer(who, 0)])).collect());
    settle(&mut wanted);
    wanted.failed(&1, "busy".to_owned(), now, &mut rng);
    wanted.failed(&2, "no such device".to_owned(), now, &mut rng);
    for _ in 0..POLICY.at_once {
        wanted.disturbed(&4, now, &mut rng);
        wanted.succeeded(&4);
    }
    wanted.begin_comparison();
    assert_eq!(wanted.next_wake(), None, "nothing waits any more");
    assert_eq!(wanted.disturbed(&3, now, &mut rng), Repair::Now);
    assert_eq!(wanted.disturbed(&4, now, &mut rng), Repair::Now, "not left alone once more");
    assert_eq!(take(&mut wanted), [1, 2, 3, 4]);
    wanted.succeeded(&1);
    wanted.succeeded(&3);
    wanted.succeeded(&4);
    wanted.failed(&2, "no such device".to_owned(), now, &mut rng);
    let found = wanted.end_comparison(now);
    let fates: Vec<_> = found.entries.iter().map(|it| (&*it.entry, it.state)).collect();
    let expected = [
        ("peer 1 version 0", EntryCondition::Programmed),
        ("peer 2 version 0", EntryCondition::Refused),
        ("peer 3 version 0", EntryCondition::Programmed),
        ("peer 4 version 0", EntryCondition::Programmed),
    ];
    assert_eq!((found.wanted, found.found, &fates[..]), (4, 4, &expected[..]));
    assert_eq!(wanted.end_comparison(now).found, 0, "nothing is noted when nobody has asked");
}

#[test]
fn what_is_counted_are_repairs_and_not_first_writes_nor_new_versions() {
    let mut wanted = Wanted::new(POLICY);
    let (now, mut rng) = (Instant::now(), fastrand::Rng::with_seed(1));
    wanted.replace(vec![(1, vec![peer(10, 0), peer(11, 0)]), (2, vec![peer(10, 7)])]);
    let of = |wanted: &Wanted<u32, Peer>| wanted.tally().kinds["peer"].clone();
    assert_eq!((of(&wanted).wanted, of(&wanted).missing, of(&wanted).repaired), (2, 2, 0));
    settle(&mut wanted);
    let tally = wanted.tally();
    assert_eq!((tally.contested, tally.incomplete), (1, [2].into()), "its version is not in force");
    assert_eq!((of(&wanted).programmed(), of(&wanted).repaired), (2, 0));
    wanted.update(vec![(1, vec![peer(10, 0), peer(11, 1)])]);
    settle(&mut wanted);
    assert_eq!(of(&wanted).repaired, 0, "another version is wanted: nobody has undone it");
    assert_eq!(wanted.disturbed(&11, now, &mut rng), Repair::Now);
    assert_eq!(of(&wanted).repaired, 0, "it is still to be put right");
    settle(&mut wanted);
    assert_eq!(of(&wanted).repaired, 1);
    wanted.disturbed(&11, now, &mut rng);
    wanted.seen(&11);
    assert_eq!(of(&wanted).repaired, 1, "whoever undid it has put it right himself");
    wanted.rewrite_where(|_, _| true);
    wanted.failed(&11, "no (os error 19)".to_owned(), now, &mut rng);
    settle(&mut wanted);
    let counts = of(&wanted);
    assert_eq!((counts.repaired, counts.refused), (2, [("no-device", 1)].into()));
}

#[test]
fn entries_come_in_order_of_their_keys_however_they_came_and_went() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut wanted = Wanted::new(POLICY);
        let mut model: BTreeMap<u32, Vec<Peer>> = BTreeMap::new();
        for _ in 0..60 {
            // Many at once, or one; each with entries of its own.
            let count = if rng.u8(0..4) == 0 { rng.u32(1..1_500) } else { 1 };
            let first = rng.u32(0..3_000);
            let mut list = |who: u32| -> Vec<Peer> {
                (0..rng.u32(0..3)).map(|n| peer(who * 2 + n, rng.u32(0..2))).collect()
            };
            let changes: Vec<_> = (first..first + count).map(|who| (who, list(who))).collect();
            model.extend(changes.iter().cloned());
            wanted.update(changes);
            let all: BTreeMap<u32, &Peer> =
                model.values().flatten().map(|peer| (peer.key(), peer)).collect();
            assert!(wanted.iter().eq(all.values().copied()), "seed {seed}");
            assert_eq!(wanted.len(), all.len(), "seed {seed}");
            let (from, to) = (rng.u32(0..8_000), rng.u32(0..8_000));
            let (from, to) = (from.min(to), from.max(to));
            assert!(wanted.range(from..to).eq(all.range(from..to).map(|it| *it.1)), "seed {seed}");
            assert!(wanted.range(..=to).eq(all.range(..=to).map(|it| *it.1)), "seed {seed}");
            assert_eq!(wanted.get(&from), all.get(&from).copied(), "seed {seed}");
        }
    }
}
