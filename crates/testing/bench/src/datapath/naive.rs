//! The relay that the old proxy of the udp backend is: one thread, one packet for each system call, a list
//! that is searched from its beginning. Kept to measure against.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::ensure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(super) struct Naive {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Network, mask, and where it is.
type Route = (u32, u32, SocketAddrV4);

impl Naive {
    /// In the namespace of the calling thread.
    pub(super) fn start(
        device: &str,
        bind: SocketAddrV4,
        mut routes: Vec<Route>,
    ) -> anyhow::Result<Self> {
        let mut tun = tun(device, libc::O_NONBLOCK)?;
        let socket = UdpSocket::bind(bind)?;
        socket.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut packet = vec![0; 65_536];
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            while !stopped.load(Ordering::Relaxed) {
                {
                    let mut wait = [
                        PollFd::from_borrowed_fd(tun.as_fd(), PollFlags::IN),
                        PollFd::new(&socket, PollFlags::IN),
                    ];
                    let _ = poll(&mut wait, Some(&limit));
                }
                loop {
                    let out = out(&mut tun, &socket, &mut routes, &mut packet);
                    let back = back(&mut tun, &socket, &mut packet);
                    if !out && !back {
                        break;
                    }
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn tun(device: &str, flags: libc::c_int) -> anyhow::Result<File> {
    let tun = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
    // SAFETY: an interface request of all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the kernel reads and writes one interface request.
    let made = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    ensure!(made == 0, "make {device}: {}", std::io::Error::last_os_error());
    Ok(tun)
}

fn out(tun: &mut File, socket: &UdpSocket, routes: &mut [Route], packet: &mut [u8]) -> bool {
    let Ok(len) = tun.read(packet) else { return false };
    if len < 20 || !age(packet) {
        return true;
    }
    let destination = u32::from(Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]));
    if let Some(at) = routes.iter().position(|(network, mask, _)| destination & mask == *network) {
        routes.swap(0, at);
        let _ = socket.send_to(&packet[..len], routes[0].2);
    }
    true
}

fn back(tun: &mut File, socket: &UdpSocket, packet: &mut [u8]) -> bool {
    let Ok(len) = socket.recv(packet) else { return false };
    if len >= 20 && age(packet) {
        let _ = tun.write(&packet[..len]);
    }
    true
}

fn age(packet: &mut [u8]) -> bool {
    if packet[8] <= 1 {
        return false;
    }
    packet[8] -= 1;
    // One less in the high byte of a word is one more in the checksum (RFC 1141).
    let sum = u32::from(u16::from_be_bytes([packet[10], packet[11]])) + 0x100;
    let sum = (sum + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    true
}
