//! Entries of a cloud.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use flannel_wanted::{Importance, KeyedEntry};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Access, Provider};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudEntry {
    /// Permission for this node's interface to forward packets that are not its own.
    Forwarding(Arc<Access>),
    Route(CloudRoute),
}

/// A route of the cloud's table that leads to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudRoute {
    pub access: Arc<Access>,
    pub table: Table,
    pub destination: IpNet,
    /// Next hop, as the provider names it: an interface, an instance or an address of this node.
    pub next_hop: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Table {
    /// The table that is in force for this node.
    Detected,
    Named(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloudKey {
    Forwarding(Provider),
    Route(Provider, Table, IpNet),
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detected => f.write_str("this node's route table"),
            Self::Named(id) => write!(f, "the route table {id}"),
        }
    }
}

impl CloudEntry {
    pub fn access(&self) -> &Arc<Access> {
        match self {
            Self::Forwarding(access) => access,
            Self::Route(route) => &route.access,
        }
    }

    pub fn route(&self) -> Option<&CloudRoute> {
        match self {
            Self::Forwarding(_) => None,
            Self::Route(route) => Some(route),
        }
    }
}

impl CloudRoute {
    pub fn key(&self) -> CloudKey {
        CloudKey::Route(self.access.provider(), self.table.clone(), self.destination)
    }
}

impl fmt::Display for CloudRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { access, table, destination, next_hop } = self;
        write!(f, "route {destination} to {next_hop} in {table} ({})", access.provider())
    }
}

impl KeyedEntry for CloudEntry {
    type Key = CloudKey;
    /// It needs no device of this machine.
    type Device = Infallible;

    fn key(&self) -> CloudKey {
        match self {
            Self::Forwarding(access) => CloudKey::Forwarding(access.provider()),
            Self::Route(route) => route.key(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Forwarding(access) => {
                format!("forwarding by {} ({})", access.interface.id, access.provider())
            }
            Self::Route(route) => route.to_string(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Forwarding(_) => "cloud-forwarding",
            Self::Route(_) => "cloud-route",
        }
    }

    /// Without it no packet for this node's pods arrives.
    fn importance(&self) -> Importance {
        Importance::Foundation
    }
}
