//! Detects whether a device is still in the network namespace that it was made in. Its queues do not tell: a device
//! that was moved to another namespace gives neither packets nor errors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netdevice::{index_to_name_inlined, name_to_index};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// Multicast group of devices that come, go and change.
const LINK_GROUP: u32 = libc::RTMGRP_LINK as u32;

/// Place of a device: its index in a network namespace, whatever it is called.
#[derive(Debug)]
pub(crate) struct DevicePlace {
    /// Socket of that namespace.
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

/// Notifications about devices of this network namespace.
#[derive(Debug)]
pub(crate) struct LinkEvents(OwnedFd);

impl LinkEvents {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINK_GROUP))?;
        Ok(Self(socket))
    }

    /// Reads all notifications. An overflow of the queue is an error of one call, and means the same.
    pub(crate) fn drain(&self) {
        // What does not fit is cut off, and is not looked at anyway.
        let mut start = [0_u8; 16];
        while let Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) =
            recv(&self.0, &mut start[..], RecvFlags::DONTWAIT)
        {}
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
