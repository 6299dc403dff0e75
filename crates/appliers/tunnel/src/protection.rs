//! Protection of whole batches between the pipeline and the wire.
//!
//! Outbound, a batch of messages is sealed when it is complete and before any of it is sent; inbound, received
//! packets are opened in place before anything looks at them. So a protection works on many packets at a time, and
//! owns its keys and counters by itself. With [`Protection::None`], which the udp backend has, both cost nothing.

use std::sync::Arc;

use flannel_entries::tunnel::WireguardDevice;

use crate::outbound::Outbound;
use crate::table::Table;
use crate::wireguard::{DATA_OVERHEAD, MOST_GROWTH, Wireguard};

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

    /// Gives datagrams of a pipeline room for what this adds.
    pub(crate) fn prepare(&self, outbound: Outbound) -> Outbound {
        match self {
            Self::None => outbound,
            Self::Wireguard(_) => outbound.sealed(MOST_GROWTH),
        }
    }

    /// Bytes on the wire besides a packet and the headers of IP and UDP, without padding.
    pub(crate) fn overhead(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Wireguard(_) => DATA_OVERHEAD as u32,
        }
    }

    /// Seals each datagram of each message. `read` is what the device gave, which datagrams are partly made of.
    pub(crate) fn seal(&self, batch: &mut Outbound, table: &Table, read: &[u8]) {
        match self {
            Self::None => {}
            Self::Wireguard(wireguard) => wireguard.seal(batch, table, read),
        }
    }
}
