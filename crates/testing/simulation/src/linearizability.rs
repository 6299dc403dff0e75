//! Whether all answers of the lease server can be explained by one order of all operations, each of them done at some
//! moment between its call and its answer. The search is that of `todc-utils`; here are the models.
//!
//! Histories are searched in parts, each much shorter than the whole: the leases of one subnet, the config, and the
//! revisions. Where a model does not know what the server chose (which subnet an unanswered request took), it goes on
//! with every possibility, so what it refuses is wrong for sure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flannel_lease::{LEASE_TTL, Subnet};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use crate::operations::{Answer, Call, LeaseSeen, Machine, Operation};

/// Operations of a part that are shown when it is wrong.
const SHOWN_OPERATIONS: usize = 12;
/// Shortest life of a lease that was brought in from elsewhere.
const IMPORTED_LIFE_MS: u64 = 600_000;
const NEVER: u64 = u64::MAX;

/// An answer that no order explains.
#[derive(Clone, Debug)]
pub(crate) struct Unexplained {
    /// What the answer is about.
    part: String,
    /// The operation with the answer, and those before it.
    operations: Vec<Operation>,
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, operations } = self;
        write!(f, "the answers about {part} are not linearizable")?;
        if let Some(last) = operations.last() {
            write!(f, ": no order of the requests explains what {} was told", last.client)?;
            let at = last.answer.as_ref().map(|(at, _)| at.at);
            write!(f, " at {:.3}", at.unwrap_or_default().as_secs_f64())?;
        }
        Ok(())
    }
}

impl Unexplained {
    /// The end of the history of this part, for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let hidden = self.operations.len().saturating_sub(SHOWN_OPERATIONS);
        let mut lines = vec![format!(
            "what clients asked and were told about {} ({hidden} before):",
            self.part
        )];
        lines.push("    asked at  answered at  client".to_owned());
        lines.extend(self.operations[hidden..].iter().map(line));
        lines
    }
}

/// An operation for people.
pub(crate) fn line(operation: &Operation) -> String {
    let Operation { client, network, called, call, answer } = operation;
    let called = called.at.as_secs_f64();
    let (answered, answer) = match answer {
        Some((at, answer)) => (format!("{:.3}", at.at.as_secs_f64()), answer.to_string()),
        None => ("never".to_owned(), "nothing that says whether it was done".to_owned()),
    };
    let network = if network == "_" { String::new() } else { format!(" ({network})") };
    format!("{called:>12.3} {answered:>12}  {client}{network}: {call}: {answer}")
}

/// Checks a history; returns the first answer of a part that cannot be explained.
pub(crate) fn check(history: &[Operation]) -> Result<(), Unexplained> {
    let networks: BTreeSet<&str> = history.iter().map(|it| it.network.as_str()).collect();
    for network in networks {
        let named = |what: String| match network {
            "_" => what,
            _ => format!("{what} of network {network}"),
        };
        let own: Vec<&Operation> = history
            .iter()
            .filter(|it| it.network == network || it.call == Call::StoreReplaced)
            .collect();
        for subnet in subnets(&own) {
            let holders = holders(&own, subnet);
            let project = |it: &Operation, cut| LeaseStep::of(it, subnet, &holders, cut);
            check_part::<LeaseModel>(named(subnet.to_string()), &own, project)?;
        }
        check_part::<ConfigModel>(named("the config".into()), &own, ConfigStep::of)?;
    }
    let all: Vec<&Operation> = history.iter().collect();
    check_part::<RevisionModel>("revisions".into(), &all, RevisionStep::of)
}

/// Every subnet that anybody has asked for or heard of.
fn subnets(history: &[&Operation]) -> BTreeSet<Subnet> {
    let mut all = BTreeSet::new();
    for operation in history {
        match &operation.call {
            Call::Renew { subnet, .. }
            | Call::Release { subnet, .. }
            | Call::Reserve { subnet, .. }
            | Call::Unreserve { subnet }
            | Call::Import { subnet, .. } => {
                all.insert(*subnet);
            }
            _ => {}
        }
        match &operation.answer {
            Some((_, Answer::Lease(subnet, _))) => {
                all.insert(*subnet);
            }
            Some((_, Answer::Leases(leases))) => all.extend(leases.iter().map(|it| it.0)),
            _ => {}
        }
    }
    all
}

/// Every machine that may have had this subnet.
fn holders(history: &[&Operation], subnet: Subnet) -> Vec<Machine> {
    let mut all = BTreeSet::new();
    for operation in history {
        match &operation.call {
            Call::Renew { subnet: of, machine, .. }
            | Call::Reserve { subnet: of, machine }
            | Call::Import { subnet: of, machine }
                if *of == subnet =>
            {
                all.insert(*machine);
            }
            _ => {}
        }
        match &operation.answer {
            Some((_, Answer::Lease(of, lease))) if *of == subnet => {
                all.insert(lease.machine);
            }
            Some((_, Answer::Leases(leases))) => {
                all.extend(leases.iter().filter(|it| it.0 == subnet).map(|it| it.1.machine));
            }
            _ => {}
        }
    }
    all.into_iter().collect()
}

/// Searches one part. If it is wrong, looks for the first answer up to which it is.
fn check_part<M: Specification<Operation: Clone>>(
    part: String,
    history: &[&Operation],
    project: impl Fn(&Operation, u64) -> Option<M::Operation>,
) -> Result<(), Unexplained> {
    let is_good = |cut: u64| {
        let steps: Vec<(u64, u64, M::Operation)> = history
            .iter()
            .filter(|it| it.called.order < cut)
            .filter_map(|it| Some((it.called.order, answered_at(it, cut), project(it, cut)?)))
            .collect();
        is_linearizable::<M>(steps)
    };
    if is_good(NEVER) {
        return Ok(());
    }
    let mut ends: Vec<u64> =
        history.iter().filter_map(|it| Some(it.answer.as_ref()?.0.order + 1)).collect();
    ends.sort_unstable();
    let first_bad = ends.partition_point(|end| is_good(*end));
    let cut = ends.get(first_bad).copied().unwrap_or(NEVER);
    let concerned = history.iter().filter(|it| it.called.order < cut && project(it, cut).is_some());
    let mut operations: Vec<Operation> = concerned.map(|it| (*it).clone()).collect();
    for operation in &mut operations {
        operation.answer = operation.answer.take().filter(|(at, _)| at.order < cut);
    }
    // The one that cannot be explained comes last.
    operations.sort_by_key(|it| match answered_at(it, cut) {
        NEVER => it.called.order,
        answered => answered,
    });
    Err(Unexplained { part, operations })
}

/// Place of the answer, if it came before the cut.
fn answered_at(operation: &Operation, cut: u64) -> u64 {
    let answered = operation.answer.as_ref().map(|(at, _)| at.order);
    answered.filter(|at| *at < cut).unwrap_or(NEVER)
}

fn is_linearizable<M: Specification>(steps: Vec<(u64, u64, M::Operation)>) -> bool {
    let mut actions = Vec::new();
    for (number, (called, answered, step)) in steps.into_iter().enumerate() {
        actions.push((called, number, Action::Call(step.clone())));
        actions.push((answered, number, Action::Response(step)));
    }
    if actions.is_empty() {
        return true;
    }
    actions.sort_by_key(|(order, number, _)| (*order, *number));
    let actions = actions.into_iter().map(|(_, number, action)| (number, action)).collect();
    WGLChecker::<M>::is_linearizable(History::from_actions(actions))
}

/// One subnet: who has it.
struct LeaseModel;

/// What may be known of a subnet. Versions grow, so of each state is known above what its version is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LeaseState {
    /// The store was replaced.
    Unknown,
    Free {
        after: u64,
    },
    Held {
        machine: Machine,
        version: Version,
        reserved: bool,
        until_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Version {
    Exactly(u64),
    Above(u64),
}

impl Version {
    fn least(self) -> u64 {
        match self {
            Self::Exactly(number) | Self::Above(number) => number,
        }
    }

    fn may_be(self, number: u64) -> bool {
        match self {
            Self::Exactly(exactly) => exactly == number,
            Self::Above(least) => number > least,
        }
    }
}

/// An operation as one subnet sees it.
#[derive(Clone, Debug)]
struct LeaseStep {
    kind: LeaseKind,
    seen: Seen,
    called_ms: u64,
    answered_ms: u64,
}

#[derive(Clone, Debug)]
enum LeaseKind {
    Acquire(Machine),
    /// Whoever takes another subnet may have to leave this one.
    AcquireElsewhere(Machine),
    Renew(Machine, Option<u64>),
    Release(Option<u64>),
    Reserve(Machine),
    Unreserve,
    Import(Machine),
    Read,
    StoreReplaced,
}

/// What the client was told.
#[derive(Clone, Debug)]
enum Seen {
    Nothing,
    Done,
    Lease(LeaseSeen),
    Gone,
    Taken(LeaseSeen),
    Reserved,
}

impl LeaseStep {
    fn of(it: &Operation, subnet: Subnet, holders: &[Machine], cut: u64) -> Option<Self> {
        let answer = it.answer.as_ref().filter(|(at, _)| at.order < cut);
        let called_ms = it.called.at.as_millis() as u64;
        let answered_ms = answer.map_or(NEVER, |(at, _)| at.at.as_millis() as u64);
        let answer = answer.map(|(_, answer)| answer);
        let mut seen = match answer {
            None => Seen::Nothing,
            Some(Answer::Done) => Seen::Done,
            Some(Answer::Lease(_, lease)) => Seen::Lease(*lease),
            Some(Answer::Gone) => Seen::Gone,
            Some(Answer::Taken(lease)) => Seen::Taken(*lease),
            Some(Answer::Reserved) => Seen::Reserved,
            Some(Answer::Leases(leases)) => {
                let found = leases.iter().find(|(of, _)| *of == subnet);
                found.map_or(Seen::Gone, |(_, lease)| Seen::Lease(*lease))
            }
            Some(Answer::Config(_) | Answer::Refused(_)) => return None,
        };
        let here = |of: &Subnet| *of == subnet;
        let kind = match &it.call {
            Call::Acquire { machine } => match answer {
                Some(Answer::Lease(of, _)) if here(of) => LeaseKind::Acquire(*machine),
                Some(Answer::Lease(..)) if holders.iter().any(|it| it.is(machine)) => {
                    seen = Seen::Nothing;
                    LeaseKind::AcquireElsewhere(*machine)
                }
                // If nobody ever saw it here, it is as if it had not been here.
                None if holders.iter().any(|it| it.is(machine)) => LeaseKind::Acquire(*machine),
                _ => return None,
            },
            Call::Renew { subnet, machine, version } if here(subnet) => {
                LeaseKind::Renew(*machine, *version)
            }
            Call::Release { subnet, version } if here(subnet) => LeaseKind::Release(*version),
            Call::Reserve { subnet, machine } if here(subnet) => LeaseKind::Reserve(*machine),
            Call::Unreserve { subnet } if here(subnet) => LeaseKind::Unreserve,
            Call::Import { subnet, machine } if here(subnet) => LeaseKind::Import(*machine),
            Call::ListLeases if answer.is_some() => LeaseKind::Read,
            Call::StoreReplaced => LeaseKind::StoreReplaced,
            _ => return None,
        };
        Some(Self { kind, seen, called_ms, answered_ms })
    }

    /// Everything that a state may become.
    fn outcomes(&self, before: &LeaseState) -> Vec<LeaseState> {
        let mut all = self.at_once(before);
        if let LeaseState::Held { version, reserved: false, until_ms, .. } = before
            && *until_ms <= self.answered_ms
        {
            // It may have ended before.
            all.extend(self.at_once(&LeaseState::Free { after: version.least() }));
        }
        all
    }

    fn at_once(&self, before: &LeaseState) -> Vec<LeaseState> {
        let done = match (&self.kind, &self.seen) {
            (LeaseKind::StoreReplaced, _) => return vec![LeaseState::Unknown],
            (LeaseKind::Read, Seen::Lease(lease)) | (_, Seen::Taken(lease)) => {
                before.showing(lease)
            }
            (_, Seen::Gone) => before.free(),
            (_, Seen::Reserved) => before.clone().filter(|_, _, reserved| reserved),
            (_, Seen::Lease(lease)) => self.carried_out(before).and_then(|it| it.showing(lease)),
            (_, Seen::Done) => self.carried_out(before),
            (_, Seen::Nothing) => {
                let both = [Some(before.clone()), self.carried_out(before)];
                return both.into_iter().flatten().collect();
            }
        };
        done.into_iter().collect()
    }

    /// What the operation makes of a state; `None` if the server would have refused it.
    fn carried_out(&self, before: &LeaseState) -> Option<LeaseState> {
        let (LeaseState::Free { after }
        | LeaseState::Held { version: Version::Exactly(after) | Version::Above(after), .. }) =
            before
        else {
            return Some(LeaseState::Unknown);
        };
        let version = Version::Above(*after);
        let until_ms = self.called_ms + LEASE_TTL.as_millis() as u64 * 99 / 100;
        let held =
            |machine, reserved| Some(LeaseState::Held { machine, version, reserved, until_ms });
        match (&self.kind, before) {
            (LeaseKind::Acquire(by), LeaseState::Free { .. }) => held(*by, false),
            (LeaseKind::Acquire(by), LeaseState::Held { machine, reserved, .. })
                if machine.is(by) =>
            {
                held(*by, *reserved)
            }
            (LeaseKind::AcquireElsewhere(by), LeaseState::Held { machine, .. })
                if machine.is(by) =>
            {
                Some(LeaseState::Free { after: *after })
            }
            (
                LeaseKind::Renew(by, of),
                LeaseState::Held { machine, version: now, reserved, .. },
            ) if machine.is(by) || of.is_some_and(|of| now.may_be(of)) => held(*by, *reserved),
            (LeaseKind::Release(of), LeaseState::Held { version: now, reserved: false, .. })
                if of.is_none_or(|of| now.may_be(of)) =>
            {
                Some(LeaseState::Free { after: *after })
            }
            (LeaseKind::Reserve(by), LeaseState::Free { .. }) => held(*by, true),
            (LeaseKind::Reserve(by), LeaseState::Held { machine, reserved, .. })
                if machine.is(by) =>
            {
                if *reserved {
                    Some(before.clone())
                } else {
                    held(*machine, true)
                }
            }
            (LeaseKind::Unreserve, LeaseState::Held { machine, reserved, .. }) => {
                if *reserved {
                    held(*machine, false)
                } else {
                    Some(before.clone())
                }
            }
            (LeaseKind::Import(by), _) => {
                let may = match before {
                    LeaseState::Held { machine, .. } => machine.is(by),
                    _ => true,
                };
                // Whether it is a reservation is known from the answer.
                let reserved = match &self.seen {
                    Seen::Lease(lease) => lease.reserved,
                    _ => false,
                };
                let until_ms = self.called_ms + IMPORTED_LIFE_MS;
                may.then_some(LeaseState::Held { machine: *by, version, reserved, until_ms })
            }
            _ => None,
        }
    }
}

impl LeaseState {
    /// This state if a client may be shown such a lease, and what is known then.
    fn showing(&self, lease: &LeaseSeen) -> Option<Self> {
        let shown = |until_ms| Self::Held {
            machine: lease.machine,
            version: Version::Exactly(lease.version),
            reserved: lease.reserved,
            until_ms,
        };
        match self {
            Self::Unknown => Some(shown(0)),
            Self::Free { .. } => None,
            Self::Held { machine, version, reserved, until_ms } => {
                let is_it = *machine == lease.machine
                    && *reserved == lease.reserved
                    && version.may_be(lease.version);
                is_it.then(|| shown(*until_ms))
            }
        }
    }

    fn free(&self) -> Option<Self> {
        match self {
            Self::Unknown => Some(Self::Free { after: 0 }),
            Self::Free { .. } => Some(self.clone()),
            Self::Held { .. } => None,
        }
    }

    fn filter(self, is_right: impl Fn(&Machine, Version, bool) -> bool) -> Option<Self> {
        match &self {
            Self::Unknown => Some(self),
            Self::Held { machine, version, reserved, .. }
                if is_right(machine, *version, *reserved) =>
            {
                Some(self)
            }
            _ => None,
        }
    }
}

impl Specification for LeaseModel {
    /// Everything that is possible.
    type State = BTreeSet<LeaseState>;
    type Operation = LeaseStep;

    fn init() -> Self::State {
        [LeaseState::Free { after: 0 }].into()
    }

    fn apply(step: &LeaseStep, before: &Self::State) -> (bool, Self::State) {
        possible(before.iter().flat_map(|state| step.outcomes(state)), before)
    }
}

fn possible<T: Ord + Clone>(
    after: impl Iterator<Item = T>,
    before: &BTreeSet<T>,
) -> (bool, BTreeSet<T>) {
    let after: BTreeSet<T> = after.collect();
    if after.is_empty() { (false, before.clone()) } else { (true, after) }
}

/// The config.
struct ConfigModel;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ConfigState {
    Nothing,
    Text(String),
    /// Any there may be.
    Unknown,
}

#[derive(Clone, Debug)]
enum ConfigStep {
    Write { text: ConfigState, is_sure: bool },
    Read(ConfigState),
}

impl ConfigStep {
    fn of(it: &Operation, cut: u64) -> Option<Self> {
        let answer = it.answer.as_ref().filter(|(at, _)| at.order < cut).map(|(_, answer)| answer);
        match (&it.call, answer) {
            (Call::StoreReplaced, _) => {
                Some(Self::Write { text: ConfigState::Unknown, is_sure: true })
            }
            (Call::SetConfig { text, force }, None | Some(Answer::Done)) => {
                let text =
                    if *force { ConfigState::Unknown } else { ConfigState::Text(text.clone()) };
                Some(Self::Write { text, is_sure: answer.is_some() })
            }
            (Call::ReadConfig, Some(Answer::Config(text))) => {
                Some(Self::Read(text.clone().map_or(ConfigState::Nothing, ConfigState::Text)))
            }
            _ => None,
        }
    }
}

impl Specification for ConfigModel {
    type State = BTreeSet<ConfigState>;
    type Operation = ConfigStep;

    fn init() -> Self::State {
        [ConfigState::Nothing].into()
    }

    fn apply(step: &ConfigStep, before: &Self::State) -> (bool, Self::State) {
        match step {
            ConfigStep::Write { text, is_sure: true } => (true, [text.clone()].into()),
            ConfigStep::Write { text, is_sure: false } => {
                (true, before.iter().chain([text]).cloned().collect())
            }
            ConfigStep::Read(text) => {
                let may_be =
                    |state: &&ConfigState| *state == text || **state == ConfigState::Unknown;
                possible(before.iter().filter(may_be).map(|_| text.clone()), before)
            }
        }
    }
}

/// Revisions of the store, which grow with everything that is written.
struct RevisionModel;

#[derive(Clone, Debug)]
enum RevisionStep {
    Wrote(u64),
    StoreReplaced,
}

impl RevisionStep {
    fn of(it: &Operation, cut: u64) -> Option<Self> {
        let answer = it.answer.as_ref().filter(|(at, _)| at.order < cut);
        match (&it.call, answer) {
            (Call::StoreReplaced, _) => Some(Self::StoreReplaced),
            (
                Call::Acquire { .. } | Call::Renew { .. } | Call::Import { .. },
                Some((_, Answer::Lease(_, lease))),
            ) => Some(Self::Wrote(lease.version)),
            _ => None,
        }
    }
}

impl Specification for RevisionModel {
    type State = u64;
    type Operation = RevisionStep;

    fn init() -> u64 {
        0
    }

    fn apply(step: &RevisionStep, before: &u64) -> (bool, u64) {
        match step {
            RevisionStep::Wrote(revision) if revision > before => (true, *revision),
            RevisionStep::Wrote(_) => (false, *before),
            RevisionStep::StoreReplaced => (true, 0),
        }
    }
}

/// Operations by what they were and whether they were answered, to see that a history has something in it.
pub(crate) fn summary(history: &[Operation]) -> String {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for operation in history {
        let name = match operation.call {
            Call::Acquire { .. } => "acquire",
            Call::Renew { .. } => "renew",
            Call::Release { .. } => "release",
            Call::Reserve { .. } => "reserve",
            Call::Unreserve { .. } => "unreserve",
            Call::Import { .. } => "import",
            Call::ListLeases => "list",
            Call::SetConfig { .. } => "set config",
            Call::ReadConfig => "read config",
            Call::StoreReplaced => "store replaced",
        };
        let (all, open) = counts.entry(name).or_default();
        *all += 1;
        *open += usize::from(operation.answer.is_none());
    }
    let counts = counts.iter().map(|(name, (all, open))| format!("{name} {all} ({open} open)"));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
