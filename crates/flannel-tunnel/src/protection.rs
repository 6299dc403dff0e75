//! What is done to whole batches between the pipeline and the wire.
//!
//! Outbound, a batch of messages is sealed when all of it is there and before any of it is sent; inbound, what
//! was received is opened in place before anything looks at it. So a protection works on many packets at a
//! time, and owns its keys and counters by itself. With [`Protection::None`], which the udp backend has, both cost
//! nothing.

use std::sync::Arc;

use crate::outbound::Outbound;
use crate::table::Table;
use crate::wireguard::{DATA_OVERHEAD, MOST_GROWTH, Wireguard, WireguardDevice};

#[derive(Clone, Debug, Default)]
pub(crate) enum Protection {
    /// Packets travel as they are, as with the Go flannel.
    #[default]
    None,
    Wireguard(Arc<Wireguard>),
}

impl Protection {
    pub(crate) fn of(config: Option<&WireguardDevice>) -> Self {
        config.map_or(Self::None, |config| Self::Wireguard(Arc::new(Wireguard::new(config))))
    }

    pub(crate) fn wireguard(&self) -> Option<&Arc<Wireguard>> {
        match self {
            Self::None => None,
            Self::Wireguard(wireguard) => Some(wireguard),
        }
    }

    /// A pipeline whose datagrams have room for what this adds.
    pub(crate) fn prepare(&self, outbound: Outbound) -> Outbound {
        match self {
            Self::None => outbound,
            Self::Wireguard(_) => outbound.sealed(MOST_GROWTH),
        }
    }

    /// What is on the wire besides a packet and the headers of IP and UDP, without padding.
    pub(crate) fn overhead(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Wireguard(_) => DATA_OVERHEAD as u32,
        }
    }

    /// Turns each datagram of each message into what is sent in its place. `read`: what the device gave, which
    /// datagrams are partly made of.
    pub(crate) fn seal(&self, batch: &mut Outbound, table: &Table, read: &[u8]) {
        match self {
            Self::None => {}
            Self::Wireguard(wireguard) => wireguard.seal(batch, table, read),
        }
    }
}
