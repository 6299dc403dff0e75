//! Notifications about changes in the kernel.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;

use flannel_netlink::{Attributes, Message, Protocol, Socket, decode, messages, xfrm};

/// Receive buffer for a burst of some ten thousand changes. Beyond it the kernel reports an overflow.
const RECEIVE_MEMORY: i32 = 16 << 20;

/// `RTM_NEWNETCONF`, `RTM_DELNETCONF`, and in them, after the family, `NETCONFA_IFINDEX`.
const NETCONF: [u16; 2] = [80, 81];
const NETCONF_HEADER_LEN: usize = 4;
const NETCONF_DEVICE: u16 = 1;

pub(crate) struct Monitor {
    socket: Socket,
    /// Opened when there are policies to be watched.
    policies: Option<Socket>,
}

pub(crate) enum Notification {
    /// A change, and the netlink port of whoever made it (often its process id; 0 is the kernel).
    Change(RouteNetlinkMessage, u32),
    /// A change that the codec cannot decode, such as forwarding, and the index of its device, if it is known.
    Setting(Option<u32>),
    /// Notifications were lost: the state of the kernel is unknown until it is read again.
    Overflow,
}

impl Monitor {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::Route)?;
        socket.set_receive_memory(RECEIVE_MEMORY)?;
        for group in [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR] {
            socket.join(group)?;
        }
        Ok(Self { socket, policies: None })
    }

    pub(crate) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(&self.socket).chain(&self.policies).map(|socket| socket.as_fd()).collect()
    }

    /// Watches routes, neighbours, rules, and settings of devices such as forwarding, too.
    pub(crate) fn watch_everything(&self) -> io::Result<()> {
        for group in [libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV6_ROUTE, libc::RTNLGRP_NEIGH] {
            self.socket.join(group)?;
        }
        // A kernel may lack these.
        for group in [
            libc::RTNLGRP_IPV4_RULE,
            libc::RTNLGRP_IPV6_RULE,
            libc::RTNLGRP_IPV4_NETCONF,
            libc::RTNLGRP_IPV6_NETCONF,
        ] {
            let _ = self.socket.join(group);
        }
        Ok(())
    }

    pub(crate) fn watch_policies(&mut self) -> io::Result<()> {
        if self.policies.is_none() {
            let socket = Socket::open(Protocol::Xfrm)?;
            socket.join(xfrm::POLICY_GROUP)?;
            self.policies = Some(socket);
        }
        Ok(())
    }

    /// Netlink port of whoever has changed policies since the last call, unless through `own_port`.
    pub(crate) fn drain_policies(&mut self, own_port: u32) -> io::Result<Option<u32>> {
        let mut by = None;
        let Some(socket) = &mut self.policies else { return Ok(None) };
        loop {
            match socket.receive_now() {
                Ok(datagram) => {
                    for message in messages(datagram) {
                        let port = message?.port;
                        if port != own_port || port == 0 {
                            by = Some(port);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(by),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => by = Some(0),
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes on what has come since the last call, without what the kernel marks as made through `own_port`.
    pub(crate) fn drain(
        &mut self,
        own_port: u32,
        mut hear: impl FnMut(Notification),
    ) -> io::Result<()> {
        loop {
            let datagram = match self.socket.receive_now() {
                Ok(datagram) => datagram,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    hear(Notification::Overflow);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in messages(datagram) {
                let message = message?;
                if message.port == own_port && own_port != 0 {
                    continue;
                }
                match decode(message) {
                    Some(change) => hear(Notification::Change(change, message.port)),
                    None => hear(Notification::Setting(device_of_setting(message))),
                }
            }
        }
    }
}

fn device_of_setting(message: Message<'_>) -> Option<u32> {
    let settings =
        message.payload.get(NETCONF_HEADER_LEN..).filter(|_| NETCONF.contains(&message.kind))?;
    let device = Attributes(settings).get(NETCONF_DEVICE)?.try_into().map(i32::from_ne_bytes);
    // Negative numbers mean all devices.
    u32::try_from(device.ok()?).ok()
}
