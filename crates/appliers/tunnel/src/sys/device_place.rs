//! Detects whether a device is still in the network namespace that it was made in. Its queues do not tell: a device
//! that was moved to another namespace gives neither packets nor errors.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netdevice::{index_to_name_inlined, name_to_index};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Place of a device: its index in a network namespace, whatever it is called.
#[derive(Debug)]
pub(crate) struct DevicePlace {
    socket: OwnedFd,
    /// Index; 0 if it is not in this namespace.
    index: u32,
}

impl DevicePlace {
    /// Finds a device in the network namespace of the calling thread.
    pub(crate) fn find(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .or_else(|_| socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None))?;
        let index = name_to_index(&socket, name).unwrap_or(0);
        Ok(Self { socket, index })
    }

    pub(crate) fn is_left(&self) -> bool {
        self.index == 0 || index_to_name_inlined(&self.socket, self.index).is_err()
    }
}
