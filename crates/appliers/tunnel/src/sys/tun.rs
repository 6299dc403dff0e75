//! A TUN device that outlives the process that serves it, with several queues where the kernel has them.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::{check, check_len};
use crate::vnet;

const PATH: &str = "/dev/net/tun";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunFeatures {
    /// Large TCP packets, both ways.
    pub(crate) tso: bool,
    /// Large UDP packets, both ways (Linux 6.2).
    pub(crate) uso: bool,
    pub(crate) multi_queue: bool,
}

#[derive(Debug)]
pub(crate) struct TunQueue(File);

/// Opens or makes a device with as many of the requested queues and features as the kernel has.
pub(crate) fn open(
    name: &str,
    queues: usize,
    wanted: TunFeatures,
) -> io::Result<(Vec<TunQueue>, TunFeatures)> {
    let mut features = wanted;
    let first = loop {
        match attach(name, features) {
            Ok(first) => break first,
            // Made by another process with other features, or by a kernel without them.
            Err(error) if features.multi_queue && is_refusal(&error) => {
                features.multi_queue = false
            }
            Err(error) if features.tso && is_refusal(&error) => {
                features =
                    TunFeatures { multi_queue: wanted.multi_queue, ..TunFeatures::default() };
            }
            Err(error) => return Err(error),
        }
    };
    ioctl(&first, libc::TUNSETPERSIST, 1)?;
    if features.tso {
        let vnet_len: libc::c_int = vnet::LEN as libc::c_int;
        // SAFETY: the kernel reads one int.
        check(unsafe {
            libc::ioctl(first.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const vnet_len)
        })?;
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let all = tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6;
        features.uso &= ioctl(&first, libc::TUNSETOFFLOAD, all.into()).is_ok();
        if !features.uso {
            ioctl(&first, libc::TUNSETOFFLOAD, tcp.into())?;
        }
    }
    let mut all = vec![TunQueue(first)];
    while features.multi_queue && all.len() < queues {
        match attach(name, features) {
            Ok(queue) => all.push(TunQueue(queue)),
            Err(_) => break,
        }
    }
    features.multi_queue = all.len() > 1;
    Ok((all, features))
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

fn no_request() -> libc::ifreq {
    // SAFETY: an interface request of all zeroes is a valid value.
    unsafe { std::mem::zeroed() }
}

fn attach(name: &str, features: TunFeatures) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(PATH)?;
    let mut request = no_request();
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
    if features.tso {
        flags |= libc::IFF_VNET_HDR;
    }
    if features.multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the kernel reads and writes one interface request.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(file)
}

fn ioctl(file: &File, request: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: these requests take a number, and no memory is touched.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, value) }).map(|_| ())
}

impl TunQueue {
    pub(crate) fn read(&self, buffer: &mut [u8], wait: bool) -> io::Result<usize> {
        if wait {
            return (&self.0).read(buffer);
        }
        // No offset: where it is.
        let piece = &mut [IoSliceMut::new(buffer)];
        match preadv2(&self.0, piece, u64::MAX, ReadWriteFlags::NOWAIT) {
            // Before Linux 6.4 the device does not know this flag.
            Err(Errno::OPNOTSUPP) => {
                let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
                match poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                    Ok(1) => (&self.0).read(buffer),
                    _ => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
            read => Ok(read?),
        }
    }

    pub(crate) fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.0).write(packet).map(|_| ())
    }

    pub(crate) fn write_pieces(&self, pieces: &[libc::iovec]) -> io::Result<()> {
        let count = pieces.len() as libc::c_int;
        // SAFETY: the pieces point into buffers that the caller holds until this returns.
        check_len(unsafe { libc::writev(self.0.as_raw_fd(), pieces.as_ptr(), count) }).map(|_| ())
    }

    /// Name of its device, in whatever network namespace that is.
    pub(crate) fn device_name(&self) -> io::Result<String> {
        let mut request = no_request();
        // SAFETY: the kernel writes one interface request.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
        let name = request.ifr_name.iter().take_while(|byte| **byte != 0);
        Ok(name.map(|byte| char::from(*byte as u8)).collect())
    }

    /// Makes the device end with its last queue.
    pub(crate) fn forget_device(&self) {
        let _ = ioctl(&self.0, libc::TUNSETPERSIST, 0);
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
