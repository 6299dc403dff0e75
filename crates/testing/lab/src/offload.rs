//! Cables that carry packets of their MTU only, as between real machines.
//!
//! A veth passes packets of 64 KB whole, which flatters every measurement. Without segmentation
//! offload at both ends it behaves like a card without it.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketType, socket};

use crate::error::{Context, Result};
use crate::namespace::{Namespace, on_new_thread};

const SET_TSO: u32 = 0x1f;
const SET_GSO: u32 = 0x24;
const SET_GRO: u32 = 0x2c;

/// Turns segmentation offload off and receive offload on, for devices of a namespace.
pub(crate) fn wire_like(namespace: &Namespace, devices: &[String]) -> Result<()> {
    on_new_thread(namespace.label(), || {
        namespace.enter_net()?;
        for device in devices {
            for (setting, on) in [(SET_TSO, 0), (SET_GSO, 0), (SET_GRO, 1)] {
                set(device, setting, on)
                    .context(|| format!("{}: offloads of {device}", namespace.label()))?;
            }
        }
        Ok(())
    })
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn set(device: &str, command: u32, data: u32) -> io::Result<()> {
    let fd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let name = CString::new(device)?;
    let mut value = EthtoolValue { command, data };
    // SAFETY: an interface request of all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes_with_nul();
    if bytes.len() > request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, &from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request and the value it points to live until the call has returned, and the
    // kernel reads a value of this layout for these commands.
    let result =
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
