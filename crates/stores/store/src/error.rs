//! Errors of a store, in words an operator can act on.

use flannel_lease::{AcquireError, Lease};

use crate::Refusal;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no answer, or none that decides. It may be tried again later.
    #[error(
        "cannot {attempted}: no answer from {endpoint}: {reason}; check that it runs and is reachable"
    )]
    Unavailable { attempted: String, endpoint: String, reason: String },

    /// The server knows us and says no, or does not know us.
    #[error("not allowed to {attempted} at {endpoint}: {reason}; {fix}")]
    Denied { attempted: String, endpoint: String, reason: String, fix: &'static str },

    /// The server answered with an error of its own, e.g. that its disk quota is used up.
    #[error("cannot {attempted}: {endpoint} refuses: {reason}; see its log")]
    Refused { attempted: String, endpoint: String, reason: String },

    /// Whoever answers there belongs to another etcd cluster. The reason says what to do.
    #[error("cannot {attempted}: {endpoint} is not the etcd that this network is in: {reason}")]
    OtherCluster { attempted: String, endpoint: String, reason: String },

    /// It was understood, and it cannot be: what to do about it is up to the one who asked.
    #[error("cannot {attempted}: {refusal}")]
    Rejected { attempted: String, refusal: Box<Refusal> },

    #[error("the lease {key} no longer exists: acquire a new one")]
    Lost { key: String },

    #[error(
        "the lease {key} now belongs to {owner}: two nodes use the same subnet or public address; \
         acquire a new one",
        owner = owner(by)
    )]
    Taken { key: String, by: Box<Lease> },

    #[error(transparent)]
    OutOfSubnets(Box<AcquireError>),

    #[error("no subnet after {tries} tries, each time another node was quicker: try again")]
    Contended { tries: u32 },

    /// A store that assigns subnets has not given this node one yet.
    #[error("no subnet assigned yet: {reason}; {fix}")]
    NotAssignedYet { reason: String, fix: String },

    #[error("{key} cannot be read: {reason}; write it again")]
    Corrupt { key: String, reason: String },

    #[error("{option}: {reason}")]
    Misconfigured { option: String, reason: String },
}

impl StoreError {
    pub fn rejected(attempted: &str, refusal: impl Into<Refusal>) -> Self {
        Self::Rejected { attempted: attempted.to_owned(), refusal: Box::new(refusal.into()) }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. } | Self::Contended { .. } | Self::NotAssignedYet { .. }
        )
    }
}

impl From<AcquireError> for StoreError {
    fn from(error: AcquireError) -> Self {
        Self::OutOfSubnets(Box::new(error))
    }
}

fn owner(lease: &Lease) -> String {
    match lease.attrs.public_addresses().next() {
        Some(address) => address.to_string(),
        None => "a node whose attributes cannot be read".to_owned(),
    }
}
