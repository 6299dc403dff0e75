use std::sync::{Arc, Mutex, MutexGuard};

use flannel_entries::rules::{NodeRules, RulesContent};
use flannel_state::EntryCondition;
use flannel_wanted::{Problem, Status};

use super::*;
use crate::firewall::Kind;
use crate::system::Disturbance;
use crate::testing::{family, guard, net, node};

/// A node whose packet filter is a word per family.
#[derive(Default)]
struct World {
    v4: String,
    v6: String,
    heard: Vec<Disturbance>,
    deaf: bool,
    unchanged: bool,
    /// What the last look has found to be written.
    change: Vec<String>,
    missing: bool,
    refuses: u32,
    has_strays: bool,
    /// Whether guards cannot be written, nor what is written with them.
    refuses_guards: bool,
    ignores: bool,
    looks: u32,
    writes: u32,
    opened: u32,
    others: Vec<IpNet>,
    claimed: Vec<IpNet>,
    swept: Vec<Vec<Leftover>>,
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
        *self.rules(family) = GONE.into();
        self.heard.push(Disturbance { family, by: Some("vandal, process 7".into()) });
    }
}

const GONE: &str = "gone";

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<World>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

impl System for Shared {
    fn open(&mut self, _: Mode, _: Family) -> Result<Box<dyn Firewall>, TrafficError> {
        let mut world = self.lock();
        world.opened += 1;
        if world.missing {
            return Err(TrafficError::Missing { program: "iptables" });
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

    fn sweep(&mut self, leftovers: &[Leftover]) -> (Vec<String>, Vec<TrafficError>) {
        self.lock().swept.push(leftovers.to_vec());
        (Vec::new(), Vec::new())
    }
}

impl Firewall for Shared {
    fn kind(&self) -> Kind {
        Kind::Nftables
    }

    fn look(&mut self, family: Family, wish: &Wish) -> Result<Look, TrafficError> {
        let mut world = self.lock();
        world.looks += 1;
        world.keep = Some(wish.keep.clone());
        let wanted = wish.entries.iter().map(|entry| match &entry.content {
            RulesContent::Masquerade(rules) => format!("masquerade {}", rules.subnet),
            _ => format!("{} {}", entry.purpose(), entry.network),
        });
        let wanted: Vec<String> = wanted.collect();
        let lines: Vec<String> = world.rules(family).split("; ").map(ToOwned::to_owned).collect();
        let differs = |line: &String| !lines.contains(line);
        let differing = wish.entries.iter().zip(&wanted).filter(|(_, line)| differs(line));
        let differing = differing.map(|(entry, _)| entry.purpose()).collect();
        world.change = wanted;
        Ok(Look { differing, has_strays: world.has_strays, ..Look::default() })
    }

    fn write(&mut self, family: Family, purposes: &[Purpose]) -> Result<(), TrafficError> {
        let mut world = self.lock();
        world.writes += 1;
        let is_refused = world.refuses_guards && purposes.iter().any(|it| it.is_guard());
        if world.refuses > 0 || is_refused {
            world.refuses = world.refuses.saturating_sub(1);
            let (command, reason) = ("nft -f -".to_owned(), "no".to_owned());
            return Err(TrafficError::Failed { command, reason });
        }
        if !world.ignores {
            let is_written = |line: &String| {
                purposes.iter().any(|purpose| line.starts_with(&format!("{purpose} ")))
            };
            let mut lines: Vec<String> =
                world.rules(family).split("; ").map(ToOwned::to_owned).collect();
            lines.retain(|line| !is_written(line) && line != GONE && !line.is_empty());
            lines.extend(world.change.clone().into_iter().filter(is_written));
            lines.sort();
            *world.rules(family) = lines.join("; ");
            world.has_strays = false;
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
    reconciler: RuleReconciler<u8>,
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
        case.set(node(Mode::Nftables));
        case
    }

    fn set(&mut self, rules: NodeRules) {
        self.reconciler.replace(vec![(1, rules.entries())], self.now);
    }

    fn status(&self) -> Status {
        Status::of(self.reconciler.wanted())
    }

    /// What is wrong with the first entry that is not as wanted.
    fn problem(&self) -> String {
        self.status().problems.first().map(ToString::to_string).unwrap_or_default()
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

const SETTLED: &str = "forward 10.244.0.0/16; masquerade 10.244.65.0/24";

#[test]
fn setting_rules_writes_once_confirms_and_then_nothing_runs() {
    let mut case = Case::set_up();
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.looks_and_writes(), (2, 1));
    for _ in 0..10 {
        case.pass(RESYNC);
    }
    assert_eq!(case.world.lock().looks, 2, "its own echo is no reason to look");
    assert!(case.status().is_settled());
}

#[test]
fn where_changes_are_heard_of_a_look_is_rare() {
    let mut case = Case::set_up();
    case.world.lock().v4.clear();
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
    case.set(node(Mode::Nftables));
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
    assert_eq!(case.world.lock().v4, GONE);
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
    assert_eq!(case.world.lock().v6, GONE);
    assert_eq!(case.world.lock().looks, 2);
}

#[test]
fn two_changes_at_once_are_one_repair_of_each_family() {
    let mut case = Case::new();
    let mut rules = node(Mode::Nftables);
    rules.v6 = Some(family("fd00:244::/56", "fd00:244:0:24::/64"));
    case.set(rules);
    for _ in 0..3 {
        case.world.lock().vandalise(Family::V4);
        case.world.lock().vandalise(Family::V6);
    }
    case.react();
    assert_eq!(case.world.lock().v4, SETTLED);
    assert!(case.world.lock().v6.contains("masquerade fd00"));
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
    assert_eq!(case.world.lock().v4, GONE);
    let why = case.problem();
    assert!(why.contains("again and again (last changed by vandal, process 7)"), "{why}");
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().v4, GONE, "more of the same does not shorten it");
    case.pass(Duration::from_secs(2));
    assert_eq!(case.world.lock().v4, SETTLED);
    assert!(case.status().is_settled());
}

#[test]
fn whoever_asks_for_a_look_need_not_wait_for_the_pause() {
    let mut case = Case::set_up();
    assert_eq!(case.reconciler.compare(case.now).found, 0);
    for _ in 0..11 {
        case.world.lock().vandalise(Family::V4);
        case.react();
    }
    assert_eq!(case.world.lock().v4, GONE);
    assert_eq!(case.reconciler.restored(), [10, 0]);
    let compared = case.reconciler.compare(case.now);
    assert_eq!((compared.wanted, compared.found), (2, 2));
    assert!(compared.entries.iter().all(|it| it.state == EntryCondition::Programmed));
    assert_eq!(case.world.lock().v4, SETTLED);
    assert!(case.status().is_settled());
    assert_eq!(case.reconciler.restored(), [11, 0]);
}

#[test]
fn what_cannot_be_written_is_told_and_tried_again() {
    let mut case = Case::new();
    case.world.lock().refuses = 2;
    case.set(node(Mode::Nftables));
    let broken = "IPv4 masquerade rules of 10.244.0.0/16: nft -f -: no";
    assert_eq!(case.problem(), broken);
    case.pass(Duration::from_millis(150));
    assert_eq!(case.problem(), broken);
    assert_eq!(case.world.lock().writes, 2, "all of a family are tried again together");
    case.pass(Duration::from_secs(1));
    assert!(case.status().is_settled());
    assert_eq!(case.world.lock().v4, SETTLED);
}

#[test]
fn what_is_written_but_not_taken_is_an_error() {
    let mut case = Case::new();
    case.world.lock().ignores = true;
    case.set(node(Mode::Nftables));
    let why = case.problem();
    assert!(why.contains("somebody changes the IPv4 rules as soon as they are written"), "{why}");
    assert_eq!(case.world.lock().writes, TRIES);
}

#[test]
fn a_missing_program_is_looked_for_again() {
    let mut case = Case::new();
    case.world.lock().missing = true;
    case.set(node(Mode::Nftables));
    assert!(case.problem().contains("iptables is not installed"), "{}", case.problem());
    assert!(case.world.lock().swept.is_empty(), "what is there stays until ours is in place");
    assert!(case.reconciler.next_wake() > Some(case.now), "it waits for its next try");
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
    case.set(node(Mode::Nftables));
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
    case.set(node(Mode::Nftables));
    assert_eq!(case.world.lock().swept.len(), 1);
    let mut rules = node(Mode::Nftables);
    rules.v6 = Some(family("fd00:244::/56", "fd00:244:0:24::/64"));
    case.set(rules.clone());
    assert_eq!(case.world.lock().swept.len(), 2);
    rules.v4 = None;
    case.set(rules.clone());
    let has = |leftover| case.world.lock().swept.last().unwrap().contains(&leftover);
    assert!(has(Leftover::Table(Family::V4)) && !has(Leftover::Table(Family::V6)));
    (rules.masquerade, rules.forward) = (false, false);
    case.set(rules);
    let swept = case.world.lock().swept.clone();
    assert_eq!(swept[3][..2], Family::BOTH.map(Leftover::Table));
}

#[test]
fn wanting_nothing_from_the_start_needs_no_program() {
    let mut case = Case::new();
    let mut rules = node(Mode::Nftables);
    (rules.masquerade, rules.forward) = (false, false);
    case.set(rules);
    assert_eq!(case.world.lock().opened, 0);
    assert_eq!(case.world.lock().swept, [Leftover::all_of(None)]);
}

#[test]
fn defect_62_another_daemons_chains_are_not_swept_and_its_rules_are_kept() {
    let mut case = Case::new();
    case.world.lock().others = vec![net("10.9.0.0/16")];
    case.set(node(Mode::Nftables));
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
    case.set(rules);
    assert_eq!(case.world.lock().keep, Some(Keep::AllBut(vec![net("10.244.0.0/16")])));
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().keep, Some(Keep::AllBut(Vec::new())));
}

#[test]
fn another_mode_is_opened_anew() {
    let mut case = Case::set_up();
    case.set(node(Mode::Iptables));
    assert_eq!(case.world.lock().opened, 2);
    assert_eq!(case.world.lock().keep, Some(Keep::Only(Vec::new())));
}

#[test]
fn defect_61_no_resync_period_is_a_busy_loop_and_none_is_too_long() {
    for resync in [Duration::ZERO, Duration::MAX] {
        let world = Shared::default();
        world.lock().deaf = true;
        let mut reconciler = RuleReconciler::<u8>::new(Box::new(world.clone()), resync, 1);
        let now = Instant::now();
        reconciler.replace(vec![(1, node(Mode::Nftables).entries())], now);
        assert!(reconciler.next_wake().unwrap() >= now + SHORTEST_RESYNC);
        reconciler.tick(now + Duration::from_millis(999));
        assert_eq!(world.lock().looks, 2);
    }
}

fn guarded() -> NodeRules {
    let mut rules = node(Mode::Iptables);
    guard(rules.v4.as_mut().unwrap());
    rules
}

#[test]
fn masquerade_and_forward_rules_do_not_depend_on_guards_that_are_refused() {
    let mut case = Case::new();
    case.world.lock().refuses_guards = true;
    case.set(guarded());
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.world.lock().swept.len(), 1);
    let status = case.status();
    let entries: Vec<&str> = status.problems.iter().map(|it| it.entry.as_str()).collect();
    assert_eq!(
        entries,
        [
            "IPv4 tunnel guard input rules of 10.244.0.0/16",
            "IPv4 tunnel guard forward rules of 10.244.0.0/16"
        ]
    );
    let reason = &status.problems[0].reason;
    assert!(reason.contains("nft -f -: no; pods are not kept from sending"), "{reason}");
    assert!(status.has_all_needed() && !status.is_settled());
    case.world.lock().refuses_guards = false;
    case.pass(Duration::from_secs(1));
    assert!(case.status().is_settled());
}

#[test]
fn rules_that_nobody_touches_are_put_right_while_others_are_left_alone() {
    let mut case = Case::set_up();
    for _ in 0..11 {
        case.world.lock().v4 = "forward 10.244.0.0/16".into();
        case.world.lock().heard.push(Disturbance { family: Family::V4, by: None });
        case.react();
    }
    assert_eq!(case.world.lock().v4, "forward 10.244.0.0/16");
    case.world.lock().vandalise(Family::V4);
    case.react();
    assert_eq!(case.world.lock().v4, "forward 10.244.0.0/16");
    let bad: Vec<Problem> = case.status().problems;
    assert_eq!(bad.len(), 1, "{bad:?}");
    case.pass(Duration::from_secs(2));
    assert_eq!(case.world.lock().v4, SETTLED);
    assert_eq!(case.reconciler.restored(), [12, 0]);
}

#[test]
fn wanting_the_same_again_runs_nothing_and_wanting_other_rules_is_no_repair() {
    let mut case = Case::set_up();
    case.set(node(Mode::Nftables));
    assert_eq!(case.looks_and_writes(), (2, 1));
    let mut rules = node(Mode::Nftables);
    rules.v4.as_mut().unwrap().subnet = net("10.244.7.0/24");
    case.set(rules);
    assert_eq!(case.world.lock().v4, "forward 10.244.0.0/16; masquerade 10.244.7.0/24");
    assert_eq!(case.reconciler.restored(), [0, 0]);
}

#[test]
fn chains_of_former_wishes_are_no_repair_and_those_of_somebody_else_are() {
    let mut case = Case::set_up();
    case.world.lock().has_strays = true;
    let mut rules = node(Mode::Nftables);
    rules.forward = false;
    case.set(rules);
    assert!(!case.world.lock().has_strays);
    assert_eq!(case.reconciler.restored(), [0, 0]);
    case.world.lock().has_strays = true;
    case.world.lock().heard.push(Disturbance { family: Family::V4, by: None });
    case.react();
    assert!(!case.world.lock().has_strays);
    assert_eq!(case.reconciler.restored(), [1, 0]);
}
