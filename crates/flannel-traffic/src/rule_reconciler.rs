//! Decides when to look and when to write. All it knows of the world comes through `System`; time is
//! passed in.
//!
//! A family's rules are looked at when they are set, when something near them was changed, and now and
//! then. If they are not as wished, one transaction makes them so, and another look confirms it.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, OnceAMinute, RepairHistory, RepairPolicy};
use ipnet::IpNet;

use crate::firewall::{Firewall, Wish};
use crate::rule::Keep;
use crate::sweep::Leftovers;
use crate::system::System;
use crate::{Family, Health, Mode, Rules, TrafficError};

/// Changes come in groups; this long after the first one we look.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// Where changes are heard of, a look every so many resync periods is only for safety's sake.
const SELDOM: u32 = 60;
const SHORTEST_RESYNC: Duration = Duration::from_secs(1);
const LONGEST_RESYNC: Duration = Duration::from_secs(24 * 3600);
/// Another daemon may write to a shared chain at the same time.
const TRIES: u32 = 3;

const REPAIR: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(100), Duration::from_secs(30)),
};

pub(crate) struct RuleReconciler {
    system: Box<dyn System>,
    resync: Duration,
    rng: fastrand::Rng,
    rules: Option<Rules>,
    firewall: Option<(Mode, Box<dyn Firewall>)>,
    /// What was swept last.
    swept: Option<Leftovers>,
    /// Networks of other daemons, when the rules were set.
    others: Vec<IpNet>,
    v4: FamilyState,
    v6: FamilyState,
}

/// The state of one family's rules.
#[derive(Default)]
struct FamilyState {
    /// When to look because there is reason to.
    due: Option<Instant>,
    /// When to look because it has been long.
    poll: Option<Instant>,
    /// They were as wished when last looked at.
    good: bool,
    /// They have been so at least once since this packet filter is in use.
    begun: bool,
    /// Networks whose rules were ours.
    former: Vec<IpNet>,
    /// Who is said to have changed something.
    by: Option<String>,
    /// Since when somebody is known to have changed something.
    disturbed: Option<Instant>,
    repairs: RepairHistory,
    /// How often they were put right after somebody had changed them.
    restored: u64,
    log: OnceAMinute,
    /// Why they are not as wished.
    problem: Option<String>,
}

enum Found {
    AsWished,
    /// They were not in place before, and are now.
    MadeSo,
    /// They had been, somebody changed them, and they are so again.
    Restored {
        by: Option<String>,
    },
    /// Somebody changed them, and they are left so for a while.
    LeftAlone {
        by: String,
        pause: Duration,
    },
}

impl FamilyState {
    /// In words for a message; empty if unknown.
    fn last_changed(&self) -> String {
        last_changed(self.by.as_deref())
    }
}

fn last_changed(by: Option<&str>) -> String {
    by.map(|by| format!(" (last changed by {by})")).unwrap_or_default()
}

impl RuleReconciler {
    pub(crate) fn new(system: Box<dyn System>, resync: Duration, seed: u64) -> Self {
        Self {
            system,
            resync: resync.clamp(SHORTEST_RESYNC, LONGEST_RESYNC),
            rng: fastrand::Rng::with_seed(seed),
            rules: None,
            firewall: None,
            swept: None,
            others: Vec::new(),
            v4: FamilyState::default(),
            v6: FamilyState::default(),
        }
    }

    /// Makes these the wished rules and applies them. Even if that fails they are what is kept from
    /// now on.
    pub(crate) fn set(&mut self, rules: Rules, now: Instant) -> Result<(), TrafficError> {
        let rules = rules.checked()?;
        let former = self.rules.replace(rules.clone());
        if self.firewall.as_ref().is_some_and(|(mode, _)| *mode != rules.mode) {
            self.firewall = None;
        }
        self.others = self.system.serve_networks(&rules.networks());
        for family in Family::BOTH {
            let network = former.as_ref().and_then(|rules| Some(rules.of(family)?.network));
            let state = self.state(family);
            state.former.extend(network);
            state.former.retain(|net| rules.of(family).is_none_or(|rules| rules.network != *net));
            (state.good, state.problem, state.poll) = (false, None, None);
            state.due = rules.of(family).is_some().then_some(now);
        }
        let errors = self.run_due(now);
        self.sweep();
        TrafficError::all(errors)
    }

    /// Looks at all rules, because somebody asks for it, and puts right what differs, also if that was left alone
    /// for a while. Returns for how many families there was something to put right.
    pub(crate) fn look_now(&mut self, now: Instant) -> Result<u64, TrafficError> {
        let before: u64 = self.restored().into_iter().sum();
        let Some(rules) = self.rules.clone() else { return Ok(0) };
        for family in Family::BOTH {
            let state = self.state(family);
            state.due = rules.of(family).is_some().then_some(now);
            state.repairs = RepairHistory::default();
        }
        let errors = self.run_due(now);
        TrafficError::all(errors)?;
        Ok(self.restored().into_iter().sum::<u64>() - before)
    }

    /// How often the rules of each family, in the order of [`Family::BOTH`], were put right after somebody had
    /// changed them.
    pub(crate) fn restored(&self) -> [u64; 2] {
        Family::BOTH.map(|family| match family {
            Family::V4 => self.v4.restored,
            Family::V6 => self.v6.restored,
        })
    }

    /// Does what is to be done by now.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.take_announcements(now);
        // They are said in the log and by `health`.
        drop(self.run_due(now));
        self.sweep();
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        [&self.v4, &self.v6].into_iter().flat_map(|state| [state.due, state.poll]).flatten().min()
    }

    /// Readable when changes have been announced.
    pub(crate) fn announcements(&self) -> Option<BorrowedFd<'_>> {
        self.system.announcements()
    }

    pub(crate) fn health(&self) -> Health {
        let problems: Vec<&str> =
            [&self.v4, &self.v6].into_iter().filter_map(|state| state.problem.as_deref()).collect();
        if problems.is_empty() { Health::Ok } else { Health::Broken(problems.join("; ")) }
    }

    fn state(&mut self, family: Family) -> &mut FamilyState {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Takes in what has been announced.
    fn take_announcements(&mut self, now: Instant) {
        // Even if it is nobody's concern it must be taken in, or the wait for it would never wait.
        let kind = self.firewall.as_ref().map(|(_, firewall)| firewall.kind());
        let mut disturbances = self.system.disturbances(kind);
        let rules = self.rules.as_ref();
        disturbances.retain(|disturbance| {
            kind.is_some() && rules.is_some_and(|rules| rules.of(disturbance.family).is_some())
        });
        for disturbance in disturbances {
            let state = self.state(disturbance.family);
            state.due.get_or_insert(now + DEBOUNCE);
            state.disturbed.get_or_insert(now);
            state.by = disturbance.by.or(state.by.take());
        }
    }

    fn run_due(&mut self, now: Instant) -> Vec<TrafficError> {
        let mut errors = Vec::new();
        for family in Family::BOTH {
            let is_past = |time: Option<Instant>| time.is_some_and(|time| time <= now);
            let (due, poll) = (self.state(family).due, self.state(family).poll);
            if is_past(due) || (due.is_none() && is_past(poll) && !self.is_unchanged(family)) {
                errors.extend(self.reconcile(family, now).err());
            } else if is_past(poll) {
                self.schedule_poll(family, now);
            }
        }
        errors
    }

    /// Without running anything.
    fn is_unchanged(&mut self, family: Family) -> bool {
        let good = self.state(family).good;
        good && self.firewall.as_mut().is_some_and(|(_, firewall)| firewall.is_unchanged(family))
    }

    fn schedule_poll(&mut self, family: Family, now: Instant) {
        let announced = self
            .firewall
            .as_ref()
            .is_some_and(|(_, firewall)| self.system.announces(firewall.kind()));
        let pause = if announced { self.resync * SELDOM } else { self.resync };
        self.state(family).poll = Some(now + pause);
    }

    fn reconcile(&mut self, family: Family, now: Instant) -> Result<(), TrafficError> {
        let disturbed = self.state(family).disturbed.take();
        let result = self.make_as_wished(family, now);
        self.schedule_poll(family, now);
        let mut rng = self.rng.fork();
        let state = self.state(family);
        state.by = None;
        match result {
            Ok(Found::LeftAlone { by, pause }) => {
                state.due = Some(now + pause);
                state.disturbed = disturbed;
                let problem = format!(
                    "the {family} traffic rules are changed by somebody else again and again{by}: \
                     leaving them for {pause:.0?} before the next try; stop the other manager"
                );
                if state.log.may_say(now).is_some() {
                    tracing::warn!("{problem}");
                }
                state.problem = Some(problem);
                Ok(())
            }
            Ok(found) => {
                let late = matches!(found, Found::MadeSo) && state.problem.is_some();
                state.restored += u64::from(late || matches!(found, Found::Restored { .. }));
                let after = disturbed.map(|since| since.elapsed().as_micros());
                let after_micros = after.map(|after| u64::try_from(after).unwrap_or(u64::MAX));
                if state.problem.is_some() {
                    tracing::info!(
                        event = "rules-restored",
                        after_micros,
                        "the {family} traffic rules are as they should be again"
                    );
                } else if let Found::Restored { by } = found {
                    let (undone_by, by) = (by.as_deref(), last_changed(by.as_deref()));
                    match state.log.may_say(now) {
                        // The history has each of them.
                        None => tracing::debug!(
                            event = "rules-restored",
                            undone_by,
                            after_micros,
                            "restored the {family} traffic rules{by}"
                        ),
                        Some(unsaid) => {
                            let often = match unsaid {
                                0 => String::new(),
                                unsaid => format!(", and {unsaid} times before that"),
                            };
                            tracing::info!(
                                event = "rules-restored",
                                undone_by,
                                after_micros,
                                "restored the {family} traffic rules{by}{often}"
                            );
                        }
                    }
                }
                state.repairs.written();
                (state.good, state.begun, state.problem) = (true, true, None);
                state.former.clear();
                Ok(())
            }
            Err(error) => {
                let pause = state.repairs.refused(&REPAIR, &mut rng);
                let problem = format!("{family} traffic rules: {error}");
                if state.problem.as_ref() != Some(&problem) {
                    tracing::warn!("cannot keep the {problem}; next try in {pause:.1?}");
                }
                (state.good, state.problem, state.due) = (false, Some(problem), Some(now + pause));
                Err(error)
            }
        }
    }

    /// Makes a family's rules as wished.
    fn make_as_wished(&mut self, family: Family, now: Instant) -> Result<Found, TrafficError> {
        let Some(rules) = self.rules.clone() else { return Ok(Found::AsWished) };
        if rules.of(family).is_none() {
            return Ok(Found::AsWished);
        }
        if self.firewall.is_none() {
            let firewall = self.system.open(&rules)?;
            self.firewall = Some((rules.mode, firewall));
            (self.v4.begun, self.v6.begun) = (false, false);
        }
        let _lock = self.system.lock_rules();
        // Somebody may have begun since.
        self.others = self.system.serve_networks(&rules.networks());
        let others = self.others.clone();
        let state = self.state(family);
        let keep = match state.begun {
            true => Keep::AllBut(state.former.clone()),
            false => Keep::Only(others),
        };
        let Some(wish) = Wish::of(&rules, family, keep) else { return Ok(Found::AsWished) };
        let mut outcome = Found::MadeSo;
        for _ in 0..TRIES {
            let Some(change) = self.look(family, &wish, now)? else { return Ok(Found::AsWished) };
            if std::mem::take(&mut self.state(family).good) {
                let mut rng = self.rng.fork();
                let state = self.state(family);
                let pause = state.repairs.undone(&REPAIR, now, &mut rng);
                // Later this will be ourselves.
                if !pause.is_zero() {
                    return Ok(Found::LeftAlone { by: state.last_changed(), pause });
                }
                outcome = Found::Restored { by: state.by.clone() };
            }
            self.write(family, &wish, change, now)?;
            if self.look(family, &wish, now)?.is_none() {
                return Ok(outcome);
            }
        }
        Err(TrafficError::NotTaken { family, by: self.state(family).last_changed() })
    }

    /// A look tells the outcome of all that was announced before it.
    fn look(
        &mut self,
        family: Family,
        wish: &Wish<'_>,
        now: Instant,
    ) -> Result<Option<String>, TrafficError> {
        self.take_announcements(now);
        self.state(family).due = None;
        match &mut self.firewall {
            Some((_, firewall)) => firewall.look(family, wish),
            None => Ok(None),
        }
    }

    /// Writes; what not every system can do is left out if need be.
    fn write(
        &mut self,
        family: Family,
        wish: &Wish<'_>,
        mut change: String,
        now: Instant,
    ) -> Result<(), TrafficError> {
        let mut errors = Vec::new();
        loop {
            let Some((_, firewall)) = &mut self.firewall else { return Ok(()) };
            let Err(error) = firewall.write(family, &change) else { return Ok(()) };
            let again = matches!(error, TrafficError::Failed { .. }) && firewall.settle_for_less();
            errors.push(error);
            if !again {
                // What was said to the full wish tells most.
                return Err(errors.swap_remove(0));
            }
            let Some(less) = self.look(family, wish, now)? else { return Ok(()) };
            change = less;
        }
    }

    /// Once ours is in place, removes what nobody wants any more.
    fn sweep(&mut self) {
        let Some(rules) = &self.rules else { return };
        let settled = [(Family::V4, &self.v4), (Family::V6, &self.v6)]
            .into_iter()
            .all(|(family, state)| state.good || rules.of(family).is_none());
        let leftovers = match &self.firewall {
            Some((_, firewall)) => Leftovers::beside(firewall.kind(), rules),
            None => Leftovers::all(),
        };
        if settled && self.swept.as_ref() != Some(&leftovers) {
            self.sweep_up(leftovers);
        }
    }

    fn sweep_up(&mut self, leftovers: Leftovers) {
        if self.others.is_empty() {
            let (removed, errors) = self.system.sweep(&leftovers);
            if !removed.is_empty() {
                tracing::info!("removed what nobody wants any more: {}", removed.join(", "));
            }
            for error in errors {
                tracing::warn!("{error}");
            }
        } else {
            let networks: Vec<String> = self.others.iter().map(ToString::to_string).collect();
            tracing::info!(
                "chains of unused kinds are left alone: they may be those of the daemon of {}",
                networks.join(", ")
            );
        }
        self.swept = Some(leftovers);
    }
}

#[cfg(test)]
#[path = "rule_reconciler_tests.rs"]
mod tests;
