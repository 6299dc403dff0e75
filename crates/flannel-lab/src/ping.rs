//! ICMP echo from inside a namespace, to one address or to many at once.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    set_socket_recv_buffer_size,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};

/// How to ping.
#[derive(Clone, Copy, Debug)]
pub struct PingOptions {
    /// How long to go on until an answer came.
    pub limit: Duration,
    /// After what time an unanswered echo is sent again.
    pub interval: Duration,
    /// Bytes of payload; the packet has 28 more (IPv4) or 48 more (IPv6).
    pub payload: usize,
    /// Whether routers must not cut the packet into fragments.
    pub dont_fragment: bool,
}

impl Default for PingOptions {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(2),
            interval: Duration::from_millis(200),
            payload: 32,
            dont_fragment: false,
        }
    }
}

/// One answer per target: its round trip, or why there is none.
pub(crate) type Answers = Vec<Result<Duration, String>>;

/// Echoes to all targets from the network of the calling thread.
pub(crate) fn sweep(targets: &[IpAddr], options: PingOptions) -> io::Result<Answers> {
    let mut sweep = Sweep {
        v4: None,
        v6: None,
        identifier: next_identifier(),
        sequence: 0,
        sent: HashMap::new(),
        answers: vec![Err("no answer".into()); targets.len()],
        options,
    };
    if targets.iter().any(IpAddr::is_ipv4) {
        sweep.v4 = Some(open4(options.dont_fragment)?);
    }
    if targets.iter().any(IpAddr::is_ipv6) {
        sweep.v6 = Some(open6(options.dont_fragment)?);
    }
    let deadline = Instant::now() + options.limit;
    loop {
        for (index, &target) in targets.iter().enumerate() {
            if sweep.answers[index].is_err() {
                sweep.send(index, target);
                // Answers must not pile up behind a long list of targets.
                sweep.receive(targets, Instant::now())?;
            }
        }
        let now = Instant::now();
        sweep.receive(targets, deadline.min(now + options.interval))?;
        if sweep.answers.iter().all(Result::is_ok) || Instant::now() >= deadline {
            return Ok(sweep.answers);
        }
    }
}

struct Sweep {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
    identifier: u16,
    sequence: u16,
    sent: HashMap<u16, (usize, Instant)>,
    answers: Answers,
    options: PingOptions,
}

impl Sweep {
    fn send(&mut self, index: usize, target: IpAddr) {
        self.sequence = self.sequence.wrapping_add(1);
        let packet = echo(target, self.identifier, self.sequence, self.options.payload);
        let Some(socket) = self.socket(target) else { return };
        let now = Instant::now();
        match sendto(socket, &packet, SendFlags::empty(), &SocketAddr::new(target, 0)) {
            Ok(_) => {
                self.sent.insert(self.sequence, (index, now));
            }
            Err(error) => self.answers[index] = Err(io::Error::from(error).to_string()),
        }
    }

    /// Takes in answers until all are there or the time has come.
    fn receive(&mut self, targets: &[IpAddr], until: Instant) -> io::Result<()> {
        loop {
            for (fd, v4) in [(&self.v4, true), (&self.v6, false)] {
                let Some(fd) = fd else { continue };
                let mut buffer = [0; 2048];
                while let Some((length, from)) = take(fd, &mut buffer)? {
                    let now = Instant::now();
                    let Some((identifier, sequence)) = reply(&buffer[..length], v4) else {
                        continue;
                    };
                    let Some(&(index, sent)) = self.sent.get(&sequence) else { continue };
                    let known = identifier == self.identifier && targets[index] == from;
                    if known && self.answers[index].is_err() {
                        self.answers[index] = Ok(now - sent);
                    }
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.answers.iter().all(Result::is_ok) {
                return Ok(());
            }
            let mut fds: Vec<PollFd<'_>> = [&self.v4, &self.v6]
                .into_iter()
                .flatten()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
                .collect();
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            match poll(&mut fds, Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn socket(&self, target: IpAddr) -> Option<&OwnedFd> {
        if target.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }
}

fn open4(dont_fragment: bool) -> io::Result<OwnedFd> {
    let fd = socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(ipproto::ICMP),
    )?;
    let discovery =
        if dont_fragment { Ipv4PathMtuDiscovery::PROBE } else { Ipv4PathMtuDiscovery::DONT };
    set_ip_mtu_discover(&fd, discovery)?;
    set_socket_recv_buffer_size(&fd, 1 << 20)?;
    Ok(fd)
}

fn open6(dont_fragment: bool) -> io::Result<OwnedFd> {
    let protocol = Some(ipproto::ICMPV6);
    let fd = socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let discovery =
        if dont_fragment { Ipv6PathMtuDiscovery::PROBE } else { Ipv6PathMtuDiscovery::DONT };
    set_ipv6_mtu_discover(&fd, discovery)?;
    set_socket_recv_buffer_size(&fd, 1 << 20)?;
    Ok(fd)
}

fn take(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<(usize, IpAddr)>> {
    loop {
        return match recvfrom(fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((length, _, from)) => {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                Ok(from.map(|from| (length, from.ip())))
            }
            Err(Errno::AGAIN) => Ok(None),
            // Errors of earlier packets are reported here; the next read has the answers.
            Err(Errno::INTR | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::MSGSIZE) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// An echo request. The kernel adds the checksum of ICMPv6.
fn echo(target: IpAddr, identifier: u16, sequence: u16, payload: usize) -> Vec<u8> {
    let mut packet = vec![if target.is_ipv4() { 8 } else { 128 }, 0, 0, 0];
    packet.extend_from_slice(&identifier.to_be_bytes());
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.resize(8 + payload, 0x66);
    if target.is_ipv4() {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Identifier and sequence number, if it is an echo reply. IPv4 comes with its IP header.
fn reply(packet: &[u8], v4: bool) -> Option<(u16, u16)> {
    let icmp = if v4 { packet.get(usize::from(packet.first()? & 15) * 4..)? } else { packet };
    let kind = if v4 { 0 } else { 129 };
    match icmp {
        &[found, 0, _, _, a, b, c, d, ..] if found == kind => {
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        _ => None,
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Two sweeps in one namespace must not take each other's answers.
fn next_identifier() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_request_has_the_checksum_that_makes_its_sum_zero() {
        for payload in [0, 1, 31, 32] {
            let packet = echo("10.0.0.1".parse().unwrap(), 7, 9, payload);
            assert_eq!(packet.len(), 8 + payload);
            assert_eq!(checksum(&packet), 0);
        }
    }

    #[test]
    fn only_echo_replies_are_answers() {
        let mut v4 = vec![0x45; 20];
        v4.extend([0, 0, 1, 2, 0, 7, 0, 9]);
        assert_eq!(reply(&v4, true), Some((7, 9)));
        v4[20] = 8;
        assert_eq!(reply(&v4, true), None);
        assert_eq!(reply(&[129, 0, 1, 2, 0, 7, 0, 9], false), Some((7, 9)));
        assert_eq!(reply(&[129, 0, 1], false), None);
        assert_eq!(reply(&[], true), None);
    }
}
