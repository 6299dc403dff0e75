//! Asking many addresses at once whether they are there, by ICMP, with packets of a given size that nobody may cut.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
};

/// There and back; what is not there by then is asked once more.
const PATIENCE: Duration = Duration::from_millis(500);
const TRIES: usize = 2;
/// Between questions that are counted: a burst of them would itself be dropped by some.
const PACE: Duration = Duration::from_millis(10);
pub(super) const SMALL: u32 = 64;
const HEADER: usize = 8;
/// Do not cut, and do not believe what was learned of the path before.
const PROBE: libc::c_int = 3;

/// One question: to whom, and how large the whole packet is.
pub(super) type Asked = (IpAddr, u32);

/// Those that were answered. Addresses of one family at a time.
pub(super) fn answered(all: &[Asked]) -> io::Result<BTreeSet<usize>> {
    let mut answered = BTreeSet::new();
    for v4 in [true, false] {
        let of_family: Vec<(usize, Asked)> =
            all.iter().copied().enumerate().filter(|(_, (ip, _))| ip.is_ipv4() == v4).collect();
        if !of_family.is_empty() {
            ask(&of_family, v4, &mut answered)?;
        }
    }
    Ok(answered)
}

/// How many of so many questions of a size each of these has answered. They are asked with pauses between, and not
/// again.
pub(super) fn counted(peers: &[IpAddr], times: usize, size: u32) -> io::Result<Vec<usize>> {
    let mut counts = vec![0; peers.len()];
    for v4 in [true, false] {
        let of_family: Vec<(usize, Asked)> = peers
            .iter()
            .enumerate()
            .filter(|(_, ip)| ip.is_ipv4() == v4)
            .map(|(number, ip)| (number, (*ip, size)))
            .collect();
        if of_family.is_empty() {
            continue;
        }
        let mut echo = Echo::open(v4)?;
        let mut answered = BTreeSet::new();
        for round in 0..times {
            let numbered =
                of_family.iter().map(|(number, asked)| (round * peers.len() + number, *asked));
            echo.send(numbered);
            echo.receive(PACE, usize::MAX, &mut answered)?;
        }
        echo.receive(PATIENCE, times * of_family.len(), &mut answered)?;
        answered.into_iter().for_each(|number| counts[number % peers.len()] += 1);
    }
    Ok(counts)
}

fn ask(all: &[(usize, Asked)], v4: bool, answered: &mut BTreeSet<usize>) -> io::Result<()> {
    let mut echo = Echo::open(v4)?;
    let mut of_family = BTreeSet::new();
    for _ in 0..TRIES {
        echo.send(all.iter().filter(|(number, _)| !of_family.contains(number)).copied());
        echo.receive(PATIENCE, all.len(), &mut of_family)?;
    }
    answered.append(&mut of_family);
    Ok(())
}

/// A socket, and what its questions are known by.
struct Echo {
    socket: OwnedFd,
    v4: bool,
    id: u16,
    asked: BTreeSet<usize>,
}

impl Echo {
    fn open(v4: bool) -> io::Result<Self> {
        Ok(Self { socket: open(v4)?, v4, id: fastrand::u16(1..), asked: BTreeSet::new() })
    }

    fn send(&mut self, questions: impl Iterator<Item = (usize, Asked)>) {
        for (number, (ip, size)) in questions {
            self.asked.insert(number);
            let packet = packet(self.v4, self.id, number as u16, size);
            // What this host itself cannot send is not answered.
            let _ = sendto(&self.socket, &packet, SendFlags::DONTWAIT, &SocketAddr::new(ip, 0));
        }
    }

    /// For so long, or until there are so many answers.
    fn receive(
        &self,
        patience: Duration,
        enough: usize,
        answered: &mut BTreeSet<usize>,
    ) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        while answered.len() < enough {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let limit = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as _ };
            poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit))?;
            let mut buffer = [0_u8; 128];
            let Ok((length, _)) = recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) else {
                continue;
            };
            let answer = answer(&buffer[..length.min(128)], self.v4, self.id);
            answered.extend(answer.filter(|number| self.asked.contains(number)));
        }
        Ok(())
    }
}

fn open(v4: bool) -> io::Result<OwnedFd> {
    let (family, protocol) = if v4 {
        (AddressFamily::INET, ipproto::ICMP)
    } else {
        (AddressFamily::INET6, ipproto::ICMPV6)
    };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?;
    let (level, name) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    let value = PROBE;
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value lives until the call has returned, and its size is said.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// An echo request, such that the IP packet has this size.
fn packet(v4: bool, id: u16, number: u16, size: u32) -> Vec<u8> {
    let around = if v4 { 20 } else { 40 };
    let length = (size as usize).saturating_sub(around).max(HEADER);
    let mut packet = vec![0; length];
    packet[0] = if v4 { 8 } else { 128 };
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&number.to_be_bytes());
    if v4 {
        // For IPv6 the kernel computes it.
        let sum: u32 = packet
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        packet[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
    packet
}

/// The number of the question that this answers.
fn answer(bytes: &[u8], v4: bool, id: u16) -> Option<usize> {
    let message = match v4 {
        true => bytes.get(usize::from(bytes.first()? & 15) * 4..)?,
        false => bytes,
    };
    let reply = if v4 { 0 } else { 129 };
    let ours = *message.first()? == reply && message.get(4..6)? == id.to_be_bytes();
    let number = u16::from_be_bytes(*message.get(6..8)?.first_chunk()?);
    ours.then_some(usize::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_size_and_its_answer_is_known() {
        let request = packet(true, 7, 3, 1500);
        assert_eq!(request.len(), 1480);
        let sum: u32 =
            request.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the sum of all is right");
        let mut reply = vec![0x45; 20];
        reply.extend([0, 0, 0, 0, 0, 7, 0, 3]);
        assert_eq!(answer(&reply, true, 7), Some(3));
        assert_eq!(answer(&reply, true, 8), None);
        assert_eq!(answer(&reply[..24], true, 7), None);
        assert_eq!(answer(&[], true, 7), None);
    }
}
