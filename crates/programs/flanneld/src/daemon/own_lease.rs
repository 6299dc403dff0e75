//! This node's own lease: what is to be asked of the store about it, and when. It takes what happened and the present, and
//! waits for nothing: [`super::lease_task`] asks the store, and its outcomes come back here.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use flannel_lease::{Expiry, LEASE_TTL, Lease, LeaseAttrs, NetworkConfig, Subnet, Version};
use flannel_store::{Held, StoreError, StoredLease};

use super::identity;
use super::lease_task::{ClaimError, ClaimRetry, LeaseOutcome, LeaseRequest, RenewError};
use super::now::{Now, Uptime};
use super::state_report::moment;

/// Nodes that were started together do not renew together.
const RENEWAL_JITTER: f64 = 0.1;
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// A lease that has less left than the margin is renewed within this time.
const LATE_RENEWAL_PAUSE: Duration = Duration::from_secs(600);
/// A lease that is contested again within this time is a fight between two nodes.
const CONTEST_WINDOW: Duration = Duration::from_secs(120);
/// Number of this node's own writes that are told from those of others; a config seldom changes more often in a moment.
const REMEMBERED_WRITES: usize = 16;
/// How long a tentative announcement may take: whoever makes one holds up packets meanwhile.
const TENTATIVE_TIMEOUT: Duration = Duration::from_secs(2);
const FORMER_SUBNETS: usize = 4;

pub(super) struct OwnLease {
    /// The lease as this node is to be announced. The store may not know of it yet.
    lease: Lease,
    /// The lease as the store is known to have it.
    pub(super) held: Held,
    /// Subnets that it had before and the network config had no place for, the latest last.
    pub(super) former: Vec<Subnet>,
    /// When to renew; `None` for a reservation.
    renew_at: Option<Uptime>,
    renew_margin: Duration,
    /// When to take back a lease that was lost or written by somebody else.
    reclaim_at: Option<Instant>,
    /// The store is to be told how this node is announced now.
    is_announcement_due: bool,
    /// An announcement of which somebody wants to know whether it succeeds.
    tentative: Option<LeaseAttrs>,
    pending: Option<Pending>,
    heard: HeardMeanwhile,
    /// The subnet is another node's by now, and none is free: no pod may get an address of it.
    pub(super) is_anothers: bool,
    last_reclaim: Option<Instant>,
    /// What was last wrong with it, and until when that still counts.
    last_problem: Option<(String, Instant)>,
    writes: OwnWrites,
    retry: ClaimRetry,
    rng: fastrand::Rng,
}

#[derive(Clone, Debug, PartialEq)]
enum Pending {
    Renewal(RenewalKind, LeaseAttrs),
    Reclaim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalKind {
    InTime,
    Announcement,
    Tentative,
}

#[derive(Debug, PartialEq)]
pub(super) enum LeaseNews {
    /// The lease was taken back, or another got in place of `before`. `is_outdated`: the node has changed meanwhile.
    Reclaimed { before: Lease, is_outdated: bool },
    /// The subnet is another node's, and none is free.
    GivenToAnother,
    /// What came of the tentative announcement.
    Tentative(Result<(), String>),
}

impl OwnLease {
    /// `given_up`: the subnet that the node had before and the network config has no place for.
    pub(super) fn new(
        held: Held,
        given_up: Option<Subnet>,
        renew_margin: Duration,
        retry: ClaimRetry,
        rng: fastrand::Rng,
        now: &Now,
    ) -> Self {
        tracing::info!(event = "lease-acquired", "Lease acquired: {:#}", held.lease.subnet);
        let mut own = Self {
            lease: held.lease.clone(),
            writes: OwnWrites([(held.version, held.lease.attrs.clone())].into()),
            held,
            former: given_up.into_iter().collect(),
            renew_at: None,
            renew_margin,
            reclaim_at: None,
            is_announcement_due: false,
            tentative: None,
            pending: None,
            heard: HeardMeanwhile::default(),
            is_anothers: false,
            last_reclaim: None,
            last_problem: None,
            retry,
            rng,
        };
        own.schedule(now);
        own
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn subnet(&self) -> Subnet {
        self.lease.subnet
    }

    /// Why it cannot be relied upon that this node's subnet is its own.
    pub(super) fn contest(&self, now: Instant) -> Option<String> {
        let (what, until) = self.last_problem.as_ref()?;
        let fight = now < *until;
        let advice = "; if two nodes announce one address, give each its own --public-ip";
        let fix = if fight { advice } else { "" };
        (fight || self.reclaim_at.is_some())
            .then(|| format!("this node's lease {} {what}{fix}", self.subnet()))
    }

    pub(super) fn on_put(&mut self, stored: &StoredLease, now: &Now) {
        if self.pending.is_some() {
            if self.may_become_own(&stored.lease.subnet) {
                self.heard.leases.insert(stored.lease.subnet, Some(stored.clone()));
            }
            return;
        }
        let lease = &stored.lease;
        let own = &self.lease.attrs;
        // Where versions are not counted, it is the store that says of which machine a lease is.
        let other_machine = self.held.version != Version::UNKNOWN
            && lease.attrs.machine.zip(own.machine).is_some_and(|(theirs, ours)| theirs != ours);
        let same = lease.attrs.announce_the_same_as(own);
        if lease.subnet != self.subnet() || same && !other_machine {
            return;
        }
        match self.writes.find(stored) {
            // The store tells of every write, and of this one late: it has been overwritten since.
            Some(OwnWrite::Answered) => {}
            // It may have come to the store after a later one.
            Some(OwnWrite::Unanswered) => {
                self.reclaim_at.get_or_insert(now.instant);
            }
            None => {
                let by = identity::address(&lease.attrs);
                let what = match same {
                    true => "by another machine that announces the same address",
                    false => "by another node, which announces itself at",
                };
                self.question(&format!("was written {what} {by}"), now);
            }
        }
    }

    pub(super) fn on_gone(&mut self, subnet: &Subnet, now: &Now) {
        if self.pending.is_some() {
            if self.may_become_own(subnet) {
                self.heard.leases.insert(*subnet, None);
            }
        } else if *subnet == self.subnet() {
            self.question("has been revoked: deleted or expired", now);
        }
    }

    pub(super) fn on_snapshot(&mut self, leases: &[StoredLease], now: &Now) {
        if self.pending.is_some() {
            let kept = leases.iter().filter(|it| self.may_become_own(&it.lease.subnet));
            let kept = kept.map(|stored| (stored.lease.subnet, Some(stored.clone())));
            self.heard.leases = kept.collect();
            self.heard.is_whole = true;
            return;
        }
        match leases.iter().find(|stored| stored.lease.subnet == self.subnet()) {
            Some(stored) if self.is_former_write(stored) => {
                tracing::warn!(
                    "The store lists this node's lease {} as it was announced earlier, at {}, as after the restore of a \
                     backup: announcing it again",
                    self.subnet(),
                    identity::address(&stored.lease.attrs)
                );
                self.reclaim_at.get_or_insert(now.instant);
            }
            Some(stored) => self.on_put(stored, now),
            None => self.question("is missing from the store", now),
        }
    }

    /// Whether this is what the node announced before its present lease. News of it may be late; a list is not.
    fn is_former_write(&self, stored: &StoredLease) -> bool {
        !stored.lease.attrs.announce_the_same_as(&self.lease.attrs)
            && stored.version != self.held.version
            && self.writes.find(stored) == Some(OwnWrite::Answered)
    }

    /// A store that assigns subnets says which one is this node's now. That is nobody's to contest.
    pub(super) fn on_assigned(&mut self, assigned: Option<Subnet>, now: &Now) {
        if self.pending.is_some() {
            self.heard.assigned = Some(assigned);
            return;
        }
        let own = self.subnet();
        let what = match assigned {
            Some(subnet) if subnet == own && self.reclaim_at.is_none() => return,
            Some(subnet) if subnet == own => "is assigned to this node again".to_owned(),
            Some(subnet) => format!("has been replaced: {subnet} is assigned to this node now"),
            None => "is not assigned to this node any more, nor is another one".to_owned(),
        };
        tracing::error!("This node's lease {own} {what}");
        self.reclaim_at = Some(now.instant);
        self.last_problem = Some((what, now.instant));
    }

    /// Whether the pending request may end with the lease of this subnet.
    fn may_become_own(&self, subnet: &Subnet) -> bool {
        self.pending == Some(Pending::Reclaim) || *subnet == self.subnet()
    }

    fn question(&mut self, what: &str, now: &Now) {
        if self.reclaim_at.is_some() {
            return;
        }
        let now = now.instant;
        // The first time it is taken back at once; if that does not last, somebody wants it as much.
        let recently =
            self.last_reclaim.is_some_and(|last| now.duration_since(last) < CONTEST_WINDOW);
        let backoff = &mut self.retry.backoff;
        let pause = if recently { backoff.pause() } else { Duration::ZERO };
        if !recently {
            backoff.reset();
        }
        tracing::error!(
            "This node's lease {} {what}; taking it back in {pause:.0?}",
            self.subnet()
        );
        self.reclaim_at = Some(now + pause);
        // Taken back once it is settled; a fight is not over because nobody has struck for a second.
        let until = if recently { now + CONTEST_WINDOW } else { now };
        self.last_problem = Some((what.to_owned(), until));
    }

    /// The node is to be announced so, on the subnet it has if the network still allows that.
    pub(super) fn announce(&mut self, attrs: LeaseAttrs, config: &NetworkConfig, now: &Now) {
        if !config.accepts(&self.subnet()) {
            tracing::warn!("The subnet {} does not fit the network any more", self.subnet());
            let own = self.subnet();
            self.former.retain(|known| *known != own);
            self.former.push(own);
            self.former.drain(..self.former.len().saturating_sub(FORMER_SUBNETS));
            self.reclaim_at = Some(now.instant);
            let problem = "does not fit the network config any more".to_owned();
            self.last_problem = Some((problem, now.instant));
            // A lease that is being asked for already may not fit either.
            self.is_announcement_due |= self.pending == Some(Pending::Reclaim);
        } else if !attrs.announce_the_same_as(&self.lease.attrs) {
            self.lease.attrs = attrs;
            self.is_announcement_due = true;
        }
    }

    /// Announces the node so, changed or not, and once only; [`LeaseNews::Tentative`] tells whether that succeeds.
    pub(super) fn announce_tentatively(&mut self, attrs: LeaseAttrs) {
        self.tentative = Some(attrs);
    }

    /// What the store is to be asked now. The outcome of one request comes before the next.
    pub(super) fn next_request(
        &mut self,
        config: &NetworkConfig,
        now: &Now,
    ) -> Option<LeaseRequest> {
        if self.pending.is_some() {
            return None;
        }
        if let Some(attrs) = self.tentative.take() {
            return Some(self.renew(RenewalKind::Tentative, attrs));
        }
        if self.reclaim_at.is_some_and(|due| due <= now.instant) {
            self.pending = Some(Pending::Reclaim);
            self.is_announcement_due = false;
            // Where the network of a subnet that it had comes back, so does the subnet.
            let mut wished = [self.subnet()].into_iter().chain(self.former.iter().rev().copied());
            let previous = wished.find(|it| config.accepts(it)).or(Some(self.subnet()));
            return Some(LeaseRequest::Reclaim { previous });
        }
        if self.is_announcement_due {
            self.is_announcement_due = false;
            return Some(self.renew(RenewalKind::Announcement, self.lease.attrs.clone()));
        }
        let is_due = self.reclaim_at.is_none() && self.renew_at.is_some_and(|at| at <= now.uptime);
        is_due.then(|| self.renew(RenewalKind::InTime, self.lease.attrs.clone()))
    }

    fn renew(&mut self, kind: RenewalKind, attrs: LeaseAttrs) -> LeaseRequest {
        self.pending = Some(Pending::Renewal(kind, attrs.clone()));
        let timeout = (kind == RenewalKind::Tentative).then_some(TENTATIVE_TIMEOUT);
        LeaseRequest::Renew { held: self.held.clone().into(), attrs: attrs.into(), timeout }
    }

    pub(super) fn next_wake(&self, now: &Now) -> Option<Instant> {
        let window = self.last_problem.as_ref().map(|(_, until)| *until);
        let window = window.filter(|until| *until > now.instant);
        let renewal = self.renew_at.map(|at| at.next_look(now));
        let request = self.reclaim_at.or(renewal).filter(|_| self.pending.is_none());
        request.into_iter().chain(window).min()
    }

    pub(super) fn on_outcome(
        &mut self,
        outcome: LeaseOutcome,
        config: &NetworkConfig,
        now: &Now,
    ) -> Option<LeaseNews> {
        let pending = self.pending.take();
        let news = match (outcome, pending) {
            (LeaseOutcome::Reclaimed(claimed), _) => self.on_reclaimed(claimed, config, now),
            (LeaseOutcome::Renewed(renewed), Some(Pending::Renewal(kind, attrs))) => {
                self.on_renewed(kind, attrs, renewed, now)
            }
            (LeaseOutcome::Renewed(_), _) => None,
        };
        self.hear_again(now);
        news
    }

    fn on_renewed(
        &mut self,
        kind: RenewalKind,
        attrs: LeaseAttrs,
        renewed: Result<Held, RenewError>,
        now: &Now,
    ) -> Option<LeaseNews> {
        let error = match renewed {
            Ok(held) => {
                self.hold(held);
                if !self.is_announcement_due {
                    self.lease = self.held.lease.clone();
                }
                self.schedule(now);
                match (kind, self.held.expiry) {
                    (RenewalKind::InTime, Expiry::At(at)) => {
                        self.retry.backoff.reset();
                        tracing::info!("Lease renewed, new expiration: {}", moment(at));
                    }
                    (RenewalKind::InTime, Expiry::Never) => self.retry.backoff.reset(),
                    (RenewalKind::Announcement, _) => {
                        let subnet = self.subnet();
                        tracing::info!(event = "node-announced", "Announced {subnet} again");
                    }
                    (RenewalKind::Tentative, _) => return Some(LeaseNews::Tentative(Ok(()))),
                }
                return None;
            }
            Err(error) => error,
        };
        // It may have come to the store all the same.
        self.writes.add(Version::UNKNOWN, attrs.clone());
        let failed = match kind {
            RenewalKind::Tentative => return Some(LeaseNews::Tentative(Err(error.to_string()))),
            RenewalKind::InTime => "could not be renewed",
            RenewalKind::Announcement => {
                tracing::error!("Cannot announce this node's change: {error}");
                self.held.lease.attrs = attrs;
                "could not be announced again"
            }
        };
        let is_lost =
            matches!(error, RenewError::Store(StoreError::Lost { .. } | StoreError::Taken { .. }));
        if is_lost {
            if kind == RenewalKind::InTime {
                tracing::error!("{error}");
            }
            self.question(failed, now);
            return None;
        }
        let pause = self.retry.backoff.pause();
        if kind == RenewalKind::InTime {
            tracing::error!("Error renewing lease: {error}; next try in {pause:.0?}");
        }
        self.renew_at = Some(now.uptime + pause);
        None
    }

    fn on_reclaimed(
        &mut self,
        claimed: Result<Held, ClaimError>,
        config: &NetworkConfig,
        now: &Now,
    ) -> Option<LeaseNews> {
        let error = match claimed {
            Ok(held) => {
                self.hold(held);
                let before = std::mem::replace(&mut self.lease, self.held.lease.clone());
                self.reclaim_at = None;
                self.last_reclaim = Some(now.instant);
                self.schedule(now);
                tracing::info!(event = "lease-acquired", "Lease acquired: {:#}", self.subnet());
                let has_changed = std::mem::take(&mut self.is_announcement_due);
                let is_outdated = has_changed || !config.accepts(&self.subnet());
                return Some(LeaseNews::Reclaimed { before, is_outdated });
            }
            Err(error) => error,
        };
        let pause = self.retry.pause_after(&error, now.instant);
        self.reclaim_at = Some(now.instant + pause);
        // With its own subnet free, this node would have got it.
        let is_anothers = matches!(error, ClaimError::Store(StoreError::OutOfSubnets(_)))
            && config.accepts(&self.subnet());
        let is_news = is_anothers && !self.is_anothers;
        self.is_anothers |= is_anothers;
        is_news.then_some(LeaseNews::GivenToAnother)
    }

    fn hold(&mut self, held: Held) {
        self.writes.add(held.version, held.lease.attrs.clone());
        self.held = held;
        self.is_anothers = false;
    }

    /// Takes what the store said during a request as said now: it may have happened after the request was carried out.
    fn hear_again(&mut self, now: &Now) {
        let HeardMeanwhile { mut leases, is_whole, assigned } = std::mem::take(&mut self.heard);
        match leases.remove(&self.subnet()) {
            Some(Some(stored)) => self.on_put(&stored, now),
            Some(None) => self.on_gone(&self.subnet(), now),
            None if is_whole => self.question("is missing from the store", now),
            None => {}
        }
        if let Some(assigned) = assigned {
            self.on_assigned(assigned, now);
        }
    }

    fn schedule(&mut self, now: &Now) {
        self.renew_at = self.held.expiry.remaining(now.time).map(|left| {
            let wait = renew_in(left, self.renew_margin, self.rng.f64());
            tracing::info!("Waiting for {wait:.0?} to renew lease");
            now.uptime + wait
        });
    }
}

#[derive(Default)]
struct HeardMeanwhile {
    /// The last of each; `None` if it is gone.
    leases: BTreeMap<Subnet, Option<StoredLease>>,
    /// Leases that are not among them are not in the store.
    is_whole: bool,
    assigned: Option<Option<Subnet>>,
}

/// What this node wrote of itself lately. The store tells of each write, and on a busy machine after the next one.
struct OwnWrites(VecDeque<(Version, LeaseAttrs)>);

/// A write of this node's that the store tells of.
#[derive(Debug, PartialEq, Eq)]
enum OwnWrite {
    /// The store had said which version it became.
    Answered,
    /// It is not known whether, and when, it came to the store.
    Unanswered,
}

impl OwnWrites {
    fn add(&mut self, version: Version, attrs: LeaseAttrs) {
        self.0.push_back((version, attrs));
        let surplus = self.0.len().saturating_sub(REMEMBERED_WRITES);
        self.0.drain(..surplus);
    }

    fn find(&self, stored: &StoredLease) -> Option<OwnWrite> {
        // A store that was restored from a backup counts again what it had counted before.
        let is_this = |(version, attrs): &(Version, LeaseAttrs)| {
            *version != Version::UNKNOWN
                && *version == stored.version
                && same_addresses(attrs, &stored.lease.attrs)
        };
        if self.0.iter().any(is_this) {
            return Some(OwnWrite::Answered);
        }
        let mut unanswered = self.0.iter().filter(|(version, _)| *version == Version::UNKNOWN);
        let says_the_same = |attrs: &LeaseAttrs| stored.lease.attrs.announce_the_same_as(attrs);
        unanswered.any(|(_, attrs)| says_the_same(attrs)).then_some(OwnWrite::Unanswered)
    }
}

/// Whether both name the same public addresses; 0.0.0.0 is none.
fn same_addresses(one: &LeaseAttrs, other: &LeaseAttrs) -> bool {
    let named = |attrs: &LeaseAttrs| attrs.public_addresses().filter(|ip| !ip.is_unspecified());
    named(one).eq(named(other))
}

/// When to renew a lease: in time, and with a store whose clock is wrong neither always nor never. `chance` is 0 to 1.
fn renew_in(left: Duration, margin: Duration, chance: f64) -> Duration {
    let left = left.min(LEASE_TTL);
    // With less than the margin left: at half of that.
    let wait = if left > margin { left - margin } else { (left / 2).min(LATE_RENEWAL_PAUSE) };
    wait.mul_f64(1.0 - RENEWAL_JITTER * chance).max(SHORTEST_RENEWAL_PAUSE)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn config() -> NetworkConfig {
        NetworkConfig::parse(r#"{"Network":"10.1.0.0/16"}"#).expect("a config")
    }

    fn at(address: u8) -> LeaseAttrs {
        LeaseAttrs { public_ip: Some([192, 168, 0, address].into()), ..LeaseAttrs::default() }
    }

    fn held(subnet: &str, address: u8, version: u64) -> Held {
        let lease = Lease { subnet: subnet.parse().expect("a subnet"), attrs: at(address) };
        let expiry = Expiry::At(SystemTime::now() + LEASE_TTL);
        Held { lease, expiry, version: Version::new(version) }
    }

    fn own_lease(now: &Now) -> OwnLease {
        let rng = || fastrand::Rng::with_seed(7);
        let held = held("10.1.1.0-24", 1, 5);
        OwnLease::new(held, None, HOUR, ClaimRetry::new(rng()), rng(), now)
    }

    fn renewed_attrs(request: Option<LeaseRequest>) -> Option<LeaseAttrs> {
        match request? {
            LeaseRequest::Renew { attrs, .. } => Some(*attrs),
            LeaseRequest::Reclaim { .. } => None,
        }
    }

    #[test]
    fn a_node_that_changes_while_its_lease_is_renewed_is_announced_when_that_has_ended() {
        let begin = Now::for_test();
        let mut own = own_lease(&begin);
        assert_eq!(own.next_request(&config(), &begin), None, "nothing is due");
        let now = begin.later(24 * HOUR);
        assert_eq!(renewed_attrs(own.next_request(&config(), &now)), Some(at(1)));
        own.announce(at(2), &config(), &now);
        own.announce(at(3), &config(), &now);
        assert_eq!(own.lease().attrs, at(3), "the kernel follows at once");
        assert_eq!(own.next_request(&config(), &now), None, "one at a time");
        // The store tells of the renewal before it answers.
        own.on_put(&StoredLease::from(&held("10.1.1.0-24", 1, 6)), &now);
        let renewed = LeaseOutcome::Renewed(Ok(held("10.1.1.0-24", 1, 6)));
        assert_eq!(own.on_outcome(renewed, &config(), &now), None);
        assert_eq!(own.contest(now.instant), None, "it was this node's own write");
        assert_eq!(renewed_attrs(own.next_request(&config(), &now)), Some(at(3)));
        let failed = LeaseOutcome::Renewed(Err(RenewError::Timeout(HOUR)));
        assert_eq!(own.on_outcome(failed, &config(), &now), None);
        assert_eq!(own.next_request(&config(), &now), None, "after a pause");
        let now = now.later(HOUR);
        assert_eq!(renewed_attrs(own.next_request(&config(), &now)), Some(at(3)));
    }

    /// As a lease server does that was restored from a backup.
    #[test]
    fn a_store_that_lists_a_former_announcement_is_told_the_present_one() {
        let now = Now::for_test();
        let mut own = own_lease(&now);
        own.announce(at(2), &config(), &now);
        assert_eq!(renewed_attrs(own.next_request(&config(), &now)), Some(at(2)));
        let renewed = LeaseOutcome::Renewed(Ok(held("10.1.1.0-24", 2, 6)));
        assert_eq!(own.on_outcome(renewed, &config(), &now), None);
        let former = StoredLease::from(&held("10.1.1.0-24", 1, 5));
        own.on_put(&former, &now);
        assert_eq!(own.next_request(&config(), &now), None, "news of it may be late");
        own.on_snapshot(&[former], &now);
        let previous = Some(own.subnet());
        assert_eq!(own.next_request(&config(), &now), Some(LeaseRequest::Reclaim { previous }));
        assert_eq!(own.contest(now.instant), None, "no other node has written it");
    }

    #[test]
    fn a_lease_that_is_revoked_while_it_is_reclaimed_is_reclaimed_again() {
        let now = Now::for_test();
        let mut own = own_lease(&now);
        let own_subnet = own.subnet();
        own.on_gone(&own_subnet, &now);
        let previous = Some(own_subnet);
        let reclaim = LeaseRequest::Reclaim { previous };
        assert_eq!(own.next_request(&config(), &now), Some(reclaim));
        // The store gives it another one, takes that away again, and is slow to answer.
        let other = held("10.1.2.0-24", 1, 7);
        own.on_put(&StoredLease::from(&other), &now);
        own.on_gone(&other.lease.subnet, &now);
        own.announce(at(2), &config(), &now);
        let before = Lease { subnet: own_subnet, attrs: at(2) };
        let news = own.on_outcome(LeaseOutcome::Reclaimed(Ok(other.clone())), &config(), &now);
        assert_eq!(news, Some(LeaseNews::Reclaimed { before, is_outdated: true }));
        assert_eq!(own.subnet(), other.lease.subnet);
        let now = now.later(HOUR);
        let previous = Some(other.lease.subnet);
        assert_eq!(own.next_request(&config(), &now), Some(LeaseRequest::Reclaim { previous }));
    }

    #[test]
    fn a_subnet_that_does_not_fit_when_it_is_got_at_last_is_outdated() {
        let now = Now::for_test();
        let mut own = own_lease(&now);
        let other = NetworkConfig::parse(r#"{"Network":"10.2.0.0/16"}"#).expect("a config");
        own.announce(at(1), &other, &now);
        assert!(matches!(own.next_request(&other, &now), Some(LeaseRequest::Reclaim { .. })));
        // The operator changes their mind.
        own.announce(at(1), &config(), &now);
        let got = LeaseOutcome::Reclaimed(Ok(held("10.2.2.0-24", 1, 7)));
        let news = own.on_outcome(got, &config(), &now);
        assert!(matches!(news, Some(LeaseNews::Reclaimed { is_outdated: true, .. })), "{news:?}");
    }

    #[test]
    fn a_lease_is_renewed_a_margin_before_its_end() {
        assert_eq!(renew_in(24 * HOUR, HOUR, 0.0), 23 * HOUR);
        let early = renew_in(24 * HOUR, HOUR, 1.0);
        assert!(early < 23 * HOUR && early > 20 * HOUR, "{early:?}");
    }

    #[test]
    fn late_news_of_own_writes_is_told_from_writes_of_others() {
        let attrs = |kind: &str| LeaseAttrs { backend_type: kind.into(), ..LeaseAttrs::default() };
        let subnet = "10.1.1.0-24".parse().expect("a subnet");
        let told = |version, kind: &str| StoredLease {
            lease: Lease { subnet, attrs: attrs(kind) },
            version: Version::new(version),
            since: None,
            reserved: false,
        };
        let mut writes = OwnWrites(VecDeque::new());
        writes.add(Version::new(7), attrs("vxlan"));
        writes.add(Version::new(8), attrs("host-gw"));
        writes.add(Version::UNKNOWN, attrs("udp"));
        assert_eq!(writes.find(&told(7, "vxlan")), Some(OwnWrite::Answered));
        assert_eq!(writes.find(&told(9, "vxlan")), None, "somebody else wrote what we had written");
        assert_eq!(writes.find(&told(9, "udp")), Some(OwnWrite::Unanswered));
        let mut anothers = told(7, "vxlan");
        anothers.lease.attrs.public_ip = Some([192, 0, 2, 9].into());
        assert_eq!(writes.find(&anothers), None, "a restored store counts its versions again");
        for version in 10..10 + REMEMBERED_WRITES as u64 {
            writes.add(Version::new(version), attrs("vxlan"));
        }
        assert_eq!(writes.find(&told(8, "host-gw")), None, "bounded");
    }

    /// A store whose clock is wrong may say anything.
    #[test]
    fn whatever_is_said_of_its_life_a_lease_is_renewed_neither_all_the_time_nor_never() {
        let margins = [1, 60, 1_439].map(|minutes| Duration::from_secs(60 * minutes));
        let lives =
            [0, 1, 59, 60, 600, 3_600, 86_399, 86_400, 864_000, 20 * 365 * 86_400, u64::MAX];
        for (margin, life) in margins.iter().flat_map(|m| lives.map(|life| (*m, life))) {
            for chance in [0.0, 0.5, 1.0] {
                let wait = renew_in(Duration::from_secs(life), margin, chance);
                assert!(wait >= SHORTEST_RENEWAL_PAUSE, "{life} s, {margin:?}: {wait:?}");
                assert!(wait <= LEASE_TTL, "{life} s, {margin:?}: {wait:?}");
                let in_time = wait <= Duration::from_secs(life) || life < 60;
                assert!(in_time, "{life} s, {margin:?}: {wait:?}");
            }
        }
    }
}
