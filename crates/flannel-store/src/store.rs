//! The trait every store implements, and the values that go through it.

use std::any::Any;
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use async_trait::async_trait;
use flannel_common::OperatorCommands;
use flannel_lease::{
    Claimant, Expiry, LEASE_TTL, Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetOrigin, Version,
};
use tokio::sync::{mpsc, watch};

use crate::{
    AnnouncedSince, Contact, NodeAnswer, RequestId, Requests, StoreError, StoreFindings,
    node_request,
};

/// What a config looks like, for those who have none yet.
pub const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// A lease this node holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub lease: Lease,
    pub expiry: Expiry,
    /// Renewing and releasing compare against it.
    pub version: Version,
}

/// A lease as it is in the store, whoever holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredLease {
    pub lease: Lease,
    pub version: Version,
    /// Since when it announces what it does, by the store's own account; `None` where the store gives none.
    pub since: Option<AnnouncedSince>,
    /// An operator keeps it for its node: it has no end.
    pub reserved: bool,
}

impl StoredLease {
    /// For the node whose lease it is. How long it lasts is an upper bound: nobody gives a lease more.
    pub fn held(&self, now: SystemTime) -> Held {
        let expiry = if self.reserved { Expiry::Never } else { Expiry::At(now + LEASE_TTL) };
        Held { lease: self.lease.clone(), expiry, version: self.version }
    }
}

impl From<&Held> for StoredLease {
    fn from(held: &Held) -> Self {
        let Held { lease, expiry, version } = held.clone();
        let reserved = expiry == Expiry::Never;
        Self { lease, version, since: None, reserved }
    }
}

/// A position in a store's events. Only the store that created it looks inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Cow<'static, str>);

impl Cursor {
    /// The start: the whole table comes first.
    pub const BEGINNING: Self = Self(Cow::Borrowed(""));

    /// By a store, in its own words.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Cow::Owned(text.into()))
    }

    /// For the store that gave it; `None` at the beginning.
    pub fn text(&self) -> Option<&str> {
        (*self != Self::BEGINNING).then_some(&*self.0)
    }
}

/// All leases at one instant; `cursor` is where watching goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub leases: Vec<StoredLease>,
    pub cursor: Cursor,
}

/// What a store knows of a node that asks for a subnet, and of all others at the same instant.
#[derive(Debug)]
pub struct Recalled {
    /// How the node last announced itself. Parts of its identity live nowhere else, such as the address
    /// of a device that a reboot has removed.
    pub announced: Option<LeaseAttrs>,
    pub snapshot: Snapshot,
    /// What the store itself needs from that moment.
    basis: Option<Box<dyn Any + Send + Sync>>,
}

impl Recalled {
    pub fn new(announced: Option<LeaseAttrs>, snapshot: Snapshot) -> Self {
        Self { announced, snapshot, basis: None }
    }

    /// For a node that is known by its address: the lease it would keep says how it was announced; else
    /// one that it would throw away.
    pub fn by_address(config: &NetworkConfig, me: &Claimant, snapshot: Snapshot) -> Self {
        let rank = |lease: &Lease| {
            (!config.accepts(&lease.subnet), me.previous != Some(lease.subnet), lease.subnet)
        };
        let own = snapshot.leases.iter().map(|stored| &stored.lease);
        let own = own.filter(|lease| me.has(config, &lease.attrs)).min_by_key(|lease| rank(lease));
        Self::new(own.map(|lease| lease.attrs.clone()), snapshot)
    }

    /// With what [`Store::try_acquire`] of the same store will ask for.
    pub fn with_basis(self, basis: impl Any + Send + Sync) -> Self {
        Self { basis: Some(Box::new(basis)), ..self }
    }

    pub fn basis<T: Any>(&self) -> Option<&T> {
        self.basis.as_ref()?.downcast_ref()
    }

    /// The lease on this subnet.
    pub fn lease(&self, subnet: &Subnet) -> Option<&StoredLease> {
        self.snapshot.leases.iter().find(|stored| stored.lease.subnet == *subnet)
    }

    /// The same list with the lease in it that came of it, and without those that the node had to leave.
    pub fn acquired(self, config: &NetworkConfig, held: Held) -> Acquired {
        let mut snapshot = self.snapshot;
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
}

/// Leases that are told while others are still being listed.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The lease that this node has, and keeps unless it is taken away meanwhile.
    pub own: Lease,
    /// Leases that were not told before, the node's own among them.
    pub leases: Vec<Lease>,
}

/// Called with each page.
pub type Pages<'a> = &'a mut (dyn FnMut(Page) + Send);

/// Our lease, and the list it was chosen from with our lease in it, so that no second listing is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquired {
    pub held: Held,
    pub snapshot: Snapshot,
}

/// What this node asks for: to be known by these attributes, if possible on the subnet it had before.
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

/// A change in the store, in the order it happened there.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreEvent {
    /// The network config's text, raw, as it is now.
    Config(String),
    ConfigGone,
    /// The whole table: what is not in it is gone. Sent when events may have been missed.
    Snapshot(Vec<StoredLease>),
    /// A lease was made, renewed or re-announced; the node's own ones too.
    Put(StoredLease),
    /// A lease was deleted or expired; the node's own ones too.
    Gone(Subnet),
    /// Of a store that assigns subnets: this is the node's own now, or it has none any more.
    Assigned(Option<Subnet>),
    /// The store cannot be reached, and why. Once per loss; what was known stays true meanwhile.
    Down(String),
    /// The store is reachable again.
    Up,
}

/// Addresses at which a node is known to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicAddresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

/// Whether pods of this node reach those of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeNetwork {
    Works,
    /// They do not, and why, for people.
    Fails(String),
}

/// A place that keeps the network config and the leases of all nodes.
#[async_trait]
pub trait Store: Send + Sync {
    /// For the log.
    fn name(&self) -> String;

    /// For people who ask what it is, and where.
    fn words(&self) -> String {
        self.name()
    }

    /// When it was last heard of; `None` for one that is a part of this process.
    fn contact(&self) -> Option<Contact> {
        None
    }

    /// Whether nodes take their subnets from a pool, or are assigned them here.
    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Pool
    }

    /// What an operator types to end a lease of this store, or to restart a daemon that uses it.
    fn operator_commands(&self) -> OperatorCommands {
        OperatorCommands::here(self.subnets() == SubnetOrigin::Store)
    }

    /// Nodes that get no packets and of which no lease tells, where the store assigns subnets.
    fn findings(&self) -> StoreFindings {
        StoreFindings::default()
    }

    /// The network config's text; `None` while nobody has written one.
    async fn config(&self) -> Result<Option<String>, StoreError>;

    /// How an operator writes it, for the one who reads that there is none: completes "write one with …".
    fn how_to_write_config(&self) -> String;

    /// Addresses at which this node is to be known to others, where an operator has written them here: they
    /// count more than the node's own options.
    async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        Ok(PublicAddresses::default())
    }

    /// Lists all leases, once, and says what is known of this node.
    async fn recall(&self, config: &NetworkConfig, me: &Claimant) -> Result<Recalled, StoreError>;

    /// The same, and passes on leases while others are still being listed, once it is known which one is
    /// this node's own. Pages are preliminary and may start over: only the result counts.
    async fn recall_by_pages(
        &self,
        config: &NetworkConfig,
        me: &Claimant,
        _pages: Pages<'_>,
    ) -> Result<Recalled, StoreError> {
        self.recall(config, me).await
    }

    /// Gets a subnet for this node, going by what [`Store::recall`] has just told: the one it is assigned;
    /// else the one it has by its public address, its previous one, or a free one. One try, without listing
    /// again: [`StoreError::Contended`] when somebody was quicker. [`crate::acquire`] tries until it succeeds.
    async fn try_acquire(
        &self,
        config: &NetworkConfig,
        claim: &Claim,
        recalled: Recalled,
    ) -> Result<Acquired, StoreError>;

    /// Gives the lease its full life again, with these attributes; a reservation stays one.
    /// [`StoreError::Lost`] when it is gone, [`StoreError::Taken`] when another node wrote it.
    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError>;

    /// This node's addresses have changed: connections from the old ones are dead, although
    /// it takes seconds until that shows. Make new ones.
    fn node_moved(&self) {}

    /// Records whether this node's network works. It may retry for as long as it needs; it is
    /// dropped as soon as there is something newer to report.
    async fn report(&self, _network: &NodeNetwork) {}

    /// Changes after `cursor`; [`Cursor::BEGINNING`] begins with a [`StoreEvent::Snapshot`]. Reconnects by
    /// itself, for ever, until the receiver is dropped. Must be called within a tokio runtime.
    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent>;

    /// What operators ask of nodes now, see [`crate::NodeRequest`]. What was known stays while the store is away. It
    /// is told while [`Self::watch`] is. Must be called within a tokio runtime.
    fn requests(&self) -> watch::Receiver<Requests> {
        node_request::none()
    }

    /// This node's answer to a request that stands. [`StoreError::Lost`] when it no longer does.
    async fn answer(&self, to: &RequestId, _answer: &NodeAnswer) -> Result<(), StoreError> {
        Err(StoreError::Lost { key: to.to_string() })
    }
}
