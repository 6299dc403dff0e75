//! What is done to whole batches between the pipeline and the wire: the place for encryption.
//!
//! Outbound, a batch of messages is sealed when all of it is there and before any of it is sent; inbound, what
//! was received is opened in place before anything looks at it. So a protection works on many packets at a
//! time, may use one thread's vector units on them in turn, and owns its keys and counters by itself. With
//! [`Protection::None`], which the udp backend has, both cost nothing.

use std::net::IpAddr;

use crate::outbound::Outbound;

#[derive(Clone, Debug, Default)]
pub(crate) enum Protection {
    /// Packets travel as they are, as with the Go flannel.
    #[default]
    None,
}

impl Protection {
    /// Turns each datagram of each message into what is sent in its place. `read`: what the device gave, which
    /// datagrams are partly made of.
    pub(crate) fn seal(&self, _batch: &mut Outbound, _read: &[u8]) {
        match self {
            Self::None => {}
        }
    }

    /// Turns what was received from a sender (datagrams of `segment` bytes each, or one if that is 0) into
    /// inner packets, in place, and returns how much of it is left and how long each datagram is then.
    pub(crate) fn open(
        &self,
        _from: IpAddr,
        received: &mut [u8],
        segment: usize,
    ) -> (usize, usize) {
        match self {
            Self::None => (received.len(), segment),
        }
    }
}
