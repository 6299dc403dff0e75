//! Operations of a node on a store: its own lease.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use async_trait::async_trait;
use flannel_common::Backoff;
use flannel_lease::{Claimant, Lease, LeaseAttrs, NetworkConfig, Subnet};

use crate::{Held, Snapshot, Store, StoreError, StoredLease};

const MAX_TRIES: u32 = 10;
const TRY_PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// The store of a node: it gets, keeps and renews one lease, and does what operators request.
#[async_trait]
pub trait NodeStore: Store {
    /// Addresses that an operator has written here for this node: they count more than the node's own options.
    async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        Ok(PublicAddresses::default())
    }

    /// Lists all leases, once, and says what is known of this node.
    async fn recall(&self, config: &NetworkConfig, me: &Claimant) -> Result<Recalled, StoreError>;

    /// The same, with preliminary pages of leases while others are listed, once the node's own is known.
    async fn recall_by_pages(
        &self,
        config: &NetworkConfig,
        me: &Claimant,
        _pages: Pages<'_>,
    ) -> Result<Recalled, StoreError> {
        self.recall(config, me).await
    }

    /// Renews with these attributes; a reservation stays one. It may be [`StoreError::Lost`] or [`StoreError::Taken`].
    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError>;

    /// Connections are dead, since this node's addresses have changed, although that shows only later: makes new ones.
    fn node_moved(&self) {}

    /// Records whether this node's network works, with retries. It is dropped when there is something newer to report.
    async fn report(&self, _network: &NodeNetwork) {}
}

/// Gets a subnet, however many others want one at the same time: tries, and recalls again when somebody else was
/// quicker.
///
/// `recalled` is what the first try goes by. `attrs` says how the node is announced, given how it was; the
/// public addresses must not depend on that.
pub async fn acquire<S: NodeStore + ?Sized>(
    store: &S,
    config: &NetworkConfig,
    me: &Claimant,
    recalled: Recalled,
    attrs: impl Fn(Option<&LeaseAttrs>) -> LeaseAttrs + Send,
) -> Result<Acquired, StoreError> {
    let mut backoff = TRY_PAUSES.tries(fastrand::Rng::new());
    let mut recalled = recalled;
    for _ in 0..MAX_TRIES {
        // The lease with the node's former attributes may be gone by the second try.
        let announced = recalled.announced.clone();
        let claim = Claim::new(attrs(announced.as_ref()), me.previous);
        match recalled.try_acquire(config, &claim).await {
            Err(StoreError::Contended { .. }) => {}
            done => return done,
        }
        tokio::time::sleep(backoff.pause()).await;
        recalled = store.recall(config, me).await?;
        recalled.announced = recalled.announced.or(announced);
    }
    Err(StoreError::Contended { tries: MAX_TRIES })
}

/// State of a node that asks for a subnet, and of all others at the same instant.
#[derive(Debug)]
pub struct Recalled {
    /// Attributes last announced, the only record of parts of its identity, such as a device's address after a reboot.
    pub announced: Option<LeaseAttrs>,
    pub snapshot: Snapshot,
    attempt: Box<dyn AcquireAttempt>,
}

/// One try of a store to get a subnet by what it has listed, with what it remembers of that moment.
#[async_trait]
pub trait AcquireAttempt: fmt::Debug + Send + Sync {
    /// See [`Recalled::try_acquire`].
    async fn run(
        self: Box<Self>,
        config: &NetworkConfig,
        claim: &Claim,
        listed: &Snapshot,
    ) -> Result<Held, StoreError>;
}

impl Recalled {
    pub fn new(
        announced: Option<LeaseAttrs>,
        snapshot: Snapshot,
        attempt: impl AcquireAttempt + 'static,
    ) -> Self {
        Self { announced, snapshot, attempt: Box::new(attempt) }
    }

    /// State of a node known by its address, with the attributes of the lease it would keep, else throw away.
    pub fn by_address(
        config: &NetworkConfig,
        me: &Claimant,
        snapshot: Snapshot,
        attempt: impl AcquireAttempt + 'static,
    ) -> Self {
        let rank = |lease: &Lease| {
            (!config.accepts(&lease.subnet), me.previous != Some(lease.subnet), lease.subnet)
        };
        let own = snapshot.leases.iter().map(|stored| &stored.lease);
        let own = own.filter(|lease| me.has(config, &lease.attrs)).min_by_key(|lease| rank(lease));
        Self::new(own.map(|lease| lease.attrs.clone()), snapshot, attempt)
    }

    /// Gets a subnet for the node: the one it is assigned; else the one it has by its public address, its
    /// previous one, or a free one. One try, without listing again: [`StoreError::Contended`] when somebody was
    /// quicker. [`acquire`] tries until it succeeds.
    pub async fn try_acquire(
        self,
        config: &NetworkConfig,
        claim: &Claim,
    ) -> Result<Acquired, StoreError> {
        let Self { snapshot, attempt, .. } = self;
        let held = attempt.run(config, claim, &snapshot).await?;
        Ok(with_lease(snapshot, config, held))
    }

    pub fn lease(&self, subnet: &Subnet) -> Option<&StoredLease> {
        self.snapshot.leases.iter().find(|stored| stored.lease.subnet == *subnet)
    }

    /// The list with a lease that the node holds already, and without those that it had to leave.
    pub fn acquired(self, config: &NetworkConfig, held: Held) -> Acquired {
        with_lease(self.snapshot, config, held)
    }
}

/// The list with the lease in it that came of it, and without those that the node had to leave.
fn with_lease(mut snapshot: Snapshot, config: &NetworkConfig, held: Held) -> Acquired {
    let me = Claimant::new(&held.lease.attrs, None);
    let left = |lease: &Lease| {
        lease.subnet == held.lease.subnet
            || me.has(config, &lease.attrs) && !config.accepts(&lease.subnet)
    };
    let subnet = held.lease.subnet;
    let before = snapshot.leases.iter().find(|stored| stored.lease.subnet == subnet);
    let since = before.and_then(|stored| stored.since);
    snapshot.leases.retain(|stored| !left(&stored.lease));
    snapshot.leases.push(StoredLease { since, ..StoredLease::from(&held) });
    Acquired { held, snapshot }
}

/// Leases that are passed on while others are still being listed.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The lease that this node has, and keeps unless it is taken away meanwhile.
    pub own: Lease,
    /// Leases of this page, the node's own among them.
    pub leases: Vec<Lease>,
}

pub type Pages<'a> = &'a mut (dyn FnMut(Page) + Send);

/// Our lease, and the list it was chosen from with our lease in it, so that no second listing is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquired {
    pub held: Held,
    pub snapshot: Snapshot,
}

/// Request of a node for a lease with these attributes, if possible on its former subnet.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub attrs: LeaseAttrs,
    pub previous: Option<Subnet>,
}

impl Claim {
    pub fn new(attrs: LeaseAttrs, previous: Option<Subnet>) -> Self {
        Self { attrs, previous }
    }

    pub fn claimant(&self) -> Claimant {
        Claimant::new(&self.attrs, self.previous)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicAddresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeNetwork {
    Works,
    /// They do not, and why, for people.
    Fails(String),
}
