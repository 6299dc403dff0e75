//! The desired state as owners, repairs and failures change it.

use super::*;
use crate::{Entry, IfName, Key, Mac, Neighbour};
use ipnet::IpNet;

fn neighbour(ip: u8, mac: u8) -> Entry {
    Entry::Neighbour(Neighbour {
        link: IfName::new("flannel.1").unwrap(),
        ip: [10, 244, ip, 0].into(),
        mac: Mac([2, 0, 0, 0, 0, mac]),
    })
}

fn take(wanted: &mut Wanted<u32, Entry>) -> Vec<Key> {
    let batch = wanted.batch();
    wanted.entries(&batch).map(|(key, _)| key.clone()).collect()
}

fn settle(wanted: &mut Wanted<u32, Entry>) {
    let batch = wanted.batch();
    wanted.written(batch, &BTreeSet::new());
}

#[test]
fn filling_at_once_is_the_same_as_setting_one_by_one() {
    let desired: Vec<(u32, Vec<Entry>)> = (0..50)
        .map(|n| (n, vec![neighbour(n as u8, 1), neighbour((n / 2 + 100) as u8, n as u8)]))
        .collect();
    let mut filled = Wanted::new(REPAIRS);
    filled.fill(desired.clone());
    let mut set = Wanted::new(REPAIRS);
    for (owner, entries) in desired.into_iter().rev() {
        set.set(owner, entries);
    }
    assert_eq!(filled.contested(), 25);
    for wanted in [&mut filled, &mut set] {
        assert_eq!(wanted.bad(), 75);
        assert_eq!(take(wanted).len(), 75);
    }
    for (key, slot) in &set.slots {
        assert_eq!(filled.get(key), Some(&slot.entry));
    }
    settle(&mut filled);
    assert!(!filled.is_dirty() && filled.bad() == 0);
    for owner in 0..50 {
        filled.set(owner, Vec::new());
    }
    assert_eq!(filled.len(), 0);
}

#[test]
fn an_owners_entries_are_replaced_as_a_whole() {
    let mut wanted = Wanted::new(REPAIRS);
    assert_eq!(wanted.set(1, vec![neighbour(1, 1), neighbour(2, 1)]), []);
    settle(&mut wanted);
    assert_eq!(wanted.set(1, vec![neighbour(2, 9), neighbour(3, 1)]), [neighbour(1, 1)]);
    let dirty = take(&mut wanted);
    assert_eq!(dirty, [neighbour(2, 9).key(), neighbour(3, 1).key()]);
    assert_eq!(wanted.set(1, vec![]), [neighbour(2, 9), neighbour(3, 1)]);
    assert_eq!(wanted.len(), 0);
}

#[test]
fn an_unchanged_entry_is_not_written_again() {
    let mut wanted = Wanted::new(REPAIRS);
    wanted.set(1, vec![neighbour(1, 1)]);
    settle(&mut wanted);
    wanted.set(1, vec![neighbour(1, 1)]);
    assert!(!wanted.is_dirty());
}

#[test]
fn the_lower_owner_wins_whatever_the_order_of_arrival() {
    for order in [[1, 2], [2, 1]] {
        let mut wanted = Wanted::new(REPAIRS);
        for owner in order {
            wanted.set(owner, vec![neighbour(7, owner as u8)]);
        }
        let key = neighbour(7, 1).key();
        assert_eq!(wanted.get(&key), Some(&neighbour(7, 1)));
        assert_eq!(wanted.set(1, vec![]), []);
        assert_eq!(wanted.get(&key), Some(&neighbour(7, 2)));
        assert_eq!(wanted.set(2, vec![]), [neighbour(7, 2)]);
    }
}

#[test]
fn what_failed_is_tried_again_when_circumstances_change() {
    let mut wanted = Wanted::new(REPAIRS);
    let mut rng = fastrand::Rng::with_seed(1);
    let now = Instant::now();
    let key = neighbour(1, 1).key();
    wanted.set(1, vec![neighbour(1, 1), neighbour(2, 1)]);
    for _ in 0..9 {
        take(&mut wanted);
        wanted.failed(&key, "no such device".to_owned(), now, &mut rng);
        wanted.succeeded(&neighbour(2, 1).key());
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
    let mut wanted = Wanted::new(REPAIRS);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = Instant::now();
    let key = neighbour(1, 1).key();
    wanted.set(1, vec![neighbour(1, 1)]);
    settle(&mut wanted);
    for _ in 0..REPAIRS.at_once {
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
    now += REPAIRS.calm + Duration::from_secs(1);
    assert_eq!(wanted.disturbed(&key, now, &mut rng), Repair::Now, "calm restores patience");
}

#[test]
fn a_failing_entry_is_retried_with_growing_pauses_and_says_so_once() {
    let mut wanted = Wanted::new(REPAIRS);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = Instant::now();
    let key = neighbour(1, 1).key();
    wanted.set(1, vec![neighbour(1, 1)]);
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
        pauses[11] <= REPAIRS.refused.most.mul_f64(1.25) && pauses[11] > Duration::from_secs(20)
    );
    take(&mut wanted);
    wanted.succeeded(&key);
    assert_eq!(wanted.problems().count(), 0);
    assert_eq!(wanted.next_wake(), None);
}

#[test]
fn an_entry_nobody_wants_any_more_is_not_retried() {
    let mut wanted = Wanted::new(REPAIRS);
    let mut rng = fastrand::Rng::with_seed(1);
    let now = Instant::now();
    wanted.set(1, vec![neighbour(1, 1)]);
    take(&mut wanted);
    wanted.failed(&neighbour(1, 1).key(), "no".into(), now, &mut rng);
    wanted.set(1, vec![]);
    assert_eq!(wanted.next_wake(), None);
    wanted.wake(now + Duration::from_secs(3600));
    assert!(!wanted.is_dirty());
}

fn route(n: u32, link: &str) -> Entry {
    Entry::Route(crate::Route {
        dst: IpNet::new(std::net::Ipv4Addr::from(0x0af4_0000 + (n << 8)).into(), 24).unwrap(),
        metric: 0,
        via: None,
        link: IfName::new(link).unwrap(),
        onlink: false,
    })
}

#[test]
fn which_devices_are_referred_to_follows_every_change() {
    let devices = ["flannel.1", "eth0", "eth1"].map(|name| IfName::new(name).unwrap());
    let mut rng = fastrand::Rng::with_seed(1);
    let mut wanted = Wanted::new(REPAIRS);
    for round in 0..2000 {
        let entries =
            (0..rng.u32(0..4)).map(|_| route(rng.u32(0..3), devices[rng.usize(0..3)].as_str()));
        let entries: Vec<Entry> = entries.collect();
        if round % 100 == 0 {
            wanted = Wanted::new(REPAIRS);
            wanted.fill(vec![(0, entries.clone()), (1, entries)]);
        } else {
            wanted.set(rng.u32(0..3), entries);
        }
        for name in devices {
            let walked = wanted.iter().any(|(_, entry)| entry.link() == Some(name));
            assert_eq!(wanted.refers_to(&name), walked, "{name} in round {round}");
        }
    }
}

/// Prints what a veth that comes or goes costs. `cargo test -p flannel-kernel -- --nocapture foreign_device`
#[test]
fn a_foreign_device_is_known_as_such_among_any_number_of_entries() {
    let veth = IfName::new("veth0").unwrap();
    let cost = |count: u32| {
        let mut wanted = Wanted::new(REPAIRS);
        wanted.fill((0..count).map(|n| (n, vec![route(n, "flannel.1")])).collect());
        let begin = Instant::now();
        assert!((0..100).all(|_| !std::hint::black_box(&wanted).refers_to(&veth)));
        begin.elapsed() / 100
    };
    let (few, many) = (cost(30), cost(30_000));
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!(
        "one event of a foreign device: {few:?} at 30 entries, {many:?} at 30,000: {ratio:.1}x"
    );
}

/// Not of the kernel, and with a secret: it has no way to be printed.
#[derive(Clone, PartialEq)]
struct Tunnel {
    peer: u8,
    secret: [u8; 4],
}

impl KeyedEntry for Tunnel {
    type Key = u8;
    type Device = &'static str;

    fn key(&self) -> u8 {
        self.peer
    }

    fn devices(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once("wg0")
    }
}

#[test]
fn entries_of_any_kind_are_kept_retried_and_let_go() {
    let mut wanted: Wanted<u32, Tunnel> = Wanted::new(REPAIRS);
    let (mut rng, now) = (fastrand::Rng::with_seed(1), Instant::now());
    wanted.set(1, vec![Tunnel { peer: 1, secret: [1; 4] }, Tunnel { peer: 2, secret: [2; 4] }]);
    assert!(wanted.refers_to(&"wg0") && !wanted.refers_to(&"wg1"));
    let batch = wanted.batch();
    wanted.written(batch, &BTreeSet::from([2]));
    let (pause, _) = wanted.failed(&2, "refused".to_owned(), now, &mut rng).unwrap();
    let problems: Vec<(u8, &str)> = wanted.problems().map(|(key, _, why)| (*key, why)).collect();
    assert_eq!(problems, [(2, "refused")]);
    wanted.wake(now + pause);
    assert!(wanted.is_marked(&2) && !wanted.is_marked(&1));
    wanted.succeeded(&2);
    assert_eq!(wanted.disturbed(&1, now, &mut rng), Repair::Now);
    wanted.set(1, vec![Tunnel { peer: 1, secret: [9; 4] }]);
    assert!(wanted.get(&1).is_some_and(|tunnel| tunnel.secret == [9; 4]));
    assert!(wanted.is_marked(&1) && wanted.get(&2).is_none());
}
