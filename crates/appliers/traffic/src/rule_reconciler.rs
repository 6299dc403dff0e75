//! Decides when to look and what to write. The world is behind `System`; time is passed in.
//!
//! A family's rules are looked at when others are wanted, when something near them was changed, and now and
//! then. If they are not as wanted, one transaction makes them so, and another look confirms it. What is wanted, what
//! differs and when it is tried again is kept in `Wanted`, as for every applier.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, Family, RepairPolicy, Throttle};
use flannel_entries::rules::{Mode, Purpose, RulesKey, TrafficRules};
use flannel_wanted::{Comparison, Desired, KeyedEntry as _, Repair, Requester, Wanted};
use ipnet::IpNet;

use crate::TrafficError;
use crate::firewall::{Firewall, Look, Wish};
use crate::rule::Keep;
use crate::sweep::Leftover;
use crate::system::System;

/// Changes come in groups; this long after the first one we look.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// Where changes are heard of, a look every so many resync periods is only for safety's sake.
const SELDOM: u32 = 60;
const SHORTEST_RESYNC: Duration = Duration::from_secs(1);
const LONGEST_RESYNC: Duration = Duration::from_secs(24 * 3600);
/// Another daemon may write to a shared chain at the same time.
const TRIES: u32 = 3;

const POLICY: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(100), Duration::from_secs(30)),
};

/// What is to be done where guards are refused.
const GUARDS_NEED: &str = "pods are not kept from sending to the tunnel's port: that needs the table mangle of iptables, \
                           or nftables (\"EnableNFTables\": true in the network config)";

pub(crate) struct RuleReconciler<S> {
    system: Box<dyn System>,
    resync: Duration,
    rng: fastrand::Rng,
    wanted: Wanted<S, TrafficRules>,
    /// Nobody has said yet what is wanted: what there is stays.
    is_waiting: bool,
    firewall: Option<(Mode, Box<dyn Firewall>)>,
    swept: Option<Vec<Leftover>>,
    /// Networks of other daemons, when the rules were last written.
    others: Vec<IpNet>,
    /// In the order of [`Family::BOTH`].
    states: [FamilyState; 2],
}

#[derive(Default)]
struct FamilyState {
    /// When to look because there is reason to.
    due: Option<Instant>,
    /// When to look because it has been long.
    poll: Option<Instant>,
    /// Others are wanted than at the last look: chains of former ones are nobody's doing.
    is_new: bool,
    /// They have been as wanted at least once since this packet filter is in use.
    begun: bool,
    /// Networks whose rules were ours.
    former: Vec<IpNet>,
    /// Who is said to have changed something.
    by: Option<String>,
    /// Since when somebody is known to have changed something.
    disturbed: Option<Instant>,
    /// How often they were put right after somebody had changed them.
    restored: u64,
    /// The log has said that they are not as wanted.
    is_broken: bool,
    log: Throttle,
}

impl FamilyState {
    fn tell_restored(
        &mut self,
        family: Family,
        undone_by: Option<&str>,
        disturbed: Option<Instant>,
        now: Instant,
    ) {
        let after = disturbed.map(|since| since.elapsed().as_micros());
        let after_micros = after.map(|after| u64::try_from(after).unwrap_or(u64::MAX));
        let by = last_changed(undone_by);
        let (text, is_loud) = if std::mem::take(&mut self.is_broken) {
            (format!("the {family} traffic rules are as they should be again"), true)
        } else {
            let text = format!("restored the {family} traffic rules{by}");
            match self.log.pass(now) {
                None => (text, false),
                Some(0) => (text, true),
                Some(unsaid) => (format!("{text}, and {unsaid} times before that"), true),
            }
        };
        // The history has each of them.
        match is_loud {
            true => tracing::info!(event = "rules-restored", undone_by, after_micros, "{text}"),
            false => tracing::debug!(event = "rules-restored", undone_by, after_micros, "{text}"),
        }
    }
}

#[derive(Default)]
struct Outcome {
    /// Who is said to have changed them.
    by: Option<String>,
    /// Some are left as somebody made them, for so long.
    left_alone: Option<Duration>,
}

impl<S: Requester> RuleReconciler<S> {
    pub(crate) fn new(system: Box<dyn System>, resync: Duration, seed: u64) -> Self {
        Self {
            system,
            resync: resync.clamp(SHORTEST_RESYNC, LONGEST_RESYNC),
            rng: fastrand::Rng::with_seed(seed),
            wanted: Wanted::new(POLICY),
            is_waiting: true,
            firewall: None,
            swept: None,
            others: Vec::new(),
            states: Default::default(),
        }
    }

    pub(crate) fn wanted(&self) -> &Wanted<S, TrafficRules> {
        &self.wanted
    }

    /// Declares all that is wanted, and tries it.
    pub(crate) fn replace(&mut self, desired: Desired<S, TrafficRules>, now: Instant) {
        self.declare(now, |wanted| wanted.replace(desired));
    }

    /// Declares what single requesters want, and tries it.
    pub(crate) fn update(&mut self, changes: Desired<S, TrafficRules>, now: Instant) {
        self.declare(now, |wanted| wanted.update(changes));
    }

    fn declare(
        &mut self,
        now: Instant,
        declare: impl FnOnce(&mut Wanted<S, TrafficRules>) -> Vec<TrafficRules>,
    ) {
        let before = Family::BOTH.map(|family| self.entries(family));
        // What is no longer wanted goes with the next write, or is swept.
        drop(declare(&mut self.wanted));
        self.is_waiting = false;
        let mode = self.wanted.iter().next().map(|entry| entry.mode);
        self.firewall.take_if(|(opened, _)| mode != Some(*opened));
        if mode.is_none() {
            self.system.close();
        }
        self.serve_networks();
        for (family, before) in Family::BOTH.into_iter().zip(before) {
            let entries = self.entries(family);
            let is_kept = |net: &IpNet| entries.iter().any(|entry| entry.network == *net);
            let state = self.state(family);
            state.former.extend(before.first().map(|entry| entry.network));
            state.former.retain(|net| !is_kept(net));
            if entries != before {
                (state.is_new, state.poll) = (true, None);
                state.due = (!entries.is_empty()).then_some(now);
            }
        }
        self.tick(now);
    }

    /// Looks at all rules on request, and puts right what differs, even what is left alone for a while.
    pub(crate) fn compare(&mut self, now: Instant) -> Comparison {
        self.wanted.begin_comparison();
        for family in Family::BOTH {
            if !self.entries(family).is_empty() {
                self.reconcile(family, now);
            }
        }
        self.sweep();
        self.wanted.end_comparison(now)
    }

    /// How often each family's rules, in the order of [`Family::BOTH`], were restored.
    pub(crate) fn restored(&self) -> [u64; 2] {
        self.states.each_ref().map(|state| state.restored)
    }

    /// Does what is to be done by now.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.take_announcements(now);
        self.wanted.wake(now);
        let is_past = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        for family in Family::BOTH {
            let (due, poll) = (self.state(family).due, self.state(family).poll);
            let is_marked = self.entries(family).iter().any(|it| self.wanted.is_marked(&it.key()));
            if is_past(due) || is_marked {
                self.reconcile(family, now);
            } else if is_past(poll) {
                match due.is_none() && !self.is_unchanged(family) {
                    true => self.reconcile(family, now),
                    false => self.schedule_poll(family, now),
                }
            }
        }
        self.sweep();
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let states = self.states.iter().flat_map(|state| [state.due, state.poll]);
        states.chain([self.wanted.next_wake()]).flatten().min()
    }

    pub(crate) fn announcements(&self) -> Option<BorrowedFd<'_>> {
        self.system.announcements()
    }

    fn state(&mut self, family: Family) -> &mut FamilyState {
        &mut self.states[family as usize]
    }

    fn entries(&self, family: Family) -> Vec<TrafficRules> {
        self.wanted.iter().filter(|entry| entry.family() == family).cloned().collect()
    }

    /// Whether the family's rules are in place, guards aside: some packet filters have no room for those.
    fn is_settled(&self, family: Family) -> bool {
        let of_family = self.wanted.iter().filter(|entry| entry.family() == family);
        let mut needed = of_family.filter(|entry| !entry.purpose().is_guard());
        needed.all(|entry| self.wanted.is_good(&entry.key()) == Some(true))
    }

    /// How often entries were put right.
    fn repairs(&self) -> u64 {
        self.wanted.tally().kinds.values().map(|kind| kind.repaired).sum()
    }

    fn serve_networks(&mut self) {
        let mut networks: Vec<IpNet> = self.wanted.iter().map(|entry| entry.network).collect();
        networks.dedup();
        self.others = self.system.serve_networks(&networks);
    }

    fn take_announcements(&mut self, now: Instant) {
        // Even if it is nobody's concern it must be taken in, or the wait for it would never wait.
        let kind = self.firewall.as_ref().map(|(_, firewall)| firewall.kind());
        for disturbance in self.system.disturbances(kind) {
            if kind.is_none() || self.entries(disturbance.family).is_empty() {
                continue;
            }
            let state = self.state(disturbance.family);
            state.due.get_or_insert(now + DEBOUNCE);
            state.disturbed.get_or_insert(now);
            state.by = disturbance.by.or(state.by.take());
        }
    }

    /// Without running anything.
    fn is_unchanged(&mut self, family: Family) -> bool {
        self.firewall.as_mut().is_some_and(|(_, firewall)| firewall.is_unchanged(family))
    }

    fn schedule_poll(&mut self, family: Family, now: Instant) {
        let announced = self
            .firewall
            .as_ref()
            .is_some_and(|(_, firewall)| self.system.announces(firewall.kind()));
        let pause = if announced { self.resync * SELDOM } else { self.resync };
        self.state(family).poll = Some(now + pause);
    }

    fn reconcile(&mut self, family: Family, now: Instant) {
        // What fails is tried again when it is its turn.
        self.state(family).due = None;
        let disturbed = self.state(family).disturbed.take();
        let repairs = self.repairs();
        let outcome = self.make_as_wanted(family, now);
        self.schedule_poll(family, now);
        let (is_restored, is_settled) = (self.repairs() > repairs, self.is_settled(family));
        let state = self.state(family);
        (state.by, state.is_new) = (None, false);
        state.restored += u64::from(is_restored);
        if is_settled {
            state.begun = true;
            state.former.clear();
        } else {
            state.disturbed = disturbed;
        }
        if let Some(pause) = outcome.left_alone {
            state.is_broken |= !is_settled;
            if state.log.pass(now).is_some() {
                tracing::warn!(
                    "the {family} traffic rules are changed by somebody else again and again{}: leaving them for \
                     {pause:.0?} before the next try; stop the other manager",
                    last_changed(outcome.by.as_deref())
                );
            }
        } else if is_settled && (is_restored || state.is_broken) {
            state.tell_restored(family, outcome.by.as_deref(), disturbed, now);
        }
    }

    /// Makes a family's rules as wanted, as far as they are not left alone.
    fn make_as_wanted(&mut self, family: Family, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        // Those that an error is about.
        let mut concerned = Purpose::ALL.to_vec();
        if let Err(error) = self.try_make(family, &mut concerned, &mut outcome, now) {
            if concerned.is_empty() {
                concerned.extend(Purpose::ALL);
            }
            self.refused(family, &concerned, &error, now);
        }
        outcome
    }

    fn try_make(
        &mut self,
        family: Family,
        concerned: &mut Vec<Purpose>,
        outcome: &mut Outcome,
        now: Instant,
    ) -> Result<(), TrafficError> {
        let entries = self.entries(family);
        let Some(mode) = entries.first().map(|entry| entry.mode) else { return Ok(()) };
        if self.firewall.is_none() {
            self.firewall = Some((mode, self.system.open(mode, family)?));
            self.states.iter_mut().for_each(|state| state.begun = false);
        }
        let _lock = self.system.lock_rules();
        // Somebody may have begun since.
        self.serve_networks();
        let others = self.others.clone();
        let state = self.state(family);
        let (is_new, keep) = match state.begun {
            true => (state.is_new, Keep::AllBut(state.former.clone())),
            false => (state.is_new, Keep::Only(others)),
        };
        let wish = Wish { entries, keep };
        // What is undone together is put right together: the pauses are the same.
        let rng = self.rng.fork();
        let (mut refused, mut has_written) = (Vec::new(), false);
        for left in (0..=TRIES).rev() {
            let Look { mut differing, unseen, has_strays } = self.look(family, &wish, now)?;
            // Chains of former wishes go with the next write; others are somebody's doing.
            let has_leftovers = has_strays && is_new && !has_written;
            if has_strays && !has_leftovers {
                differing = Purpose::ALL.to_vec();
            }
            if !has_written {
                outcome.by = self.state(family).by.clone();
            }
            for (purpose, error) in unseen {
                self.refused(family, &[purpose], &error, now);
                refused.push(purpose);
            }
            concerned.clear();
            for key in wish.entries.iter().map(TrafficRules::key) {
                if refused.contains(&key.purpose) {
                    continue;
                }
                if !differing.contains(&key.purpose) {
                    match has_written {
                        true => self.wanted.succeeded(&key),
                        false => self.wanted.seen(&key),
                    }
                } else if self.is_to_be_written(&key, outcome, &rng, now) {
                    concerned.push(key.purpose);
                }
            }
            if concerned.is_empty() && !has_leftovers {
                return Ok(());
            }
            if left == 0 {
                break;
            }
            let (guards, others): (Vec<_>, Vec<_>) =
                concerned.iter().partition(|purpose| purpose.is_guard());
            match self.write(family, concerned) {
                // Guards need what not every iptables has, and the others do not depend on them.
                Err(error @ TrafficError::Failed { .. })
                    if !guards.is_empty() && !others.is_empty() =>
                {
                    self.refused(family, &guards, &error, now);
                    refused.extend(guards);
                }
                written => written?,
            }
            has_written = true;
        }
        Err(TrafficError::NotTaken { family, by: last_changed(self.state(family).by.as_deref()) })
    }

    /// What is not as wanted may be so because of somebody whom it is left to for a while.
    fn is_to_be_written(
        &mut self,
        key: &RulesKey,
        outcome: &mut Outcome,
        rng: &fastrand::Rng,
        now: Instant,
    ) -> bool {
        let repair = self.wanted.disturbed(key, now, &mut rng.clone());
        if let Some(by) = outcome.by.as_ref().filter(|_| repair != Repair::AlreadyDue) {
            self.wanted.undone_by(key, format!("last changed by {by}"));
        }
        if let Repair::Later(pause) = repair {
            outcome.left_alone = Some(pause);
        }
        self.wanted.is_marked(key)
    }

    /// A look tells the outcome of all that was announced before it.
    fn look(&mut self, family: Family, wish: &Wish, now: Instant) -> Result<Look, TrafficError> {
        self.take_announcements(now);
        self.state(family).due = None;
        match &mut self.firewall {
            Some((_, firewall)) => firewall.look(family, wish),
            None => Ok(Look::default()),
        }
    }

    fn write(&mut self, family: Family, purposes: &[Purpose]) -> Result<(), TrafficError> {
        match &mut self.firewall {
            Some((_, firewall)) => firewall.write(family, purposes),
            None => Ok(()),
        }
    }

    /// Rules could not be seen or written: they are tried again. What waits for its time waits on.
    fn refused(
        &mut self,
        family: Family,
        purposes: &[Purpose],
        error: &TrafficError,
        now: Instant,
    ) {
        let rng = self.rng.fork();
        let (mut news, mut next_try) = (Vec::new(), Duration::ZERO);
        for purpose in purposes {
            let key = RulesKey { family, purpose: *purpose };
            let Some(entry) = self.wanted.get(&key) else { continue };
            if self.wanted.is_good(&key) == Some(false) && !self.wanted.is_marked(&key) {
                continue;
            }
            let reason = match purpose.is_guard() && entry.mode == Mode::Iptables {
                true => format!("{error}; {GUARDS_NEED}"),
                false => error.to_string(),
            };
            let retry = self.wanted.failed(&key, reason, now, &mut rng.clone());
            if let Some((pause, true)) = retry {
                news.push(purpose.to_string());
                next_try = pause;
            }
            self.state(family).is_broken |= !purpose.is_guard();
        }
        if !news.is_empty() {
            let rules = news.join(", ");
            tracing::error!(
                "Cannot keep the {family} rules ({rules}): {error}; next try in {next_try:.1?}"
            );
        }
    }

    /// Once ours is in place, removes what nobody wants any more.
    fn sweep(&mut self) {
        if self.is_waiting || !Family::BOTH.into_iter().all(|family| self.is_settled(family)) {
            return;
        }
        let leftovers = match &self.firewall {
            Some((_, firewall)) => {
                let entries: Vec<TrafficRules> = self.wanted.iter().cloned().collect();
                Leftover::beside(firewall.kind(), &entries)
            }
            None => Leftover::all_of(None),
        };
        if self.swept.as_ref() != Some(&leftovers) {
            self.sweep_up(leftovers);
        }
    }

    fn sweep_up(&mut self, leftovers: Vec<Leftover>) {
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

/// In words for a message; empty if unknown.
fn last_changed(by: Option<&str>) -> String {
    by.map(|by| format!(" (last changed by {by})")).unwrap_or_default()
}

#[cfg(test)]
#[path = "rule_reconciler_tests.rs"]
mod tests;
