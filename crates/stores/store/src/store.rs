//! The part of a store that everybody reads, and its values.

use std::time::SystemTime;

use async_trait::async_trait;
use flannel_common::OperatorCommands;
use flannel_lease::{Expiry, LEASE_TTL, Lease, Subnet, SubnetOrigin, Version};
use tokio::sync::mpsc;

use crate::{AnnouncedSince, Contact, RequestStore, StoreError, StoreFindings};

pub const EXAMPLE_CONFIG: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub lease: Lease,
    pub expiry: Expiry,
    /// Version that renewing and releasing compare with.
    pub version: Version,
}

/// A lease as it is in the store, whoever holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredLease {
    pub lease: Lease,
    pub version: Version,
    /// Time since which it has announced its attributes, by the store's own record; `None` where there is none.
    pub since: Option<AnnouncedSince>,
    /// Whether it is reserved for its node and has no end.
    pub reserved: bool,
}

impl StoredLease {
    /// The lease for its own node. Its end is an upper bound: no store gives a lease more.
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
pub struct Cursor(String);

impl Cursor {
    /// The start: a snapshot comes first.
    pub const BEGINNING: Self = Self(String::new());

    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Text for the store that made it; `None` at the beginning.
    pub fn text(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(&*self.0)
    }
}

/// All leases at one instant; `cursor` is where a watch continues.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub leases: Vec<StoredLease>,
    pub cursor: Cursor,
}

/// A change in the store, in the order it happened there.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreEvent {
    Config(String),
    ConfigGone,
    /// All leases: what is not among them is gone. Sent when events may have been missed.
    Snapshot(Vec<StoredLease>),
    /// A lease was made, renewed or re-announced; the node's own ones too.
    Put(StoredLease),
    /// A lease was deleted or expired; the node's own ones too.
    Gone(Subnet),
    /// Subnet that the store has assigned to this node, or none any more.
    Assigned(Option<Subnet>),
    /// The store is unreachable, and why. Once per loss; what was known stays true meanwhile.
    Down(String),
    Up,
}

/// A store as anybody may read it: see [`crate::NodeStore`] and [`crate::OperatorStore`] for more.
#[async_trait]
pub trait Store: Send + Sync {
    fn name(&self) -> String;

    /// Kind and address, for people.
    fn description(&self) -> String {
        self.name()
    }

    /// Last contact; `None` for a store that is a part of this process.
    fn contact(&self) -> Option<Contact> {
        None
    }

    /// Origin of subnets: a pool that nodes take them from, or an assignment by the store.
    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Pool
    }

    /// Commands with which an operator ends a lease of this store or restarts a daemon that uses it.
    fn operator_commands(&self) -> OperatorCommands {
        OperatorCommands::here(self.subnets() == SubnetOrigin::Store)
    }

    /// Nodes that get no packets and have no lease, where the store assigns subnets.
    fn findings(&self) -> StoreFindings {
        StoreFindings::default()
    }

    /// The network config's text; `None` while there is none.
    async fn config(&self) -> Result<Option<String>, StoreError>;

    /// Command with which an operator writes a config: completes "write one with …".
    fn how_to_write_config(&self) -> String;

    /// Changes after `cursor`, with a [`StoreEvent::Snapshot`] first from [`Cursor::BEGINNING`]. Reconnects until the
    /// receiver is dropped. Must be called within a tokio runtime.
    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent>;

    fn requests(&self) -> &dyn RequestStore;
}
