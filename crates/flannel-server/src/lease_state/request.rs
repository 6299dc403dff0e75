//! What may be asked of a network, and by whom.

use std::net::IpAddr;
use std::sync::Arc;

use flannel_lease::{KnownBy, LeaseAttrs, Subnet};
use flannel_store::KeptLease;

/// Who asks, as far as the server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// `None` when the server does not ask its clients who they are.
    pub name: Option<Arc<str>>,
    /// May change the config and others' leases.
    pub admin: bool,
    /// Which public addresses it may announce.
    pub addresses: Addresses,
    /// Where it comes from.
    pub source: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    Any,
    Only(Arc<[IpAddr]>),
    /// None: it reads, and changes nothing.
    Nothing,
}

impl Who {
    /// Somebody who may do everything: an operator, or anybody where nobody is asked who they are.
    pub fn anybody() -> Self {
        Self { name: None, admin: true, addresses: Addresses::Any, source: None }
    }

    pub fn may_announce(&self, address: IpAddr) -> bool {
        match &self.addresses {
            Addresses::Any => true,
            Addresses::Only(allowed) => self.admin || allowed.contains(&address),
            Addresses::Nothing => false,
        }
    }

    /// The first of these addresses that is not this client's to announce.
    pub fn foreign_address(&self, attrs: &LeaseAttrs) -> Option<IpAddr> {
        addresses(attrs).into_iter().flatten().find(|address| !self.may_announce(*address))
    }

    /// Whether a lease may be renewed and released by this client. Of a lease whose owner is not
    /// known by name the address tells: all are the client's, or, if it may announce any, one is where
    /// it comes from.
    pub fn owns(&self, owner: Option<&str>, attrs: &LeaseAttrs) -> bool {
        match (&self.name, owner) {
            _ if self.admin => true,
            (Some(name), Some(owner)) => **name == *owner,
            (None, Some(_)) => true,
            (_, None) => {
                let mut all = addresses(attrs).into_iter().flatten().peekable();
                all.peek().is_some()
                    && match &self.addresses {
                        Addresses::Any => all.any(|address| Some(address) == self.source),
                        Addresses::Only(allowed) => all.all(|address| allowed.contains(&address)),
                        Addresses::Nothing => false,
                    }
            }
        }
    }

    /// Whether a lease is of the very node that announces itself so: by its name, else by its address.
    pub fn is_same_client(&self, known_by: KnownBy, attrs: &LeaseAttrs, lease: &KeptLease) -> bool {
        let same_name = self.name.is_some() && self.name == lease.owner;
        same_name || known_by.same_node(&lease.attrs, attrs)
    }

    /// Who a lease belongs to after this client has written it. An operator who changes another's
    /// lease leaves it to that one.
    pub fn owner_after(&self, before: Option<Arc<str>>) -> Option<Arc<str>> {
        match before {
            Some(owner) if self.admin => Some(owner),
            before => self.name.clone().or(before),
        }
    }
}

pub(super) fn addresses(attrs: &LeaseAttrs) -> [Option<IpAddr>; 2] {
    [attrs.public_ip.map(IpAddr::V4), attrs.public_ipv6.map(IpAddr::V6)]
}

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Acquire {
        attrs: LeaseAttrs,
        previous: Option<Subnet>,
        who: Who,
    },
    /// `version` is what the client believes to be the lease's; without it the address tells whose
    /// the lease is.
    Renew {
        subnet: Subnet,
        attrs: LeaseAttrs,
        version: Option<u64>,
        who: Who,
    },
    Release {
        subnet: Subnet,
        version: Option<u64>,
        who: Who,
    },
    Reserve {
        subnet: Subnet,
        attrs: LeaseAttrs,
    },
    Unreserve {
        subnet: Subnet,
    },
    /// Puts a lease there exactly as it was elsewhere, for moving a network between stores.
    Import {
        subnet: Subnet,
        attrs: LeaseAttrs,
        /// Milliseconds left; `None` for a reservation.
        left: Option<u64>,
    },
    SetConfig {
        text: String,
        /// Even if nodes lose their subnet by it.
        force: bool,
    },
    RemoveNetwork {
        /// Even if nodes still have leases.
        force: bool,
    },
}
