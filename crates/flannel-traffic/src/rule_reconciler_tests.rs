use std::sync::{Arc, Mutex, MutexGuard};

use super::*;
use crate::firewall::Kind;
use crate::rules::samples::{family, net, node};
use crate::system::Disturbance;

/// A node whose packet filter is a word per family.
#[derive(Default)]
struct World {
    v4: String,
    v6: String,
    heard: Vec<Disturbance>,
    deaf: bool,
    unchanged: bool,
    missing: bool,
    refuses: u32,
    ignores: bool,
    looks: u32,
    writes: u32,
    opened: u32,
    others: Vec<IpNet>,
    claimed: Vec<IpNet>,
    swept: Vec<Leftovers>,
    keep: Option<Keep>,
}

impl World {
    fn rules(&mut self, family: Family) -> &mut String {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Somebody changes a family's rules.
    fn vandalise(&mut self, family: Family) {
        *self.rules(family) = "gone".into();
        self.heard.push(Disturbance { family, by: Some("vandal, process 7".into()) });
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<World>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

impl System for Shared {
    fn open(&mut self, _: &Rules) -> Result<Box<dyn Firewall>, TrafficError> {
        let mut world = self.lock();
        world.opened += 1;
        if world.missing {
            return Err(TrafficError::NoneInstalled { program: "nft" });
        }
        Ok(Box::new(self.clone()))
    }

    fn announces(&self, _: Kind) -> bool {
        !self.lock().deaf
    }

    fn disturbances(&mut self, _: Option<Kind>) -> Vec<Disturbance> {
        std::mem::take(&mut self.lock().heard)
    }

    fn serve_networks(&mut self, networks: &[IpNet]) -> Vec<IpNet> {
        self.lock().claimed = networks.to_vec();
        self.lock().others.clone()
    }

    fn sweep(&mut self, leftovers: &Leftovers) -> (Vec<String>, Vec<TrafficError>) {
        self.lock().swept.push(leftovers.clone());
        (Vec::new(), Vec::new())
    }
}

impl Firewall for Shared {
    fn kind(&self) -> Kind {
        Kind::Nftables
    }

    fn look(&mut self, family: Family, wish: &Wish<'_>) -> Result<Option<String>, TrafficError> {
        let mut world = self.lock();
        world.looks += 1;
        world.keep = Some(wish.keep.clone());
        let wanted = format!("{} masquerade={}", wish.rules.subnet, wish.masquerade);
        Ok((*world.rules(family) != wanted).then_some(wanted))
    }

    fn write(&mut self, family: Family, change: &str) -> Result<(), TrafficError> {
        let mut world = self.lock();
        world.writes += 1;
        if world.refuses > 0 {
            world.refuses -= 1;
            let (command, reason) = ("nft -f -".to_owned(), "no".to_owned());
            return Err(TrafficError::Failed { command, reason });
        }
        if !world.ignores {
            *world.rules(family) = change.to_owned();
        }
        // The kernel tells of our own changes too.
        world.heard.push(Disturbance { family, by: Some("nft, process 1".into()) });
        Ok(())
    }

    fn is_unchanged(&mut self, _: Family) -> bool {
        self.lock().unchanged
    }
}

const RESYNC: Duration = Duration::from_secs(5);

struct Case {
    world: Shared,
    reconciler: RuleReconciler,
    now: Instant,
}

impl Case {
    fn new() -> Self {
        let world = Shared::default();
        let reconciler = RuleReconciler::new(Box::new(world.clone()), RESYNC, 1);
        Self { world, reconciler, now: Instant::now() }
    }

    fn set_up() -> Self {
        let mut case = Self::new();
        case.set(node(Mode::Nftables)).unwrap();
        case
    }

    fn set(&mut self, rules: Rules) -> Result<(), TrafficError> {
        self.reconciler.set(rules, self.now)
    }

    fn looks_and_writes(&self) -> (u32, u32) {
        let world = self.world.lock();
        (world.looks, world.writes)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.reconciler.tick(self.now);
    }

    /// Lets the reconciler hear, and then act.
    fn react(&mut self) {
        self.pass(Duration::ZERO);
        self.pass(DEBOUNCE);
    }
}

const SETTLED: &str = "10.244.65.0/24 masquerade=true";

#[test]
fn setting_rules_writes_once_confirms_and_then_nothing_runs() {
    let mut case = Case::set_up();
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.looks_and_writes(), (2, 1));
    for _ in 0..10 {
        case.pass(RESYNC);
    }
    assert_eq!(case.world.lock().looks, 2, "its own echo is no reason to look");
    assert_eq!(case.reconciler.health(), Health::Ok);
}

#[test]
fn where_changes_are_heard_of_a_look_is_rare() {
    let mut case = Case::set_up();
    case.world.lock().v4 = "changed in silence".into();
    case.pass(RESYNC * SELDOM - Duration::from_millis(1));
    assert_eq!(case.world.lock().looks, 2);
    case.pass(Duration::from_millis(1));
    assert_eq!(case.world.lock().v4, SETTLED);
}

#[test]
fn where_they_are_not_the_cheap_test_decides_every_time() {
    let mut case = Case::new();
    case.world.lock().deaf = true;
    case.world.lock().unchanged = true;
    case.set(node(Mode::Nftables)).unwrap();
    for _ in 0..100 {
        case.pass(RESYNC);
    }
    assert_eq!(case.world.lock().looks, 2);
    case.world.lock().unchanged = false;
    case.world.lock().v4.clear();
    case.pass(RESYNC);
    assert_eq!(case.world.lock().v4, SETTLED);
}

#[test]
fn a_change_is_repaired_after_the_debounce() {
    let mut case = Case::set_up();
    case.world.lock().vandalise(Family::V4);
    case.pass(Duration::ZERO);
    assert_eq!(case.world.lock().v4, "gone");
    assert_eq!(case.reconciler.next_wake(), Some(case.now + DEBOUNCE));
    case.pass(DEBOUNCE);
    assert_eq!(case.world.lock().v4, SETTLED);
}

#[test]
fn a_change_that_left_ours_as_they_were_is_looked_at_and_no_more() {
    let mut case = Case::set_up();
    case.world.lock().heard.push(Disturbance { family: Family::V4, by: None });
    case.react();
    assert_eq!(case.looks_and_writes(), (3, 1));
}

#[test]
fn a_family_nobody_wants_is_not_looked_at() {
    let mut case = Case::set_up();
    case.world.lock().vandalise(Family::V6);
    case.react();
    assert_eq!(case.world.lock().v6, "gone");
    assert_eq!(case.world.lock().looks, 2);
}

#[test]
fn two_changes_at_once_are_one_repair_of_each_family() {
    let mut case = Case::new();
    let mut rules = node(Mode::Nftables);
    rules.v6 = Some(family("fd00:244::/56", "fd00:244:0:24::/64"));
    case.set(rules).unwrap();
    for _ in 0..3 {
        case.world.lock().vandalise(Family::V4);
        case.world.lock().vandalise(Family::V6);
    }
    case.react();
    assert_eq!(case.world.lock().v4, SETTLED);
    assert!(case.world.lock().v6.starts_with("fd00"));
    assert_eq!(case.world.lock().writes, 4);
}

#[test]
fn somebody_who_undoes_again_and_again_is_met_with_a_pause_and_the_daemon_says_so() {
    let mut case = Case::set_up();
    for _ in 0..10 {
        case.world.lock().vandalise(Family::V4);
        case.react();
        assert_eq!(case.world.lock().v4, SETTLED);
    }
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().v4, "gone");
    let Health::Broken(why) = case.reconciler.health() else { panic!("it is broken") };
    assert!(why.contains("vandal, process 7"), "{why}");
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().v4, "gone", "more of the same does not shorten it");
    case.pass(Duration::from_secs(2));
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.reconciler.health(), Health::Ok);
}

#[test]
fn whoever_asks_for_a_look_need_not_wait_for_the_pause() {
    let mut case = Case::set_up();
    assert_eq!(case.reconciler.look_now(case.now).unwrap(), 0);
    for _ in 0..11 {
        case.world.lock().vandalise(Family::V4);
        case.react();
    }
    assert_eq!(case.world.lock().v4, "gone");
    assert_eq!(case.reconciler.restored(), [10, 0]);
    assert_eq!(case.reconciler.look_now(case.now).unwrap(), 1);
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.reconciler.health(), Health::Ok);
    assert_eq!(case.reconciler.restored(), [11, 0]);
}

#[test]
fn what_cannot_be_written_is_told_and_tried_again() {
    let mut case = Case::new();
    case.world.lock().refuses = 2;
    let error = case.set(node(Mode::Nftables)).unwrap_err().to_string();
    assert_eq!(error, "nft -f -: no");
    let broken = Health::Broken("IPv4 traffic rules: nft -f -: no".into());
    assert_eq!(case.reconciler.health(), broken);
    case.pass(Duration::from_millis(150));
    assert_eq!(case.reconciler.health(), broken);
    case.pass(Duration::from_secs(1));
    assert_eq!(case.reconciler.health(), Health::Ok);
    assert_eq!(case.world.lock().v4, SETTLED);
}

#[test]
fn what_is_written_but_not_taken_is_an_error() {
    let mut case = Case::new();
    case.world.lock().ignores = true;
    let error = case.set(node(Mode::Nftables)).unwrap_err();
    assert!(matches!(error, TrafficError::NotTaken { family: Family::V4, .. }), "{error}");
    assert_eq!(case.world.lock().writes, TRIES);
}

#[test]
fn a_missing_program_is_looked_for_again() {
    let mut case = Case::new();
    case.world.lock().missing = true;
    let error = case.set(node(Mode::Nftables)).unwrap_err();
    assert!(matches!(error, TrafficError::NoneInstalled { .. }), "{error}");
    assert!(case.world.lock().swept.is_empty(), "what is there stays until ours is in place");
    case.world.lock().missing = false;
    case.pass(Duration::from_secs(1));
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.world.lock().swept.len(), 1);
}

#[test]
fn what_is_announced_is_taken_in_even_if_there_is_nothing_to_keep() {
    let mut case = Case::new();
    case.world.lock().missing = true;
    case.world.lock().vandalise(Family::V4);
    case.pass(Duration::ZERO);
    assert!(case.world.lock().heard.is_empty(), "before anything is wished");
    case.set(node(Mode::Nftables)).unwrap_err();
    let due = case.reconciler.next_wake();
    case.world.lock().vandalise(Family::V4);
    case.pass(Duration::ZERO);
    assert!(case.world.lock().heard.is_empty(), "without a packet filter");
    assert_eq!(case.reconciler.next_wake(), due, "and it is no reason to hurry");
}

#[test]
fn the_rest_is_swept_once_ours_is_in_place_and_when_the_rest_becomes_another() {
    let mut case = Case::set_up();
    assert_eq!(case.world.lock().swept.len(), 1);
    case.set(node(Mode::Nftables)).unwrap();
    assert_eq!(case.world.lock().swept.len(), 1);
    let mut rules = node(Mode::Nftables);
    rules.v6 = Some(family("fd00:244::/56", "fd00:244:0:24::/64"));
    case.set(rules.clone()).unwrap();
    assert_eq!(case.world.lock().swept.len(), 2);
    rules.v4 = None;
    case.set(rules.clone()).unwrap();
    assert_eq!(case.world.lock().swept[2].tables, [Family::V4]);
    (rules.masquerade, rules.forward) = (false, false);
    case.set(rules).unwrap();
    assert_eq!(case.world.lock().swept[3].tables, Family::BOTH);
}

#[test]
fn wanting_nothing_from_the_start_needs_no_program() {
    let mut case = Case::new();
    let mut rules = node(Mode::Nftables);
    (rules.masquerade, rules.forward) = (false, false);
    case.set(rules).unwrap();
    assert_eq!(case.world.lock().opened, 0);
    assert_eq!(case.world.lock().swept, [Leftovers::all()]);
}

#[test]
fn defect_62_another_daemons_chains_are_not_swept_and_its_rules_are_kept() {
    let mut case = Case::new();
    case.world.lock().others = vec![net("10.9.0.0/16")];
    case.set(node(Mode::Nftables)).unwrap();
    assert!(case.world.lock().swept.is_empty());
    assert_eq!(case.world.lock().keep, Some(Keep::Only(vec![net("10.9.0.0/16")])));
    assert_eq!(case.world.lock().claimed, [net("10.244.0.0/16")]);
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().keep, Some(Keep::AllBut(Vec::new())));
}

#[test]
fn the_rules_of_a_network_left_behind_are_not_kept_as_another_daemons() {
    let mut case = Case::set_up();
    let mut rules = node(Mode::Nftables);
    rules.v4 = Some(family("10.9.0.0/16", "10.9.1.0/24"));
    case.set(rules).unwrap();
    assert_eq!(case.world.lock().keep, Some(Keep::AllBut(vec![net("10.244.0.0/16")])));
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().keep, Some(Keep::AllBut(Vec::new())));
}

#[test]
fn another_mode_is_opened_anew() {
    let mut case = Case::set_up();
    case.set(node(Mode::Iptables)).unwrap();
    assert_eq!(case.world.lock().opened, 2);
    assert_eq!(case.world.lock().keep, Some(Keep::Only(Vec::new())));
}

#[test]
fn defect_61_no_resync_period_is_a_busy_loop_and_none_is_too_long() {
    for resync in [Duration::ZERO, Duration::MAX] {
        let world = Shared::default();
        world.lock().deaf = true;
        let mut reconciler = RuleReconciler::new(Box::new(world.clone()), resync, 1);
        let now = Instant::now();
        reconciler.set(node(Mode::Nftables), now).unwrap();
        assert!(reconciler.next_wake().unwrap() >= now + SHORTEST_RESYNC);
        reconciler.tick(now + Duration::from_millis(999));
        assert_eq!(world.lock().looks, 2);
    }
}

#[test]
fn rules_that_make_no_sense_change_nothing() {
    let mut case = Case::set_up();
    let mut rules = node(Mode::Nftables);
    rules.v4.as_mut().unwrap().subnet = net("fd00::/64");
    case.set(rules).unwrap_err();
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.reconciler.health(), Health::Ok);
}
