//! Whom to probe when. Pure: time and randomness are arguments.
//!
//! However large the network, a node looks at a handful of peers at a time, at random: 10,000 of them within an hour.
//! New and changed peers have their turn at once, failing ones sooner again. What the bandwidth limit of probing does
//! not allow, full-sized packets first, is left to a later turn.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ipnet::IpNet;

/// Between two looks at who is due.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Peers that are begun with in one interval.
pub const HANDFUL: usize = 3;

/// A peer's turn comes after so much for each peer there is: 57 minutes with 10,000.
const SHARE: Duration = Duration::from_millis(345);
/// And not before.
const SOONEST: Duration = Duration::from_secs(2);
/// Of so many turns one is that of a peer that has failed before, if others wait too.
const FAILING: u8 = 3;
/// To make sure of a failure.
const AGAIN: Duration = Duration::from_millis(300);
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// All the others look at a peer that has changed, over so much time for each that there is.
const RUSH: Duration = Duration::from_millis(3);
const LONGEST_RUSH: Duration = Duration::from_secs(30);

/// Bytes a second that this node may cause by asking, answers included. Others, who ask it, cause as much again.
const BUDGET: u64 = 950;
/// Where there are few, more is nothing.
const FEW: usize = 100;
const BUDGET_AMONG_FEW: u64 = 4_000;

/// What a turn costs more if it is to find out what is wrong.
const DIAGNOSIS: u64 = 3;

/// Bytes on the wire, there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    pub small: u64,
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub peer: IpNet,
    /// Counts up: where there are two address families, they take turns.
    pub round: u32,
    pub both: bool,
    pub full: bool,
    /// The last time it has not been as it should.
    pub has_failed: bool,
}

/// Milliseconds since any moment that stays the same.
type Millis = u64;

#[derive(Default)]
pub struct Schedule {
    slots: HashMap<IpNet, Slot>,
    /// Who waits for which moment, apart from those who are being probed.
    waiting: BTreeSet<(Millis, IpNet)>,
    /// The same of those who have failed.
    failing: BTreeSet<(Millis, IpNet)>,
    last_look: Option<Millis>,
    /// Of turns, from one of a peer that has failed to the next.
    count: u8,
    /// In bytes; below zero after what could not be done in part.
    credit: i64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    due: Millis,
    round: u32,
    /// How often in succession.
    failures: u8,
    is_busy: bool,
    /// It has come or changed meanwhile.
    is_anew: bool,
}

impl Schedule {
    /// A peer is new, or other than it was: it is looked at at once.
    pub fn came(&mut self, peer: IpNet, now: Duration, rng: &mut fastrand::Rng) {
        let others = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let rush = (RUSH.saturating_mul(others)).min(LONGEST_RUSH);
        let due = millis(now) + rng.u64(0..=millis(rush));
        let slot = self.slots.entry(peer).or_default();
        if !slot.is_busy {
            slot.failures = 0;
        }
        self.advance(peer, due);
    }

    /// Somebody waits to know how a peer is: it is looked at next.
    pub fn hasten(&mut self, peer: &IpNet, now: Duration) {
        self.advance(*peer, millis(now));
    }

    fn advance(&mut self, peer: IpNet, due: Millis) {
        let Some(slot) = self.slots.get_mut(&peer) else { return };
        if slot.is_busy {
            slot.is_anew = true;
            return;
        }
        self.waiting.remove(&(slot.due, peer));
        self.failing.remove(&(slot.due, peer));
        slot.due = due;
        self.waiting.insert((due, peer));
    }

    pub fn gone(&mut self, peer: &IpNet) {
        if let Some(slot) = self.slots.remove(peer) {
            self.waiting.remove(&(slot.due, *peer));
            self.failing.remove(&(slot.due, *peer));
        }
    }

    /// When somebody is due, at the earliest an interval after the last look.
    pub fn next_look(&self) -> Option<Duration> {
        let first = |queue: &BTreeSet<(Millis, IpNet)>| queue.first().map(|(due, _)| *due);
        let due = first(&self.waiting).into_iter().chain(first(&self.failing)).min()?;
        let earliest = self.last_look.map_or(0, |last| last + millis(INTERVAL));
        Some(Duration::from_millis(due.max(earliest)))
    }

    /// Whose turn it is: a handful at most, and none less than an interval after the last.
    pub fn turns(&mut self, now: Duration, costs: Costs) -> Vec<Turn> {
        let now = millis(now);
        let earlier = self.last_look;
        if earlier.is_some_and(|last| now < last + millis(INTERVAL)) {
            return Vec::new();
        }
        self.last_look = Some(now);
        self.earn(now.saturating_sub(earlier.unwrap_or(now)), costs);
        let mut peers = Vec::new();
        // Nobody is begun with on credit.
        while peers.len() < HANDFUL && self.credit >= 0 {
            self.count = (self.count + 1) % FAILING;
            let queues = if self.count == 0 {
                [&mut self.failing, &mut self.waiting]
            } else {
                [&mut self.waiting, &mut self.failing]
            };
            let Some(peer) = queues.into_iter().find_map(|queue| take(queue, now)) else { break };
            peers.extend(self.turn(peer, costs));
        }
        peers
    }

    pub fn done(&mut self, peer: &IpNet, is_well: bool, now: Duration, rng: &mut fastrand::Rng) {
        let period = self.period();
        let Some(slot) = self.slots.get_mut(peer) else { return };
        slot.is_busy = false;
        slot.failures = if is_well { 0 } else { slot.failures.saturating_add(1) };
        if std::mem::take(&mut slot.is_anew) {
            return self.came(*peer, now, rng);
        }
        let pause = match slot.failures {
            0 => period,
            1 => AGAIN,
            more => FIRST_PAUSE
                .saturating_mul(1 << u32::from(more - 2).min(10))
                .min(LONGEST_PAUSE)
                .min(period.max(FIRST_PAUSE)),
        };
        // A little earlier at random, so that nodes do not fall into step.
        let pause = millis(pause);
        slot.due = millis(now) + pause - rng.u64(0..=pause / 20);
        let queue = if is_well { &mut self.waiting } else { &mut self.failing };
        queue.insert((slot.due, *peer));
    }

    fn period(&self) -> Duration {
        let peers = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        SHARE.saturating_mul(peers).max(SOONEST)
    }

    fn turn(&mut self, peer: IpNet, costs: Costs) -> Option<Turn> {
        let slot = self.slots.get_mut(&peer)?;
        slot.is_busy = true;
        slot.round = slot.round.wrapping_add(1);
        let has_failed = slot.failures > 0;
        let least = if has_failed { DIAGNOSIS * costs.small } else { costs.small };
        self.credit -= least.cast_signed();
        let mut afford = |cost: u64| {
            let can = self.credit >= cost.cast_signed();
            self.credit -= if can { cost.cast_signed() } else { 0 };
            can
        };
        let (both, full) = (afford(costs.small), afford(costs.full));
        Some(Turn { peer, round: slot.round, both, full, has_failed })
    }

    fn earn(&mut self, elapsed: Millis, costs: Costs) {
        let budget = if self.slots.len() <= FEW { BUDGET_AMONG_FEW } else { BUDGET };
        let earned = (budget.saturating_mul(elapsed) / 1_000).cast_signed();
        let most = (HANDFUL as u64 * (2 * costs.small + costs.full)).cast_signed();
        self.credit = self.credit.saturating_add(earned).clamp(-most, most);
    }
}

fn take(queue: &mut BTreeSet<(Millis, IpNet)>, now: Millis) -> Option<IpNet> {
    queue.first().filter(|(due, _)| *due <= now)?;
    queue.pop_first().map(|(_, peer)| peer)
}

fn millis(of: Duration) -> Millis {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
