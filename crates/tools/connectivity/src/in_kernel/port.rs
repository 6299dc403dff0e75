//! This process' end of a test pod: frames read and written at the far device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use flannel_common::Mac;
use flannel_link::open_packet_socket;
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
        let socket = open_packet_socket(devices.far, libc::ETH_P_ALL as u16, &[])?;
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
