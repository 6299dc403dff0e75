//! The task that asks the store for this node's lease: it acquires, renews, announces and reclaims it, one request at a
//! time. The network's task sends requests and receives outcomes, and never waits for the store itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_backend::LinkIdentity;
use flannel_common::{Backoff, Task, Throttle, Tries};
use flannel_entries::facts::Facts;
use flannel_lease::{Claimant, Lease, LeaseAttrs, Subnet, SubnetOrigin, same_node};
use flannel_store::{Acquired, Held, Recalled, Snapshot, StoreError};
use tokio::sync::mpsc;

use super::Setup;
use super::address_in_use::{AddressInUse, find_other_machine};
use super::first_pages::FirstPages;
use super::identity::{self, FormerLease, Identity};
use super::network::JoinedNetwork;
use super::now::Now;
use super::own_lease::OwnLease;
use crate::appliers::Appliers;
use crate::link_holders_file::LinkHoldersFile;
use crate::readiness::Readiness;

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Between two looks for a subnet that is yet to be assigned to this node.
const ASSIGNMENT_POLL: Duration = Duration::from_secs(2);
const ASSIGNMENT_REMINDER: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
pub(super) enum LeaseRequest {
    /// Gives the lease its full life again, with these attributes.
    Renew { held: Box<Held>, attrs: Box<LeaseAttrs>, timeout: Option<Duration> },
    /// Takes the lease back, or another one: this one if it can be had.
    Reclaim { previous: Option<Subnet> },
}

#[derive(Debug)]
pub(super) enum LeaseOutcome {
    Renewed(Result<Held, RenewError>),
    Reclaimed(Result<Held, ClaimError>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RenewError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the store has not answered for {0:?}")]
    Timeout(Duration),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    AddressInUse(#[from] AddressInUse),
}

pub(super) struct LeaseTask {
    pub(super) requests: mpsc::UnboundedSender<Box<LeaseJob>>,
    /// The outcome of each request comes before the next is carried out.
    pub(super) outcomes: mpsc::UnboundedReceiver<LeaseOutcome>,
    _task: Task,
}

pub(super) struct LeaseJob {
    pub(super) request: LeaseRequest,
    pub(super) network: JoinedNetwork,
    pub(super) facts: Arc<Facts>,
}

impl LeaseTask {
    /// Gets this node its first lease, however long that takes, and starts the task that keeps it.
    pub(super) async fn acquire(
        setup: &Arc<Setup>,
        appliers: &Appliers,
        network: &JoinedNetwork,
        facts: Arc<Facts>,
    ) -> (Self, OwnLease, Snapshot) {
        let mut rng = fastrand::Rng::with_seed(setup.seed);
        let mut retry = ClaimRetry::new(rng.fork());
        let mut identity = Identity::recall(setup, network, &facts);
        let previous = setup.previous.lease_subnet();
        let first_pages = FirstPages::new(setup, appliers, network, &facts);
        let start = Start::First(first_pages.as_ref());
        let acquired = loop {
            let claimed = claim(&mut identity, setup, network, &facts, previous, start);
            let error = match claimed.await {
                Ok(acquired) => break acquired,
                Err(error) => error,
            };
            if let ClaimError::AddressInUse(in_use) = &error
                && previous == Some(in_use.subnet)
            {
                identity::withdraw_subnet_file(setup);
            }
            setup.report.say(Readiness::not_ready(format!("no lease: {error}")));
            let pause = retry.pause_after(&error, Instant::now());
            tokio::time::sleep(pause).await;
        };
        retry.backoff.reset();
        let Acquired { held, snapshot } = acquired;
        let given_up = previous.filter(|it| !network.config().accepts(it));
        let margin = setup.options.renew_margin;
        let own = OwnLease::new(held, given_up, margin, retry, rng, &Now::read());
        let (requests, jobs) = mpsc::unbounded_channel();
        let (tell, outcomes) = mpsc::unbounded_channel();
        let task = Task::spawn("own-lease", carry_out(setup.clone(), identity, jobs, tell));
        (Self { requests, outcomes, _task: task }, own, snapshot)
    }
}

async fn carry_out(
    setup: Arc<Setup>,
    mut identity: Identity,
    mut jobs: mpsc::UnboundedReceiver<Box<LeaseJob>>,
    tell: mpsc::UnboundedSender<LeaseOutcome>,
) {
    while let Some(job) = jobs.recv().await {
        let LeaseJob { request, network, facts } = *job;
        let outcome = match request {
            LeaseRequest::Renew { held, attrs, timeout } => {
                let renewed = renew(&setup, &held, &attrs, timeout).await;
                if let Ok(held) = &renewed {
                    identity.note(held, identity::card(&network, &facts));
                }
                LeaseOutcome::Renewed(renewed)
            }
            LeaseRequest::Reclaim { previous } => {
                let claimed =
                    claim(&mut identity, &setup, &network, &facts, previous, Start::Later).await;
                LeaseOutcome::Reclaimed(claimed.map(|acquired| acquired.held))
            }
        };
        if tell.send(outcome).is_err() {
            return;
        }
    }
}

async fn renew(
    setup: &Setup,
    held: &Held,
    attrs: &LeaseAttrs,
    timeout: Option<Duration>,
) -> Result<Held, RenewError> {
    let renewed = setup.store.renew(held, attrs);
    let Some(timeout) = timeout else { return Ok(renewed.await?) };
    match tokio::time::timeout(timeout, renewed).await {
        Ok(renewed) => Ok(renewed?),
        Err(_) => Err(RenewError::Timeout(timeout)),
    }
}

pub(super) struct ClaimRetry {
    pub(super) backoff: Tries,
    /// When it was last said that no subnet is assigned.
    reminder: Throttle,
}

impl ClaimRetry {
    pub(super) fn new(rng: fastrand::Rng) -> Self {
        Self { backoff: RETRY.tries(rng), reminder: Throttle::new(ASSIGNMENT_REMINDER) }
    }

    /// Logs why there is no lease. Returns the pause before the next try, short while a subnet is yet to be assigned.
    pub(super) fn pause_after(&mut self, error: &ClaimError, now: Instant) -> Duration {
        if let ClaimError::Store(StoreError::NotAssignedYet { .. }) = error {
            if self.reminder.pass(now).is_some() {
                tracing::warn!("Waiting for a lease: {error}");
            }
            return ASSIGNMENT_POLL;
        }
        let pause = self.backoff.pause();
        tracing::error!("Failed to acquire a lease: {error}; next try in {pause:.0?}");
        pause
    }
}

#[derive(Clone, Copy)]
enum Start<'a> {
    /// It has not; pages of the store's list go there, if anywhere.
    First(Option<&'a FirstPages<'a>>),
    Later,
}

async fn claim(
    identity: &mut Identity,
    setup: &Setup,
    network: &JoinedNetwork,
    facts: &Arc<Facts>,
    previous: Option<Subnet>,
    start: Start<'_>,
) -> Result<Acquired, ClaimError> {
    let (store, config) = (&*setup.store, network.config());
    let now = network.attrs(None, facts, setup);
    let mut me = Claimant::new(&now, identity.former(previous));
    let recalled = match start {
        Start::First(Some(first)) => {
            store.recall_by_pages(config, &me, &mut |page| first.hear(page)).await?
        }
        Start::First(None) | Start::Later => store.recall(config, &me).await?,
    };
    let starting = matches!(start, Start::First(_));
    let back = identity.come_back(setup, network, facts, &recalled, previous, starting).await?;
    let claim = ClaimContext { identity, setup, network, facts, now: &now };
    let acquired = match back {
        FormerLease::Regained(held) => recalled.acquired(config, *held),
        FormerLease::Acquire(previous) => {
            me.previous = previous;
            claim.acquire(&me, recalled, starting).await?
        }
        FormerLease::Vanished => {
            let recalled = store.recall(config, &me).await?;
            claim.acquire(&me, recalled, starting).await?
        }
    };
    identity.note(&acquired.held, identity::card(network, facts));
    Ok(acquired)
}

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
                || assigned && !network.backend.is_own(&network.node, lease)
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
