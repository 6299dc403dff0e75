//! What is wanted of a cloud.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use flannel_wanted::KeyedEntry;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Access, Provider};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudEntry {
    Forwarding(Forwarding),
    Route(CloudRoute),
}

/// That the cloud lets this node's interface carry packets that are not its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    pub access: Arc<Access>,
}

/// A route of the cloud's table that leads to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudRoute {
    pub access: Arc<Access>,
    pub table: Table,
    pub destination: IpNet,
    /// This node, as the provider's routes name it: an interface, an instance or an address.
    pub next_hop: String,
}

/// Which of a network's route tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Table {
    /// The one that is in force for this node.
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
    pub(crate) fn access(&self) -> &Arc<Access> {
        match self {
            Self::Forwarding(forwarding) => &forwarding.access,
            Self::Route(route) => &route.access,
        }
    }

    pub(crate) fn route(&self) -> Option<&CloudRoute> {
        match self {
            Self::Forwarding(_) => None,
            Self::Route(route) => Some(route),
        }
    }
}

impl CloudRoute {
    pub(crate) fn key(&self) -> CloudKey {
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
    /// It stands on nothing of this machine's.
    type Device = Infallible;

    fn key(&self) -> CloudKey {
        match self {
            Self::Forwarding(forwarding) => CloudKey::Forwarding(forwarding.access.provider()),
            Self::Route(route) => route.key(),
        }
    }

    fn devices(&self) -> impl Iterator<Item = Infallible> {
        std::iter::empty()
    }

    fn describe(&self) -> String {
        match self {
            Self::Forwarding(Forwarding { access }) => {
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

    /// Without it nothing that others send to this node's pods arrives.
    fn is_foundation(&self) -> bool {
        true
    }
}
