//! This process' end of a test pod: frames read and written at the far device.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use flannel_kernel::Mac;
use rustix::net::{RecvFlags, SendFlags};

use super::devices::Devices;

const HEADER: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

pub(crate) struct Port {
    socket: OwnedFd,
    near: Mac,
    pod: Mac,
    buffer: Vec<u8>,
}

impl Port {
    pub(super) fn open(devices: &Devices) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers; what is returned is checked. Protocol 0: nothing is received before it is bound.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = devices.far as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives as long as the call, and its length is its own.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, near: devices.near_mac, pod: devices.pod_mac, buffer: vec![0; 1 << 16] })
    }

    /// A packet for the pod, if one waits. What else is on the device is passed over.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        loop {
            let (length, _) =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()).ok()?;
            let frame = &self.buffer[..length];
            let is_ip = frame.get(12..HEADER).is_some_and(|kind| kind == IPV4 || kind == IPV6);
            if is_ip && frame.starts_with(&self.pod.0) {
                return self.buffer.get(HEADER..length);
            }
        }
    }

    /// What the kernel does not take is lost, as on any wire.
    pub(crate) fn send(&self, packet: &[u8]) {
        let Some(first) = packet.first() else { return };
        let mut frame = Vec::with_capacity(HEADER + packet.len());
        frame.extend(self.near.0);
        frame.extend(self.pod.0);
        frame.extend(if first >> 4 == 4 { IPV4 } else { IPV6 });
        frame.extend(packet);
        let _ = rustix::net::send(&self.socket, &frame, SendFlags::empty());
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
