//! This node's own lease: taken, renewed in time, announced anew when the node changes, and taken
//! back when it was lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flannel_backend::LinkIdentity;
use flannel_common::{Backoff, Tries};
use flannel_kernel::Facts;
use flannel_lease::{
    Claimant, Expiry, LEASE_TTL, Lease, LeaseAttrs, Subnet, SubnetOrigin, Version, same_node,
};
use flannel_store::{Acquired, Held, Recalled, Snapshot, StoreError, StoredLease};

use super::Setup;
use super::address_in_use::{AddressInUse, find_other_machine};
use super::first_pages::FirstPages;
use super::identity::{self, Identity, Return};
use super::network::JoinedNetwork;
use super::timing::{ASSIGNMENT_POLL, ASSIGNMENT_REMINDER};
use super::uptime::Uptime;
use crate::link_holders_file::LinkHoldersFile;
use crate::logging::Throttle;
use crate::readiness::Readiness;

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Nodes that were started together do not renew together.
const RENEWAL_JITTER: f64 = 0.1;
/// A lease is renewed no more often than this.
const SOONEST: Duration = Duration::from_secs(60);
/// A lease that has less left than the margin is renewed within this time.
const SOON: Duration = Duration::from_secs(600);
/// A lease that is contested again within this time is a fight between two nodes.
const PEACE: Duration = Duration::from_secs(120);
/// So many of this node's own writes are told from those of others; a config seldom changes more often in a moment.
const REMEMBERED_WRITES: usize = 16;

/// Subnets of former networks that are remembered.
const FORMER_SUBNETS: usize = 4;

pub(super) struct OwnLease {
    held: Held,
    identity: Identity,
    /// Subnets that it had before and the network config had no place for, the latest last.
    former: Vec<Subnet>,
    /// When to renew; `None` for a reservation.
    renew_at: Option<Uptime>,
    /// It was lost or written by somebody else; when to take it back.
    question: Option<Instant>,
    /// The subnet is another node's by now, and none is free.
    is_anothers: bool,
    last_reclaim: Option<Instant>,
    /// What was last wrong with it, and until when that still counts.
    last_problem: Option<(String, Instant)>,
    writes: OwnWrites,
    backoff: Tries,
    /// When it was last said that no subnet is assigned.
    reminder: Throttle,
    rng: fastrand::Rng,
}

impl OwnLease {
    /// Tries until it has one.
    pub(super) async fn acquire(
        setup: &Setup,
        network: &JoinedNetwork,
        facts: Arc<Facts>,
    ) -> (Self, Snapshot) {
        let mut rng = fastrand::Rng::with_seed(setup.seed);
        let mut backoff = RETRY.tries(rng.fork());
        let mut reminder = Throttle::new(ASSIGNMENT_REMINDER);
        let mut identity = Identity::recall(setup, network, &facts);
        loop {
            let previous = setup.previous.subnet;
            match claim(&mut identity, setup, network, &facts, previous, true).await {
                Ok(Acquired { held, snapshot }) => {
                    backoff.reset();
                    tracing::info!(
                        event = "lease-acquired",
                        "Lease acquired: {:#}",
                        held.lease.subnet
                    );
                    let given_up = previous.filter(|it| !network.config().accepts(it));
                    let mut own = Self {
                        writes: OwnWrites::first(&held),
                        held,
                        identity,
                        former: given_up.into_iter().collect(),
                        renew_at: None,
                        question: None,
                        is_anothers: false,
                        last_reclaim: None,
                        last_problem: None,
                        backoff,
                        reminder,
                        rng,
                    };
                    own.schedule(setup.options.renew_margin);
                    return (own, snapshot);
                }
                Err(error) => {
                    if let ClaimError::AddressInUse(in_use) = &error
                        && previous == Some(in_use.subnet)
                    {
                        identity::withdraw_subnet_file(setup);
                    }
                    setup.report.say(Readiness::NotReady(format!("no lease: {error}")));
                    let pause = say_failed(&error, &mut backoff, &mut reminder);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.held.lease
    }

    pub(super) fn subnet(&self) -> Subnet {
        self.held.lease.subnet
    }

    /// Subnets that this node had to leave for a network config that had no place for them.
    pub(super) fn former(&self) -> &[Subnet] {
        &self.former
    }

    pub(super) fn expiry(&self) -> Expiry {
        self.held.expiry
    }

    // --- what the store says about it ---------------------------------------------------------

    pub(super) fn on_put(&mut self, stored: &StoredLease) {
        let lease = &stored.lease;
        let own = &self.held.lease.attrs;
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
                self.question.get_or_insert_with(Instant::now);
            }
            None => {
                let by = identity::address(&lease.attrs);
                let what = match same {
                    true => "by another machine that announces the same address",
                    false => "by another node, which announces itself at",
                };
                self.ask(&format!("was written {what} {by}"));
            }
        }
    }

    pub(super) fn on_gone(&mut self, subnet: &Subnet) {
        if *subnet == self.subnet() {
            self.ask("has been revoked: deleted or expired");
        }
    }

    pub(super) fn on_snapshot(&mut self, leases: &[StoredLease]) {
        match leases.iter().find(|stored| stored.lease.subnet == self.subnet()) {
            Some(stored) => self.on_put(stored),
            None => self.ask("is missing from the store"),
        }
    }

    /// A store that assigns subnets says which one is this node's now. That is nobody's to contest.
    pub(super) fn on_assigned(&mut self, assigned: Option<Subnet>) {
        let (now, own) = (Instant::now(), self.subnet());
        let what = match assigned {
            Some(subnet) if subnet == own && self.question.is_none() => return,
            Some(subnet) if subnet == own => "is assigned to this node again".to_owned(),
            Some(subnet) => format!("has been replaced: {subnet} is assigned to this node now"),
            None => "is not assigned to this node any more, nor is another one".to_owned(),
        };
        tracing::error!("This node's lease {own} {what}");
        self.question = Some(now);
        self.last_problem = Some((what, now));
    }

    fn ask(&mut self, what: &str) {
        if self.question.is_some() {
            return;
        }
        let now = Instant::now();
        // The first time it is taken back at once; if that does not last, somebody wants it as much.
        let recently = self.last_reclaim.is_some_and(|last| now.duration_since(last) < PEACE);
        let pause = if recently { self.backoff.pause() } else { Duration::ZERO };
        if !recently {
            self.backoff.reset();
        }
        tracing::error!(
            "This node's lease {} {what}; taking it back in {pause:.0?}",
            self.subnet()
        );
        self.question = Some(now + pause);
        // Taken back once it is settled; a fight is not over because nobody has struck for a second.
        let until = if recently { now + PEACE } else { now };
        self.last_problem = Some((what.to_owned(), until));
    }

    /// Why it cannot be relied upon that this node's subnet is its own.
    pub(super) fn contest(&self, now: Instant) -> Option<String> {
        let (what, until) = self.last_problem.as_ref()?;
        let fight = now < *until;
        let fix = if fight {
            "; if two nodes announce one address, give each its own --public-ip"
        } else {
            ""
        };
        (fight || self.question.is_some())
            .then(|| format!("this node's lease {} {what}{fix}", self.subnet()))
    }

    /// Another node has this node's subnet, and no pod may get an address of it.
    pub(super) fn is_anothers(&self) -> bool {
        self.is_anothers
    }

    /// The lease is to be taken back now.
    pub(super) fn is_in_question(&self) -> bool {
        self.question.is_some_and(|due| due <= Instant::now())
    }

    // --- what is done about it ----------------------------------------------------------------

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let now = Instant::now();
        let peace =
            self.last_problem.as_ref().map(|(_, until)| *until).filter(|until| *until > now);
        let next = self.question.or(self.renew_at.map(Uptime::next_look));
        next.into_iter().chain(peace).min()
    }

    pub(super) fn is_renewal_due(&self) -> bool {
        self.question.is_none() && self.renew_at.is_some_and(Uptime::has_come)
    }

    pub(super) async fn renew(&mut self, setup: &Setup, network: &JoinedNetwork, facts: &Facts) {
        let attrs = self.held.lease.attrs.clone();
        match setup.store.renew(&self.held, &attrs).await {
            Ok(held) => {
                self.hold(held);
                self.identity.note(&self.held, network, facts);
                self.backoff.reset();
                self.schedule(setup.options.renew_margin);
                if let Expiry::At(at) = self.held.expiry {
                    tracing::info!("Lease renewed, new expiration: {}", utc(at));
                }
            }
            Err(error @ (StoreError::Lost { .. } | StoreError::Taken { .. })) => {
                tracing::error!("{error}");
                self.ask("could not be renewed");
            }
            Err(error) => {
                let pause = self.backoff.pause();
                tracing::error!("Error renewing lease: {error}; next try in {pause:.0?}");
                self.renew_at = Some(Uptime::now() + pause);
            }
        }
    }

    /// Announces the node as it is now, on the subnet it has if the network still allows that.
    pub(super) async fn announce(&mut self, setup: &Setup, network: &JoinedNetwork, facts: &Facts) {
        let attrs = network.attrs(Some(&self.held.lease.attrs), facts, setup);
        if !network.config().accepts(&self.subnet()) {
            tracing::warn!("The subnet {} does not fit the network any more", self.subnet());
            let own = self.subnet();
            self.former.retain(|known| *known != own);
            self.former.push(own);
            self.former.drain(..self.former.len().saturating_sub(FORMER_SUBNETS));
            let now = Instant::now();
            self.question = Some(now);
            self.last_problem = Some(("does not fit the network config any more".to_owned(), now));
            return;
        }
        if attrs.announce_the_same_as(&self.held.lease.attrs) {
            return;
        }
        // The kernel must follow in any case; whether the others can be told now is another matter.
        match setup.store.renew(&self.held, &attrs).await {
            Ok(held) => {
                self.hold(held);
                self.identity.note(&self.held, network, facts);
                self.schedule(setup.options.renew_margin);
                tracing::info!(event = "node-announced", "Announced {} anew", self.subnet());
            }
            Err(error) => {
                tracing::error!("Cannot announce this node's change: {error}");
                self.writes.add(Version::UNKNOWN, attrs.clone());
                self.held.lease.attrs = attrs;
                match error {
                    StoreError::Lost { .. } | StoreError::Taken { .. } => {
                        self.ask("could not be announced anew");
                    }
                    _ => self.renew_at = Some(Uptime::now() + self.backoff.pause()),
                }
            }
        }
    }

    /// Tells the store how this node is announced now, changed or not, and nothing more if that fails.
    pub(super) async fn try_announce(
        &mut self,
        setup: &Setup,
        network: &JoinedNetwork,
        facts: &Facts,
    ) -> Result<(), StoreError> {
        let attrs = network.attrs(Some(&self.held.lease.attrs), facts, setup);
        let held = setup.store.renew(&self.held, &attrs).await?;
        self.hold(held);
        self.identity.note(&self.held, network, facts);
        self.schedule(setup.options.renew_margin);
        Ok(())
    }

    /// Takes the lease back, or another one. `None`: not this time; it will be tried again.
    pub(super) async fn reclaim(
        &mut self,
        setup: &Setup,
        network: &JoinedNetwork,
        facts: &Arc<Facts>,
    ) -> Option<Snapshot> {
        // Where the network of a subnet that it had comes back, so does the subnet.
        let mut wished = [self.subnet()].into_iter().chain(self.former.iter().rev().copied());
        let previous = wished.find(|it| network.config().accepts(it)).or(Some(self.subnet()));
        match claim(&mut self.identity, setup, network, facts, previous, false).await {
            Ok(Acquired { held, snapshot }) => {
                self.hold(held);
                self.question = None;
                self.last_reclaim = Some(Instant::now());
                self.schedule(setup.options.renew_margin);
                tracing::info!(event = "lease-acquired", "Lease acquired: {:#}", self.subnet());
                Some(snapshot)
            }
            Err(error) => {
                // With its own subnet free, this node would have got it.
                let is_anothers = matches!(error, ClaimError::Store(StoreError::OutOfSubnets(_)))
                    && network.config().accepts(&self.subnet());
                if is_anothers && !self.is_anothers {
                    identity::withdraw_subnet_file(setup);
                }
                self.is_anothers |= is_anothers;
                let pause = say_failed(&error, &mut self.backoff, &mut self.reminder);
                self.question = Some(Instant::now() + pause);
                None
            }
        }
    }

    fn hold(&mut self, held: Held) {
        self.writes.add(held.version, held.lease.attrs.clone());
        self.held = held;
        self.is_anothers = false;
    }

    fn schedule(&mut self, margin: Duration) {
        self.renew_at = self.held.expiry.remaining(SystemTime::now()).map(|left| {
            let wait = renew_in(left, margin, self.rng.f64());
            tracing::info!("Waiting for {wait:.0?} to renew lease");
            Uptime::now() + wait
        });
    }
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
    fn first(held: &Held) -> Self {
        Self(VecDeque::from([(held.version, held.lease.attrs.clone())]))
    }

    fn add(&mut self, version: Version, attrs: LeaseAttrs) {
        self.0.push_back((version, attrs));
        let surplus = self.0.len().saturating_sub(REMEMBERED_WRITES);
        self.0.drain(..surplus);
    }

    fn find(&self, stored: &StoredLease) -> Option<OwnWrite> {
        let is_this =
            |version: &Version| *version != Version::UNKNOWN && *version == stored.version;
        if self.0.iter().any(|(version, _)| is_this(version)) {
            return Some(OwnWrite::Answered);
        }
        let mut unanswered = self.0.iter().filter(|(version, _)| *version == Version::UNKNOWN);
        let says_the_same = |attrs: &LeaseAttrs| stored.lease.attrs.announce_the_same_as(attrs);
        unanswered.any(|(_, attrs)| says_the_same(attrs)).then_some(OwnWrite::Unanswered)
    }
}

/// When to renew a lease with this much time left: in time, and, whatever a store with a wrong
/// clock says, neither all the time nor never. `chance` is between 0 and 1.
fn renew_in(left: Duration, margin: Duration, chance: f64) -> Duration {
    let left = left.min(LEASE_TTL);
    // With less than the margin left: at half of that.
    let wait = if left > margin { left - margin } else { (left / 2).min(SOON) };
    wait.mul_f64(1.0 - RENEWAL_JITTER * chance).max(SOONEST)
}

/// Says why there is no lease. Returns how long to wait before the next try. While a subnet is still to be
/// assigned it only looks again, and logs a reminder now and then.
fn say_failed(error: &ClaimError, backoff: &mut Tries, reminder: &mut Throttle) -> Duration {
    if let ClaimError::Store(StoreError::NotAssignedYet { .. }) = error {
        if reminder.pass(Instant::now()).is_some() {
            tracing::warn!("Waiting for a lease: {error}");
        }
        return ASSIGNMENT_POLL;
    }
    let pause = backoff.pause();
    tracing::error!("Failed to acquire a lease: {error}; next try in {pause:.0?}");
    pause
}

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    AddressInUse(#[from] AddressInUse),
}

/// `starting`: the daemon has not run before this.
async fn claim(
    identity: &mut Identity,
    setup: &Setup,
    network: &JoinedNetwork,
    facts: &Arc<Facts>,
    previous: Option<Subnet>,
    starting: bool,
) -> Result<Acquired, ClaimError> {
    let (store, config) = (&*setup.store, network.config());
    let now = network.attrs(None, facts, setup);
    let mut me = Claimant::new(&now, identity.former(previous));
    let first_pages = FirstPages::new(setup, network, facts).filter(|_| starting);
    let recalled = match first_pages {
        Some(first) => store.recall_by_pages(config, &me, &mut |page| first.hear(page)).await?,
        None => store.recall(config, &me).await?,
    };
    let back = identity.come_back(setup, network, facts, &recalled, previous, starting).await?;
    let claim = ClaimContext { identity, setup, network, facts, now: &now };
    let acquired = match back {
        Return::Back(held) => recalled.acquired(config, *held),
        Return::Anew(previous) => {
            me.previous = previous;
            claim.acquire(&me, recalled, starting).await?
        }
        Return::Vanished => {
            let recalled = store.recall(config, &me).await?;
            claim.acquire(&me, recalled, starting).await?
        }
    };
    identity.note(&acquired.held, network, facts);
    Ok(acquired)
}

/// What a lease is asked for with.
struct ClaimContext<'a> {
    identity: &'a Identity,
    setup: &'a Setup,
    network: &'a JoinedNetwork,
    facts: &'a Facts,
    now: &'a LeaseAttrs,
}

impl ClaimContext<'_> {
    async fn acquire(
        &self,
        me: &Claimant,
        recalled: Recalled,
        starting: bool,
    ) -> Result<Acquired, ClaimError> {
        let Self { setup, network, facts, .. } = self;
        if starting {
            self.check_address_is_ours(me, &recalled).await?;
        }
        let taken = self.taken(me, &recalled);
        let identities: Vec<LinkIdentity> = taken.iter().map(|(identity, _)| *identity).collect();
        let before = network.attrs(recalled.announced.as_ref(), facts, setup);
        let attrs = |announced: Option<&LeaseAttrs>| {
            network.attrs_without(&identities, announced, facts, setup)
        };
        identity::say_taken(network, &before, &attrs(recalled.announced.as_ref()), &taken);
        Ok(flannel_store::acquire(&*setup.store, network.config(), me, recalled, attrs).await?)
    }

    /// What others had before this node. Leases that bear its address are its own.
    fn taken(&self, me: &Claimant, recalled: &Recalled) -> Vec<(LinkIdentity, Subnet)> {
        let leases = &recalled.snapshot.leases;
        let own = leases.iter().find(|stored| self.is_claimed(me, &stored.lease));
        let Setup { options, subnet_file, .. } = self.setup;
        let remembered = LinkHoldersFile::new(&options.data_dir, subnet_file).read();
        identity::taken_identities(self.network, self.now, own, leases, &remembered)
    }

    fn is_claimed(&self, me: &Claimant, lease: &Lease) -> bool {
        match self.setup.store.subnets() {
            SubnetOrigin::Pool => me.has(self.network.config(), &lease.attrs),
            SubnetOrigin::Store => me.previous == Some(lease.subnet),
        }
    }

    /// Refuses a lease that another machine lives on, which has this node's address.
    async fn check_address_is_ours(
        &self,
        me: &Claimant,
        recalled: &Recalled,
    ) -> Result<(), AddressInUse> {
        let Self { network, facts, now, .. } = self;
        let assigned = self.setup.store.subnets() == SubnetOrigin::Store;
        for stored in &recalled.snapshot.leases {
            let lease = &stored.lease;
            // Of a reservation nobody has made use yet; nodes that share an address know each other by other things.
            let has_come = !lease.attrs.backend_type.is_empty() || lease.attrs.probe_port.is_some();
            let is_own = assigned && me.previous == Some(lease.subnet);
            if !has_come
                || is_own
                || !same_node(network.config(), now, &lease.attrs)
                || assigned && !network.may_be_own(lease)
                || self.identity.proves_own(network, facts, now, stored)
            {
                continue;
            }
            if let Some(in_use) = find_other_machine(network, facts, now, lease).await {
                return Err(in_use);
            }
        }
        Ok(())
    }
}

fn utc(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map(|at| at.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

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
                assert!(wait >= SOONEST, "{life} s, {margin:?}: {wait:?}");
                assert!(wait <= LEASE_TTL, "{life} s, {margin:?}: {wait:?}");
                let in_time = wait <= Duration::from_secs(life) || life < 60;
                assert!(in_time, "{life} s, {margin:?}: {wait:?}");
            }
        }
    }
}
