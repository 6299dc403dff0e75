//! A card with a broken offload: it makes the checksums of plain packets, as it says it does, and forgets those of
//! packets inside a tunnel. What the kernel leaves to it there arrives as it left: wrong.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use flannel_lab::{Lab, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
const VXLAN: [u8; 2] = 8472_u16.to_be_bytes();
const ETHERNET: usize = 14;
const PACKET_VNET_HDR: i32 = 15;
/// What the kernel puts before a frame (`virtio_net_hdr`): a flag, and where a checksum begins and has its place.
const HEAD: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;

/// As long as it is there, it is in the place of a node's cable.
pub(crate) struct BadCard {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BadCard {
    pub(crate) fn of(lab: &Lab, node: u16) -> Result<Self> {
        let (switch, port) = (lab.switch(), lab.node(node).nic().port.clone());
        let link = switch.ip(&format!("-o link show {port}"))?;
        let bridge = link.split_whitespace().skip_while(|word| *word != "master").nth(1);
        let bridge = bridge.expect("its port is in a bridge").to_owned();
        for line in [
            "link add card type veth peer name inside".to_owned(),
            // Frames of its MTU, and no larger ones.
            "link set inside gso_max_segs 1".to_owned(),
            format!("link set inside master {bridge} up"),
            "link set card up".to_owned(),
            format!("link set {port} nomaster"),
        ] {
            switch.ip(&line)?;
        }
        let sockets = switch.run(|| Ok::<_, io::Error>((packets(&port)?, packets("card")?)))?;
        let (cable, card) = sockets.expect("packet sockets");
        let (cable, card) = (Arc::new(cable), Arc::new(card));
        let stop = Arc::new(AtomicBool::new(false));
        let ways = [(cable.clone(), card.clone()), (card, cable)];
        let threads = ways.map(|(from, to)| {
            let stop = stop.clone();
            std::thread::spawn(move || carry(&from, &to, &stop))
        });
        Ok(Self { stop, threads: threads.into() })
    }
}

impl Drop for BadCard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// All that comes in at a device, and a way out there.
fn packets(device: &str) -> io::Result<OwnedFd> {
    let protocol = std::num::NonZeroU32::new(ALL_PROTOCOLS.into()).map(Protocol::from_raw);
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol)?;
    let name = CString::new(device)?;
    // SAFETY: the name ends with a zero and lives until the call has returned.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: an address of all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ALL_PROTOCOLS;
    address.sll_ifindex = index as i32;
    // SAFETY: the address is a link-layer one of this length, and the socket is open.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    // Not what we send ourselves; and with each frame what the kernel leaves to the card.
    for option in [libc::PACKET_IGNORE_OUTGOING, PACKET_VNET_HDR] {
        let yes = 1_i32;
        // SAFETY: the value is a number of this length that lives until the call has returned.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const yes).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(50)))?;
    Ok(socket)
}

fn carry(from: &OwnedFd, to: &OwnedFd, stop: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, _)) = rustix::net::recv(from, &mut bytes[..], RecvFlags::empty()) {
            let Some((head, frame)) = bytes[..length].split_first_chunk_mut() else { continue };
            make_checksum(head, frame);
            // Nothing is left to do for the next one.
            head.fill(0);
            // What is too large is lost, as on a cable.
            let _ = rustix::net::send(to, &bytes[..length], SendFlags::empty());
        }
    }
}

/// Of the sum from a place to the end, where the kernel asks for it; not if that place is inside a tunnel.
fn make_checksum(head: &[u8; HEAD], frame: &mut [u8]) -> Option<()> {
    let number = |at: usize| usize::from(u16::from_ne_bytes([head[at], head[at + 1]]));
    let (is_asked_for, begin, place) = (head[0] & NEEDS_CHECKSUM != 0, number(6), number(8));
    let is_ipv4 = frame.get(12..14)? == [0x08, 0x00];
    let outer = ETHERNET + if is_ipv4 { usize::from(frame.get(ETHERNET)? & 0x0f) * 4 } else { 40 };
    let is_tunnel = frame.get(outer + 2..outer + 4)? == VXLAN;
    if !is_asked_for || is_tunnel && begin > outer {
        return None;
    }
    let segment = frame.get_mut(begin..)?;
    let words = segment
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let made = Some(!(sum as u16)).filter(|made| *made != 0).unwrap_or(0xffff);
    segment.get_mut(place..place + 2)?.copy_from_slice(&made.to_be_bytes());
    Some(())
}
