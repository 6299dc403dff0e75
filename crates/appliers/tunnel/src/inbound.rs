//! From the wire to the TUN device: datagrams in, packets out, in memory only.
//!
//! Each datagram is one inner packet of a peer whose subnet contains its source. Consecutive segments of one TCP
//! stream, and datagrams of one UDP flow, are joined as a network card does: the kernel works once, not forty times.

use std::net::SocketAddr;

use crate::checksum::Sum;
use crate::counters::{Counters, DropReason};
use crate::packet::{self, IpHeader};
use crate::table::{PeerState, Table, sender};
use crate::vnet::{self, Gso, VnetHeader};
use crate::wireguard::OpenedPacket;

const MAX_BYTES: usize = 65_535;
/// Largest number of joined packets: each is a range of its own in one write, of which kernels accept 1,024.
const MAX_PACKETS: usize = 512;
/// Number of earlier packets that are searched for the flow of a packet.
const SEARCHED_BACK: usize = 8;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const ECE: u8 = 0x40;

#[derive(Debug, Default)]
pub(crate) struct DeviceWrite {
    pub(crate) vnet: [u8; vnet::LEN],
    /// Ranges of the buffer; the first begins with the headers.
    pub(crate) pieces: Vec<(u32, u32)>,
    pub(crate) packets: usize,
    flow: Option<Flow>,
    len: usize,
    peer: u32,
}

/// A packet that others may be joined to.
#[derive(Clone, Copy, Debug)]
struct Flow {
    ip: IpHeader,
    ports: [u8; 4],
    at: usize,
    /// Length of IP and TCP or UDP header.
    header: usize,
    /// Payload of each packet.
    segment: usize,
    next_sequence: u32,
    push: bool,
    /// Whether nothing more can be joined.
    closed: bool,
    /// Whether the checksum of the first packet was right, once it mattered.
    intact: Option<bool>,
}

#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// Packets of these protocols may be joined: the TUN device accepts such.
    joins_tcp: bool,
    joins_udp: bool,
    writes: Vec<DeviceWrite>,
    used: usize,
}

impl Inbound {
    pub(crate) fn new(joins_tcp: bool, joins_udp: bool) -> Self {
        Self { joins_tcp, joins_udp, ..Self::default() }
    }

    pub(crate) fn writes(&self) -> &[DeviceWrite] {
        &self.writes[..self.used]
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Takes in datagrams of `segment` bytes each (the last may be shorter) that lie in `range` of `buffer`.
    pub(crate) fn take(
        &mut self,
        table: &Table,
        counters: &Counters,
        from: SocketAddr,
        buffer: &[u8],
        range: std::ops::Range<usize>,
        segment: usize,
    ) {
        let mut tally = Tally { peer: None, packets: 0, bytes: 0 };
        let segment = if segment == 0 { range.len().max(1) } else { segment };
        for at in range.clone().step_by(segment) {
            let end = range.end.min(at + segment);
            match judge(table, from, &buffer[at..end]) {
                Ok((peer, ip)) => {
                    tally.count(table, peer, ip.total);
                    self.append(buffer, at, ip, peer);
                }
                Err((reason, peer)) => {
                    let of = |peer| &table.peers()[peer as usize].counters;
                    peer.map_or(counters, of).dropped(reason, 1);
                }
            }
        }
        tally.flush(table);
    }

    /// Takes in packets that WireGuard has opened. Each must be from the peer that its source belongs to.
    pub(crate) fn take_opened(
        &mut self,
        table: &Table,
        counters: &Counters,
        buffer: &[u8],
        start: usize,
        opened: &[OpenedPacket],
    ) {
        let mut tally = Tally { peer: None, packets: 0, bytes: 0 };
        for OpenedPacket { at, len, peer: number } in opened {
            let at = start + at;
            let Some(ip) = IpHeader::read(&buffer[at..at + len]) else {
                counters.dropped(DropReason::Malformed, 1);
                continue;
            };
            let of = |state: &PeerState| state.wireguard.as_ref().map(|peer| peer.number);
            match table.find(ip.v6, ip.src).filter(|(_, state)| of(state) == Some(*number)) {
                Some((index, _)) => {
                    tally.count(table, index, ip.total);
                    self.append(buffer, at, ip, index);
                }
                None => counters.dropped(DropReason::WrongSource, 1),
            }
        }
        tally.flush(table);
    }

    fn append(&mut self, buffer: &[u8], at: usize, ip: IpHeader, peer: u32) {
        let flow = self.flow(buffer, at, ip);
        if let Some(flow) = &flow {
            let mut latest = self.writes[..self.used].iter_mut().rev().take(SEARCHED_BACK);
            let latest = latest.find(|write| write.flow.is_some_and(|other| other.is_of(flow)));
            if let Some(write) = latest
                && write.join(buffer, flow)
            {
                return;
            }
        }
        if self.used == self.writes.len() {
            self.writes.push(DeviceWrite::default());
        }
        let write = &mut self.writes[self.used];
        self.used += 1;
        write.vnet = VnetHeader::PLAIN.write(ip.v6);
        write.pieces.clear();
        write.pieces.push((at as u32, ip.total as u32));
        write.packets = 1;
        write.len = ip.total;
        write.flow = flow;
        write.peer = peer;
    }

    /// Flow of a packet; `None` for packets that are passed on alone. Those of a flow that cannot be joined are
    /// returned as closed ones, so that nothing is joined past them.
    fn flow(&self, buffer: &[u8], at: usize, ip: IpHeader) -> Option<Flow> {
        let wanted = match ip.protocol {
            packet::TCP => self.joins_tcp,
            packet::UDP => self.joins_udp,
            _ => false,
        };
        if !wanted || ip.fragment {
            return None;
        }
        let packet = &buffer[at..at + ip.total];
        let transport = &packet[ip.len..];
        let ports = *transport.first_chunk::<4>()?;
        let (len, sequence, flags, joinable) = if ip.protocol == packet::TCP {
            let len = packet::tcp_header_len(transport)?;
            let flags = transport[13];
            let joinable = flags & ACK != 0 && flags & !(ACK | PSH | ECE) == 0;
            (len, packet::sequence(transport), flags, joinable)
        } else {
            let header = transport.first_chunk::<8>()?;
            let whole = usize::from(u16::from_be_bytes([header[4], header[5]])) == transport.len();
            (8, 0, 0, whole && header[6..8] != [0, 0])
        };
        let (header, segment) = (ip.len + len, transport.len() - len);
        let next_sequence = sequence.wrapping_add(segment as u32);
        let push = flags & PSH != 0;
        // IPv4 options are rare; such packets are passed on alone.
        let closed = !joinable || segment == 0 || (!ip.v6 && ip.len != 20);
        Some(Flow { ip, ports, at, header, segment, next_sequence, push, closed, intact: None })
    }

    /// Makes the headers of joined packets. Called once for a batch, before it is written.
    pub(crate) fn finish(&mut self, buffer: &mut [u8]) {
        for write in &mut self.writes[..self.used] {
            write.finish(buffer);
        }
    }
}

impl Flow {
    fn is_of(&self, other: &Self) -> bool {
        let ends = |ip: &IpHeader| (ip.v6, ip.protocol, ip.src, ip.dst);
        self.ports == other.ports && ends(&self.ip) == ends(&other.ip)
    }

    fn packet<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        &buffer[self.at..self.at + self.ip.total]
    }

    fn is_intact(&self, buffer: &[u8]) -> bool {
        let packet = self.packet(buffer);
        let (ip, transport) = packet.split_at(self.ip.len);
        let header = self.ip.v6 || Sum::default().bytes(ip).is_valid();
        header
            && Sum::pseudo_header(self.ip.addresses(packet), self.ip.protocol, transport.len())
                .bytes(transport)
                .is_valid()
    }
}

impl DeviceWrite {
    /// Joins a packet to a flow, if it is the next one and equal in everything that headers say once.
    fn join(&mut self, buffer: &[u8], next: &Flow) -> bool {
        let Some(flow) = &mut self.flow else { return false };
        let fits = !flow.closed
            && !next.closed
            && next.header == flow.header
            && next.segment <= flow.segment
            && self.len + next.segment <= MAX_BYTES
            && self.packets < MAX_PACKETS;
        if !fits || flow.push {
            flow.closed = true;
            return false;
        }
        let (a, b) = (flow.packet(buffer), next.packet(buffer));
        let same_ip = if flow.ip.v6 {
            a[..4] == b[..4] && a[6..8] == b[6..8]
        } else {
            let id = |packet: &[u8]| u16::from_be_bytes([packet[4], packet[5]]);
            a[..2] == b[..2]
                && a[6..10] == b[6..10]
                && id(b) == id(a).wrapping_add(self.packets as u16)
        };
        let (a, b) = (&a[flow.ip.len..flow.header], &b[flow.ip.len..flow.header]);
        let same_transport = flow.ip.protocol == packet::UDP
            || (next.next_sequence.wrapping_sub(next.segment as u32) == flow.next_sequence
                && a[8..13] == b[8..13]
                && a[13] | PSH == b[13] | PSH
                && a[14..16] == b[14..16]
                && a[18..] == b[18..]);
        if flow.intact.is_none() && same_ip && same_transport {
            flow.intact = Some(flow.is_intact(buffer));
        }
        let intact = flow.intact == Some(true) && next.is_intact(buffer);
        if !(same_ip && same_transport && intact) {
            flow.closed = true;
            return false;
        }
        self.pieces.push(((next.at + next.header) as u32, next.segment as u32));
        self.packets += 1;
        self.len += next.segment;
        flow.next_sequence = next.next_sequence;
        flow.push |= next.push;
        flow.closed = next.push || next.segment < flow.segment;
        true
    }

    fn finish(&mut self, buffer: &mut [u8]) {
        let Some(flow) = self.flow.filter(|_| self.packets > 1) else { return };
        let packet = &mut buffer[flow.at..flow.at + flow.header];
        let tcp = flow.ip.protocol == packet::TCP;
        packet::set_total(&mut packet[..flow.ip.len], flow.ip.v6, self.len);
        let length = self.len - flow.ip.len;
        let pseudo =
            Sum::pseudo_header(flow.ip.addresses(packet), flow.ip.protocol, length).folded();
        let transport = &mut packet[flow.ip.len..];
        let offset = if tcp { 16 } else { 6 };
        if tcp && flow.push {
            transport[13] |= PSH;
        }
        if !tcp {
            transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        }
        transport[offset..offset + 2].copy_from_slice(&pseudo);
        let gso = if tcp { Gso::Tcp } else { Gso::Udp };
        let (segment, header) = (flow.segment as u16, flow.header as u16);
        let checksum = Some((flow.ip.len as u16, offset as u16));
        self.vnet = VnetHeader { gso, segment, header, checksum }.write(flow.ip.v6);
    }

    pub(crate) fn refused(&self, table: &Table) {
        table.peers()[self.peer as usize]
            .counters
            .dropped(DropReason::WriteFailed, self.packets as u64);
    }
}

/// Peer of a packet, if it may come in: it must come from where that peer's tunnel sends from. An address alone says
/// little: a pod's packets leave its node from the node's address too, but not from the tunnel's port.
fn judge(
    table: &Table,
    from: SocketAddr,
    packet: &[u8],
) -> Result<(u32, IpHeader), (DropReason, Option<u32>)> {
    let Some(ip) = IpHeader::read(packet) else { return Err((DropReason::Malformed, None)) };
    match table.find(ip.v6, ip.src) {
        Some((index, state)) if sender(state.peer.endpoint) == sender(from) => Ok((index, ip)),
        _ => match table.sender(from) {
            Some(peer) => Err((DropReason::WrongSource, Some(peer))),
            None => Err((DropReason::UnknownSender, None)),
        },
    }
}

/// Counts runs of packets of one peer at once.
struct Tally {
    peer: Option<u32>,
    packets: u64,
    bytes: u64,
}

impl Tally {
    fn count(&mut self, table: &Table, peer: u32, bytes: usize) {
        if self.peer != Some(peer) {
            self.flush(table);
            self.peer = Some(peer);
        }
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    fn flush(&mut self, table: &Table) {
        if let Some(peer) = self.peer {
            table.peers()[peer as usize].counters.received(self.packets, self.bytes);
        }
        (self.packets, self.bytes) = (0, 0);
    }
}
