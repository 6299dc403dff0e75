//! The trait every store implements, and the values that go through it.

use std::sync::Arc;

use async_trait::async_trait;
use flannel_lease::{Expiry, Lease, LeaseAttrs, NetworkConfig, Subnet};
use tokio::sync::mpsc;

use crate::StoreError;

/// What a config looks like, for those who have none yet.
pub(crate) const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// A lease this node holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub lease: Lease,
    pub expiry: Expiry,
    /// The store's modification revision of the key: renewing and releasing compare against it.
    pub version: u64,
}

/// All leases at one instant; `cursor` is where watching goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub leases: Vec<Lease>,
    pub cursor: u64,
}

/// What [`Store::acquire`] gives: our lease, and the list it was chosen from with our lease in it,
/// so that no second listing is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquired {
    pub held: Held,
    pub snapshot: Snapshot,
}

/// What this node asks for: to be known by these attributes, if possible on the subnet it had before.
#[derive(Clone)]
pub struct Claim {
    pub announce: Announce,
    pub previous: Option<Subnet>,
}

/// What a node writes into its lease, given what stands in the one it has. Parts of a node's identity
/// live nowhere but in the store, such as the address of a device that a reboot has removed. The
/// public addresses must not depend on what is given.
pub type Announce = Arc<dyn Fn(Option<&LeaseAttrs>) -> LeaseAttrs + Send + Sync>;

impl Claim {
    /// By these attributes, whatever stood there before.
    pub fn new(attrs: LeaseAttrs, previous: Option<Subnet>) -> Self {
        Self { announce: Arc::new(move |_| attrs.clone()), previous }
    }
}

/// A change in the store, in the order it happened there.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreEvent {
    /// The network config's text, raw, as it is now.
    Config(String),
    ConfigGone,
    /// The whole table: what is not in it is gone. Sent when events may have been missed.
    Snapshot(Vec<Lease>),
    /// A lease was made, renewed or re-announced; the node's own ones too.
    Put(Lease),
    /// A lease was deleted or expired; the node's own ones too.
    Gone(Subnet),
    /// The store cannot be reached, and why. Once per loss; what was known stays true meanwhile.
    Down(String),
    /// The store is reachable again.
    Up,
}

/// A place that keeps the network config and the leases of all nodes.
#[async_trait]
pub trait Store: Send + Sync {
    /// For the log.
    fn name(&self) -> String;

    /// The network config's text; `None` while nobody has written one.
    async fn config(&self) -> Result<Option<String>, StoreError>;

    /// How an operator writes it, for the one who reads that there is none: completes "write one with …".
    fn how_to_write_config(&self) -> String;

    async fn snapshot(&self) -> Result<Snapshot, StoreError>;

    /// The lease on this subnet, whoever holds it. How long it lasts is an upper bound.
    async fn lease(&self, subnet: &Subnet) -> Result<Option<Held>, StoreError>;

    /// Gets a subnet for this node: the one it has by its public address, else its previous one,
    /// else a free one.
    async fn acquire(&self, config: &NetworkConfig, claim: &Claim) -> Result<Acquired, StoreError>;

    /// Gives the lease its full life again, with these attributes; a reservation stays one.
    /// [`StoreError::Lost`] when the key is gone, [`StoreError::Taken`] when another node wrote it.
    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError>;

    /// Gives the subnet back. A reservation stays, and so does a lease another node has taken.
    async fn release(&self, held: &Held) -> Result<(), StoreError>;

    /// This node's own addresses have changed: connections made from the former ones are dead, though
    /// nobody will say so for seconds. New ones are to be made.
    fn node_moved(&self) {}

    /// Changes after `cursor`; 0 begins with a [`StoreEvent::Snapshot`]. Reconnects by itself, for
    /// ever, until the receiver is dropped. Must be called within a tokio runtime.
    fn watch(&self, cursor: u64) -> mpsc::Receiver<StoreEvent>;
}
