//! ICMP echo. A host's kernel answers it, whatever else runs there. It needs `CAP_NET_RAW`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Instant;

use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Slice, Icmpv4Type, Icmpv6Header, Icmpv6Slice, Icmpv6Type,
    LaxIpv4Slice,
};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    set_socket_recv_buffer_size,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};

use crate::packet_socket::wait_readable;

/// Length of an echo message without its payload.
pub const ECHO_HEADER: usize = 8;
/// Answers that wait while a long list of targets is asked.
const RECEIVE_BUFFER: usize = 1 << 20;

/// An echo request for a raw socket, which adds the IP header and, with IPv6, the checksum.
pub fn echo_request(is_ipv6: bool, identifier: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let echo = IcmpEchoHeader { id: identifier, seq: sequence };
    let mut message = Vec::with_capacity(ECHO_HEADER + payload.len());
    if is_ipv6 {
        message.extend(Icmpv6Header::new(Icmpv6Type::EchoRequest(echo)).to_bytes());
    } else {
        let header = Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), payload);
        message.extend(header.to_bytes());
    }
    message.extend_from_slice(payload);
    message
}

/// Reads header and payload from what a raw socket receives: with IPv4 the IP header, too. `None` for anything but an
/// echo reply.
pub fn read_echo_reply(packet: &[u8], is_ipv6: bool) -> Option<(IcmpEchoHeader, &[u8])> {
    if is_ipv6 {
        let message = Icmpv6Slice::from_slice(packet).ok()?;
        let Icmpv6Type::EchoReply(echo) = message.icmp_type() else { return None };
        return Some((echo, message.payload()));
    }
    let (ip, _) = LaxIpv4Slice::from_slice(packet).ok()?;
    let message = Icmpv4Slice::from_slice(ip.payload().payload).ok()?;
    let Icmpv4Type::EchoReply(echo) = message.icmp_type() else { return None };
    Some((echo, message.payload()))
}

/// Asks many addresses, of both families, from the network namespace of the thread that opened it.
pub struct Pinger {
    /// A socket of each family that is asked, and whether that is IPv6.
    sockets: Vec<(bool, OwnedFd)>,
    /// Tells its answers from those of other pingers.
    identifier: u16,
}

impl Pinger {
    /// `may_fragment`: whether what it sends may be cut into fragments on the way.
    pub fn open(targets: &[IpAddr], may_fragment: bool) -> io::Result<Self> {
        let families = [false, true].into_iter();
        let asked = families.filter(|is_v6| targets.iter().any(|it| it.is_ipv6() == *is_v6));
        let sockets = asked.map(|is_ipv6| Ok((is_ipv6, open(is_ipv6, may_fragment)?)));
        Ok(Self { sockets: sockets.collect::<io::Result<_>>()?, identifier: fastrand::u16(1..) })
    }

    pub fn send(&self, to: IpAddr, sequence: u16, payload: usize) -> io::Result<()> {
        let socket = self.sockets.iter().find(|(is_ipv6, _)| *is_ipv6 == to.is_ipv6());
        let (_, socket) = socket.ok_or(io::ErrorKind::Unsupported)?;
        let message = echo_request(to.is_ipv6(), self.identifier, sequence, &vec![0x66; payload]);
        sendto(socket, &message, SendFlags::DONTWAIT, &SocketAddr::new(to, 0))?;
        Ok(())
    }

    /// Waits for the next answer: who gave it, and to which request.
    pub fn receive(&self, until: Instant) -> io::Result<Option<(IpAddr, u16)>> {
        loop {
            for (is_ipv6, socket) in &self.sockets {
                if let Some(answer) = self.take(socket, *is_ipv6)? {
                    return Ok(Some(answer));
                }
            }
            if !wait_readable(self.sockets.iter().map(|(_, socket)| socket), until)? {
                return Ok(None);
            }
        }
    }

    /// An answer that has come already.
    fn take(&self, socket: &OwnedFd, is_ipv6: bool) -> io::Result<Option<(IpAddr, u16)>> {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) = match recvfrom(socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((length, _, from)) => (length, from),
                Err(Errno::AGAIN) => return Ok(None),
                // Errors of earlier packets are reported here; the next read has the answers.
                Err(Errno::INTR | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::MSGSIZE) => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let reply = read_echo_reply(&buffer[..length], is_ipv6);
            if let (Some(from), Some((reply, _))) = (from, reply)
                && reply.id == self.identifier
            {
                return Ok(Some((from.ip(), reply.seq)));
            }
        }
    }
}

/// Opens a raw socket, in the network namespace of the calling thread.
pub fn open_echo_socket(is_ipv6: bool, flags: SocketFlags) -> io::Result<OwnedFd> {
    let (family, protocol) = if is_ipv6 {
        (AddressFamily::INET6, ipproto::ICMPV6)
    } else {
        (AddressFamily::INET, ipproto::ICMP)
    };
    Ok(socket_with(family, SocketType::RAW, flags | SocketFlags::CLOEXEC, Some(protocol))?)
}

fn open(is_ipv6: bool, may_fragment: bool) -> io::Result<OwnedFd> {
    let socket = open_echo_socket(is_ipv6, SocketFlags::empty())?;
    // Neither cut, nor believe what was learned of the path before.
    match (is_ipv6, may_fragment) {
        (false, false) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE),
        (false, true) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT),
        (true, false) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE),
        (true, true) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT),
    }?;
    set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a raw socket of IPv4 receives it.
    fn received(message: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[3] = (20 + message.len()) as u8;
        packet[9] = 1;
        packet.extend(message);
        packet
    }

    #[test]
    fn a_request_is_no_answer_and_its_reply_is() {
        let mut message = echo_request(false, 7, 9, b"payload");
        assert_eq!(
            etherparse::checksum::Sum16BitWords::new().add_slice(&message).ones_complement(),
            0
        );
        assert_eq!(read_echo_reply(&received(&message), false), None);
        message[0] = 0;
        let packet = received(&message);
        let reply = (IcmpEchoHeader { id: 7, seq: 9 }, &b"payload"[..]);
        assert_eq!(read_echo_reply(&packet, false), Some(reply));
        for length in 0..20 + ECHO_HEADER {
            assert_eq!(read_echo_reply(&packet[..length], false), None, "{length}");
        }
        let mut message = echo_request(true, 7, 9, b"payload");
        assert_eq!(read_echo_reply(&message, true), None);
        message[0] = 129;
        assert_eq!(read_echo_reply(&message, true), Some(reply));
    }

    #[test]
    fn this_host_answers() {
        let target = IpAddr::from([127, 0, 0, 1]);
        // Not everybody who runs the tests may open raw sockets.
        let Ok(pinger) = Pinger::open(&[target], false) else { return };
        pinger.send(target, 3, 1400).expect("sent");
        let until = Instant::now() + std::time::Duration::from_secs(5);
        assert_eq!(pinger.receive(until).expect("an answer"), Some((target, 3)));
        assert_eq!(pinger.receive(Instant::now()).expect("nothing else"), None);
    }
}
