//! Kernel settings that are not netlink: sysctl files and a device's checksum offload.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Once;

use rustix::fs::StatVfsMountFlags;

use flannel_common::IfName;
use flannel_entries::kernel::{Offload, Sysctl};

/// Whether the kernel has the value; a setting that it does not know, or that cannot be set here, counts as set.
pub(crate) fn sysctl_is_set(sysctl: &Sysctl) -> bool {
    match fs::read_to_string(path(sysctl)) {
        Ok(value) => value.trim() == sysctl.value || cannot_be_set(sysctl),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

pub(crate) fn set_sysctl(sysctl: &Sysctl) -> io::Result<()> {
    match fs::write(path(sysctl), &sysctl.value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) if cannot_be_set(sysctl) => return Ok(()),
        result => result?,
    }
    // Some settings accept any value and keep another.
    if sysctl_is_set(sysctl) {
        return Ok(());
    }
    let value = read_sysctl(&sysctl.path).unwrap_or_default();
    Err(io::Error::other(format!("the kernel accepts it and keeps {value}")))
}

/// Whether settings are read-only, as in a container without privileges: logged once, since no retry changes it.
fn cannot_be_set(sysctl: &Sysctl) -> bool {
    static LOGGED: Once = Once::new();
    let read_only = rustix::fs::statvfs(path(sysctl))
        .is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::RDONLY));
    if read_only {
        LOGGED.call_once(|| {
            let name = sysctl.path.replace('/', ".");
            tracing::info!(
                "/proc/sys is read-only here: settings such as {name}={} are left to the host",
                sysctl.value
            );
        });
    }
    read_only
}

/// Value in the kernel; `None` if it has no such setting.
pub(crate) fn read_sysctl(path: &str) -> Option<String> {
    let value = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    Some(value.trim().to_owned())
}

pub(crate) fn default_vxlan_port() -> u16 {
    let module = fs::read_to_string("/sys/module/vxlan/parameters/udp_port");
    module.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(8472)
}

fn path(sysctl: &Sysctl) -> PathBuf {
    Path::new("/proc/sys").join(&sysctl.path)
}

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// `struct ethtool_value`
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

pub(crate) fn offload_is_set(offload: &Offload) -> bool {
    ethtool(offload.link, ETHTOOL_GTXCSUM, 0).is_ok_and(|value| (value != 0) == offload.tx_checksum)
}

pub(crate) fn set_offload(offload: &Offload) -> io::Result<()> {
    ethtool(offload.link, ETHTOOL_STXCSUM, u32::from(offload.tx_checksum))?;
    if offload_is_set(offload) {
        return Ok(());
    }
    Err(io::Error::other("the kernel accepts it and leaves it as it was"))
}

/// Sets whether checksums of packets sent over this device are left to the hardware.
pub fn set_tx_checksum(link: IfName, on: bool) -> io::Result<()> {
    set_offload(&Offload { link, tx_checksum: on })
}

fn ethtool(link: IfName, command: u32, data: u32) -> io::Result<u32> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let mut value = EthtoolValue { command, data };
    // SAFETY: an all-zero ifreq is valid. The name fits with its final zero (IfName is at most 15
    // bytes), and `value` outlives the call that reads and writes it.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(link.as_str().bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        if libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(value.data)
}
