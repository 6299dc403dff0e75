//! Requests to a network, and who sends them.

use std::net::IpAddr;
use std::sync::Arc;

use flannel_lease::{KnownBy, LeaseAttrs, Subnet};
use flannel_store::{KeptLease, Refusal};

use super::owner::{ClientMachine, LeaseOwner, OwnerMachine};

/// Client that sends a request, as far as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// `None` when the server does not ask its clients who they are.
    pub name: Option<Arc<str>>,
    /// Machine of the client, among those that may have this name's token or certificate.
    pub machine: ClientMachine,
    /// Whether it may change the config and others' leases.
    pub admin: bool,
    pub addresses: Addresses,
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
    /// Client that may do everything: an operator, or anybody where there is no authentication.
    pub fn anybody() -> Self {
        let (machine, addresses) = (ClientMachine::Unknown, Addresses::Any);
        Self { name: None, machine, admin: true, addresses, source: None }
    }

    /// Client of a server without authentication: it may change leases, and nothing else.
    pub fn unnamed(source: IpAddr) -> Self {
        Self { admin: false, source: Some(source), ..Self::anybody() }
    }

    pub fn only_reads(&self) -> bool {
        self.addresses == Addresses::Nothing
    }

    pub fn may_announce(&self, address: IpAddr) -> bool {
        match &self.addresses {
            Addresses::Any => true,
            Addresses::Only(allowed) => self.admin || allowed.contains(&address),
            Addresses::Nothing => false,
        }
    }

    pub fn check_addresses(&self, attrs: &LeaseAttrs) -> Result<(), Refusal> {
        let foreign = attrs.public_addresses().find(|address| !self.may_announce(*address));
        foreign.map_or(Ok(()), |address| Err(Refusal::ForeignAddress(address)))
    }

    /// Whether this client may change a lease: it has the owner's name, and is the machine that acquired the lease or
    /// asks from its address. Without an owner the address alone tells.
    pub fn owns(&self, owner: Option<&str>, attrs: &LeaseAttrs) -> bool {
        match (&self.name, owner) {
            _ if self.admin => true,
            (None, _) => true,
            (Some(_), Some(owner)) => self.acquired(owner, attrs),
            (Some(_), None) => self.announces_all(attrs),
        }
    }

    /// Whether a lease is of the very node that announces itself so: by its name and machine, else by its address.
    pub fn is_same_client(&self, known_by: KnownBy, attrs: &LeaseAttrs, lease: &KeptLease) -> bool {
        let owner = lease.owner.as_deref();
        let acquired = owner.is_some_and(|owner| self.acquired(owner, &lease.attrs));
        acquired || known_by.same_node(&lease.attrs, attrs)
    }

    /// Whether this client is the one that acquired a lease, whatever else it may do as an operator.
    pub(super) fn acquired(&self, owner: &str, attrs: &LeaseAttrs) -> bool {
        let owner = LeaseOwner::read(owner);
        self.name.as_deref() == Some(owner.name) && self.is_machine_of(&owner, attrs)
    }

    /// Whether this client, which has the owner's name, is the owner and not another machine with the same token.
    fn is_machine_of(&self, owner: &LeaseOwner<'_>, attrs: &LeaseAttrs) -> bool {
        let asks_from = |address: IpAddr| Some(address) == self.source;
        let proved = match (&self.machine, owner.machine) {
            (ClientMachine::Vouched, _) => true,
            (ClientMachine::Secret(digest), OwnerMachine::Secret(of_owner)) => {
                **digest == *of_owner
            }
            (_, OwnerMachine::Address(address)) => asks_from(address),
            (_, OwnerMachine::Unnoted) => self.announces_all(attrs),
            (ClientMachine::Unknown, OwnerMachine::Secret(_)) => false,
        };
        proved || attrs.public_addresses().any(asks_from)
    }

    /// Whether its addresses are this client's: all named by its token, or, with any allowed, one is its source.
    fn announces_all(&self, attrs: &LeaseAttrs) -> bool {
        let mut all = attrs.public_addresses().peekable();
        all.peek().is_some()
            && match &self.addresses {
                Addresses::Any => all.any(|address| Some(address) == self.source),
                Addresses::Only(allowed) => all.all(|address| allowed.contains(&address)),
                Addresses::Nothing => false,
            }
    }

    /// Owner of a lease that this client has written. An operator leaves it to the former one.
    pub fn owner_after(&self, before: Option<Box<str>>) -> Option<Box<str>> {
        match before {
            Some(owner) if self.admin => Some(owner),
            before => self.as_owner().or(before),
        }
    }

    fn as_owner(&self) -> Option<Box<str>> {
        let name = self.name.as_deref()?;
        let machine = match (&self.machine, self.source) {
            (ClientMachine::Vouched, _) | (ClientMachine::Unknown, None) => OwnerMachine::Unnoted,
            (ClientMachine::Secret(digest), _) => OwnerMachine::Secret(digest),
            (ClientMachine::Unknown, Some(source)) => OwnerMachine::Address(source),
        };
        Some(LeaseOwner { name, machine }.to_string().into())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Acquire {
        attrs: LeaseAttrs,
        previous: Option<Subnet>,
        who: Who,
    },
    /// Without the `version` that the client knows, the address tells whose the lease is.
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
