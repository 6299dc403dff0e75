//! From the TUN device to the wire: packets in, datagrams out, in memory only.
//!
//! Each datagram is one inner packet of at most the MTU. Consecutive ones of one size to one peer are put together to
//! one message, which the kernel cuts again (UDP_SEGMENT): one system call for dozens of packets.

use std::ops::Range;
use std::time::{Duration, Instant};

use flannel_common::Throttle;

use crate::counters::{Counters, DropReason};
use crate::icmp::{self, Problem};
use crate::packet::{self, IpHeader};
use crate::segment::SegmentPlan;
use crate::table::{PeerState, Table};
use crate::vnet::{self, Gso, VnetHeader};

/// Longest UDP payload over IPv4.
const MAX_BYTES: usize = 65_507;
/// Number of datagrams that kernels cut from one message: 64, later ones 128.
pub(crate) const MAX_SEGMENTS: usize = 64;
const MIN_MTU_V6: usize = 1280;
/// Number of earlier messages that are searched for the same peer, when packets to several peers alternate.
const SEARCHED_BACK: usize = 8;

/// ICMP errors in each interval: a flood of undeliverable packets is not answered by another.
const MAX_ANSWERS: u32 = 100;
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);

/// A range of what was read, or of the headers we made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) at: u32,
    pub(crate) len: u32,
    pub(crate) made: bool,
}

impl Piece {
    pub(crate) fn of<'a>(&self, read: &'a [u8], made: &'a [u8]) -> &'a [u8] {
        let from = if self.made { made } else { read };
        &from[self.at as usize..][..self.len as usize]
    }

    pub(crate) fn concat(pieces: &[Self], read: &[u8], made: &[u8]) -> Vec<u8> {
        pieces.iter().map(|piece| piece.of(read, made)).collect::<Vec<_>>().concat()
    }
}

/// Datagrams to one peer, all of one size except the last, which may be shorter.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) peer: u32,
    pub(crate) segment: usize,
    pub(crate) len: usize,
    pub(crate) packets: usize,
    pub(crate) pieces: Vec<Piece>,
    closed: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    pub(crate) table: &'a Table,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Outbound {
    /// Largest number of datagrams in a message; 1 where the kernel cannot cut.
    pub(crate) max_segments: usize,
    /// Whether packets come with the header of [`vnet`].
    vnet: bool,
    /// Bytes that sealing may add to each datagram.
    growth: usize,
    /// Whether this hop decrements the TTL.
    is_hop: bool,
    /// Bytes made for the messages.
    pub(crate) headers: Vec<u8>,
    messages: Vec<Message>,
    used: usize,
    /// Packets for the TUN device, each preceded by the device's header if it has one.
    answers: Vec<u8>,
    answer_ends: Vec<usize>,
    answer_limit: Throttle,
}

impl Outbound {
    pub(crate) fn new(max_segments: usize, vnet: bool) -> Self {
        let headers = Vec::with_capacity(64 << 10);
        let answer_limit = Throttle::with_burst(MAX_ANSWERS, ANSWER_INTERVAL);
        Self { max_segments, vnet, is_hop: true, headers, answer_limit, ..Self::default() }
    }

    /// Configures it for packets that are sealed: each grows by at most so much, and travels as over a cable.
    pub(crate) fn sealed(self, growth: usize) -> Self {
        Self { growth, is_hop: false, ..self }
    }

    /// The messages, and the bytes made for them, to which more may be added.
    pub(crate) fn parts(&mut self) -> (&mut [Message], &mut Vec<u8>) {
        (&mut self.messages[..self.used], &mut self.headers)
    }

    pub(crate) fn keep(&mut self, is_kept: impl Fn(&Message) -> bool) {
        let mut kept = 0;
        for at in 0..self.used {
            if is_kept(&self.messages[at]) {
                self.messages.swap(kept, at);
                kept += 1;
            }
        }
        self.used = kept;
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages[..self.used]
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.answer_ends.iter().copied());
        starts.zip(&self.answer_ends).map(|(start, end)| &self.answers[start..*end])
    }

    /// Clears a batch that has been sent; its memory is used again.
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.used = 0;
        self.answers.clear();
        self.answer_ends.clear();
    }

    /// Takes in what one read from the device gave, in `range` of `buffer`.
    pub(crate) fn take(&mut self, judge: BatchContext<'_>, buffer: &mut [u8], range: Range<usize>) {
        if let Err(reason) = self.try_take(judge, buffer, range) {
            judge.counters.dropped(reason, 1);
        }
    }

    fn try_take(
        &mut self,
        judge: BatchContext<'_>,
        buffer: &mut [u8],
        range: Range<usize>,
    ) -> Result<(), DropReason> {
        const MALFORMED: DropReason = DropReason::Malformed;
        let end = range.end;
        let read = buffer.get_mut(range).ok_or(MALFORMED)?;
        let (vnet, packet) = if self.vnet {
            let (header, packet) =
                read.split_first_chunk_mut::<{ vnet::LEN }>().ok_or(MALFORMED)?;
            (VnetHeader::read(header).ok_or(MALFORMED)?, packet)
        } else {
            (VnetHeader::PLAIN, read)
        };
        let start = end - packet.len();
        let ip = IpHeader::read(packet).ok_or(MALFORMED)?;
        let cut = match vnet.gso {
            Gso::None => None,
            Gso::Tcp | Gso::Udp => Some(SegmentPlan::new(packet, ip, &vnet).ok_or(MALFORMED)?),
        };
        let len = cut.as_ref().map_or(ip.total, SegmentPlan::packet_len);
        let Some((index, peer)) = judge.table.find(ip.v6, ip.dst) else {
            self.answer(judge, &ip, packet, Problem::NoRoute);
            return Err(DropReason::NoRoute);
        };
        let path_mtu = peer.path_mtu();
        if let Some(mtu) = path_mtu.and_then(|path| too_big(&ip, packet, len, path)) {
            self.answer(judge, &ip, packet, Problem::TooBig(mtu));
            peer.counters.dropped(DropReason::TooBig, 1);
            return Ok(());
        }
        if self.is_hop && !packet::age(packet, ip.v6) {
            self.answer(judge, &ip, packet, Problem::Expired);
            peer.counters.dropped(DropReason::Expired, 1);
            return Ok(());
        }
        // What the underlay has to fragment cannot be cut by it as well.
        let alone = path_mtu.is_some_and(|path| len > path);
        match cut {
            None => {
                if let Some((from, offset)) = vnet.checksum {
                    let udp = ip.protocol == packet::UDP;
                    let packet = &mut packet[..ip.total];
                    if !packet::complete_checksum(packet, from.into(), offset.into(), udp) {
                        return Err(MALFORMED);
                    }
                }
                let piece = Piece { at: start as u32, len: ip.total as u32, made: false };
                self.append(index, ip.total, alone, &[piece]);
            }
            Some(cut) => {
                for segment in cut.segments() {
                    let made = self.headers.len();
                    self.headers.resize(made + cut.header, 0);
                    cut.write_header(packet, &segment, &mut self.headers[made..]);
                    let payload = segment.end - segment.start;
                    let at = (start + segment.start) as u32;
                    let pieces = [
                        Piece { at: made as u32, len: cut.header as u32, made: true },
                        Piece { at, len: payload as u32, made: false },
                    ];
                    let pieces = if payload == 0 { &pieces[..1] } else { &pieces[..] };
                    self.append(index, cut.header + payload, alone, pieces);
                }
            }
        }
        Ok(())
    }

    /// Answers the sender of a datagram that was refused as longer than its path's MTU.
    pub(crate) fn answer_too_big(&mut self, judge: BatchContext<'_>, packet: &[u8], mtu: u16) {
        if let Some(ip) = IpHeader::read(packet) {
            self.answer(judge, &ip, packet, Problem::TooBig(mtu));
        }
    }

    fn append(&mut self, peer: u32, len: usize, alone: bool, pieces: &[Piece]) {
        let used = &mut self.messages[..self.used];
        let latest = used.iter_mut().rev().take(SEARCHED_BACK).find(|message| message.peer == peer);
        if let Some(message) = latest
            && !message.closed
            && !alone
            && message.packets < self.max_segments
            && len <= message.segment
            && message.len + len + (message.packets + 1) * self.growth <= MAX_BYTES
        {
            message.packets += 1;
            message.len += len;
            message.closed = len < message.segment;
            message.pieces.extend_from_slice(pieces);
            return;
        }
        if self.used == self.messages.len() {
            self.messages.push(Message::default());
        }
        let message = &mut self.messages[self.used];
        self.used += 1;
        // Its memory is used again.
        let mut room = std::mem::take(&mut message.pieces);
        room.clear();
        room.extend_from_slice(pieces);
        let closed = alone || self.max_segments == 1;
        *message = Message { peer, segment: len, len, packets: 1, pieces: room, closed };
    }

    fn answer(&mut self, judge: BatchContext<'_>, ip: &IpHeader, packet: &[u8], problem: Problem) {
        if self.answer_limit.pass(judge.now).is_none() {
            return;
        }
        let start = self.answers.len();
        if self.vnet {
            self.answers.extend_from_slice(&VnetHeader::PLAIN.write(ip.v6));
        }
        if icmp::answer(judge.table.own, ip, packet, problem, &mut self.answers) {
            self.answer_ends.push(self.answers.len());
        } else {
            self.answers.truncate(start);
        }
    }
}

/// MTU for an error to the sender, if a packet of this length is too long for the path and may not be fragmented.
fn too_big(ip: &IpHeader, packet: &[u8], len: usize, path_mtu: usize) -> Option<u16> {
    // IPv6 is promised this much of every link; where the path carries less, we fragment, not the senders.
    let mtu = if ip.v6 { path_mtu.max(MIN_MTU_V6) } else { path_mtu };
    let whole = ip.v6 || packet.get(6).is_some_and(|flags| flags & 0x40 != 0);
    (len > mtu && whole).then_some(mtu as u16)
}

/// The same for a datagram that is one packet.
pub(crate) fn refusal(packet: &[u8], path_mtu: usize) -> Option<u16> {
    let ip = IpHeader::read(packet)?;
    too_big(&ip, packet, ip.total, path_mtu)
}

impl Message {
    /// The datagrams one by one, for a kernel that does not cut them.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = &[Piece]> {
        let mut rest = &self.pieces[..];
        std::iter::from_fn(move || {
            let mut len = 0;
            let whole = rest.iter().position(|piece| {
                len += piece.len as usize;
                len >= self.segment
            });
            let (datagram, after) = rest.split_at(whole.map_or(rest.len(), |at| at + 1));
            rest = after;
            (!datagram.is_empty()).then_some(datagram)
        })
    }

    /// A message of one of these datagrams alone.
    pub(crate) fn single(&self, datagram: &[Piece]) -> Self {
        let len = datagram.iter().map(|piece| piece.len as usize).sum();
        let (peer, pieces) = (self.peer, datagram.to_vec());
        Self { peer, segment: len, len, packets: 1, pieces, closed: true }
    }

    pub(crate) fn state<'a>(&self, table: &'a Table) -> &'a PeerState {
        &table.peers()[self.peer as usize]
    }
}
