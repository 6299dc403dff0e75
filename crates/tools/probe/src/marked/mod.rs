//! Packets that bear a mark, and the devices at which they are seen.
//!
//! A marked packet is an echo request from pod to pod, which the kernel of the other pod answers with the same mark.
//! Every node looks for the mark at the frames of its devices ([`Watch`]), where a tunnel shows it unless it encrypts.

mod filter;
pub mod request;
mod watch;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use etherparse::{IpNumber, LaxIpSlice, LaxNetSlice, LaxSlicedPacket};
use flannel_link::{ECHO_HEADER, echo_request, open_echo_socket};
use rustix::net::{SendFlags, SocketFlags, bind, sendto};
use serde::{Deserialize, Serialize};

pub use watch::{Watch, WatchEnd, WatchResult};

/// Bytes by which a packet is known wherever it is found in a frame.
const MAGIC: [u8; 8] = *b"flannelT";
const MARK: usize = 16;
/// Behind the header of the echo request. An unusual length, so that frames of most others are passed over unread.
const PAYLOAD: usize = 379;
/// A large packet is so much smaller than what pods may send: full frames of others have another length.
const LESS_THAN_FULL: u32 = 3;
/// Numbers of large packets begin here.
pub const FIRST_LARGE: u16 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// How often packets of a trace passed a device, in which direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sighting {
    pub device: String,
    pub place: Place,
    pub packet: Packet,
    pub direction: Direction,
    pub count: u32,
    #[serde(default)]
    pub size: PacketSize,
    /// Addresses of the outermost header, where it is not the packet's own: from where to where a tunnel carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<(IpAddr, IpAddr)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packet {
    /// The packet as it was sent.
    Request,
    /// What the other end has answered.
    Answer,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketSize {
    #[default]
    Small,
    /// About as large as pods may send.
    Large,
}

/// How large packets of a trace are: bytes of the whole IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargePacket(u32);

impl LargePacket {
    /// `mtu`: what pods may send. `None` if that is next to nothing.
    pub fn of_mtu(mtu: u32) -> Option<Self> {
        let bytes = mtu.checked_sub(LESS_THAN_FULL)?;
        (bytes as usize > 40 + ECHO_HEADER + PAYLOAD && bytes < 65_000).then_some(Self(bytes))
    }

    pub fn bytes(self) -> u32 {
        self.0
    }

    fn payload(self, is_v6: bool) -> usize {
        self.0 as usize - ECHO_HEADER - if is_v6 { 40 } else { 20 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A port of the pods' bridge: a pod is at its other end.
    Veth,
    Bridge,
    /// Flannel's own device.
    Tunnel,
    /// The card towards other nodes.
    Underlay,
    Other,
}

/// Devices of a node of which it is known what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    pub tunnels: Vec<String>,
    pub underlay: Option<String>,
}

impl Devices {
    fn place(&self, device: &str) -> Place {
        let has =
            |what: &str| std::path::Path::new("/sys/class/net").join(device).join(what).exists();
        if self.tunnels.iter().any(|tunnel| tunnel == device) {
            Place::Tunnel
        } else if self.underlay.as_deref() == Some(device) {
            Place::Underlay
        } else if has("brport") {
            Place::Veth
        } else if has("bridge") {
            Place::Bridge
        } else {
            Place::Other
        }
    }
}

/// As the node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    In,
    Out,
}

impl Mark {
    /// Of packets between two addresses, whichever sends: who looks on the other node needs not be told it.
    pub fn between(one: IpAddr, other: IpAddr) -> Self {
        let (low, high) = if one < other { (one, other) } else { (other, one) };
        let text = format!("{low} {high}");
        let step =
            |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }

    fn bytes(self) -> [u8; MARK] {
        let mut bytes = [0; MARK];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..].copy_from_slice(&self.0.to_be_bytes());
        bytes
    }

    /// The message of an echo request, without an IP header.
    fn echo(self, is_v6: bool, number: u16, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0; payload];
        bytes[..MARK].copy_from_slice(&self.bytes());
        echo_request(is_v6, (self.0 >> 48) as u16, number, &bytes)
    }

    /// Sends one such packet, small or large, from the network namespace of this thread. It needs `CAP_NET_RAW`.
    pub fn send(
        self,
        from: IpAddr,
        to: IpAddr,
        number: u16,
        large: Option<LargePacket>,
    ) -> io::Result<()> {
        let socket = open_echo_socket(from.is_ipv6(), SocketFlags::empty())?;
        bind(&socket, &SocketAddr::new(from, 0))?;
        let payload = large.map_or(PAYLOAD, |large| large.payload(from.is_ipv6()));
        let message = self.echo(from.is_ipv6(), number, payload);
        sendto(&socket, &message, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }
}

/// As it is handed from node to node.
impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Mark {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// What a frame says, if it bears the mark.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MarkedFrame {
    pub(crate) packet: Packet,
    pub(crate) number: u16,
    pub(crate) carried: Option<(IpAddr, IpAddr)>,
}

impl MarkedFrame {
    pub(crate) fn find(frame: &[u8], mark: Mark) -> Option<Self> {
        let bytes = mark.bytes();
        let at = frame.windows(MARK).position(|part| part == bytes)?;
        let header = at.checked_sub(ECHO_HEADER)?;
        let packet = match frame.get(header)? {
            8 | 128 => Packet::Request,
            0 | 129 => Packet::Answer,
            _ => return None,
        };
        let number = u16::from_be_bytes(*frame.get(header + 6..)?.first_chunk()?);
        Some(Self { packet, number, carried: carried(frame) })
    }
}

/// The addresses of the first IP header, if it is that of a tunnel.
fn carried(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    // Behind an Ethernet header with or without a VLAN, or at once.
    let packet = LaxSlicedPacket::from_ethernet(frame).ok();
    let ip = match packet.and_then(|packet| packet.net) {
        Some(LaxNetSlice::Ipv4(ip)) => LaxIpSlice::Ipv4(ip),
        Some(LaxNetSlice::Ipv6(ip)) => LaxIpSlice::Ipv6(ip),
        _ => LaxIpSlice::from_slice(frame).ok()?.0,
    };
    let is_own = matches!(ip.payload_ip_number(), IpNumber::ICMP | IpNumber::IPV6_ICMP);
    (!is_own).then(|| (ip.source_addr(), ip.destination_addr()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet frame with an IPv4 packet.
    fn frame(source: u8, destination: u8, protocol: IpNumber, inside: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45]);
        frame.resize(14 + 12, 0);
        frame[14 + 9] = protocol.0;
        frame.extend([192, 0, 2, source, 192, 0, 2, destination]);
        frame.extend(inside);
        frame
    }

    #[test]
    fn a_packet_is_known_by_its_mark_in_the_clear_and_in_a_tunnel() {
        let mark = Mark(0x0123_4567_89ab_cdef);
        let mut message = mark.echo(false, 1, PAYLOAD);
        let plain = frame(1, 2, IpNumber::ICMP, &message);
        let found = |packet, carried| Some(MarkedFrame { packet, number: 1, carried });
        assert_eq!(MarkedFrame::find(&plain, mark), found(Packet::Request, None));
        assert_eq!(MarkedFrame::find(&plain, Mark(1)), None, "of another trace");
        message[0] = 0;
        let inner = frame(2, 1, IpNumber::ICMP, &message);
        assert_eq!(MarkedFrame::find(&inner, mark), found(Packet::Answer, None));
        // UDP and VXLAN headers between.
        let outer = frame(8, 7, IpNumber::UDP, &[vec![0; 16], inner].concat());
        let between = Some(([192, 0, 2, 8].into(), [192, 0, 2, 7].into()));
        assert_eq!(MarkedFrame::find(&outer, mark), found(Packet::Answer, between));
        // As on a TUN device.
        assert_eq!(MarkedFrame::find(&plain[14..], mark), found(Packet::Request, None));
        for length in 0..plain.len() {
            let cut = MarkedFrame::find(&plain[..length], mark);
            assert!(cut.is_none() || length >= 14 + 20 + ECHO_HEADER + MARK);
        }
        assert_eq!(mark.to_string().parse(), Ok(mark));
    }
}
