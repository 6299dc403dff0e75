//! The two directions of a lane: one queue of the TUN device and one socket of each family.
//!
//! Each direction has one thread, which waits in the kernel for the first packet and takes further ones without
//! waiting: few system calls for one packet, many packets at once under load, and those of one flow keep their order.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::Cache;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::counters::DropReason;
use crate::datapath::{FeaturesInUse, Shared};
use crate::inbound::Inbound;
use crate::outbound::{self, BatchContext, MAX_SEGMENTS, Message, Outbound, Piece};
use crate::sys::is_empty;
use crate::sys::tun::TunQueue;
use crate::sys::udp::{Receiver, Sender, UdpSocket, path_mtu};
use crate::table::Table;
use crate::vnet;
use crate::wireguard::{DATA_OVERHEAD, MOST_GROWTH, OpenedPacket};

/// Largest packet of the kernel, with the header before it.
const MAX_READ: usize = 65_536 + 64;
/// Bytes that are read before anything is sent: a few large packets, or some hundred small ones.
const READ_BUFFER: usize = 4 * MAX_READ;
const MAX_READS: usize = 128;
/// Slot for joined datagrams of one sender.
const LARGE_SLOT: usize = 65_536;
const LARGE_SLOTS: usize = 4;
/// Slot for one datagram, of any MTU.
const SMALL_SLOT: usize = 9_728;
const SMALL_SLOTS: usize = 64;
/// How long the underlay may be full before waiting packets are dropped.
const SEND_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

#[derive(Debug)]
pub(crate) struct DeviceLost;

type TableCache = Cache<Arc<arc_swap::ArcSwap<Table>>, Arc<Table>>;

pub(crate) struct OutboundLane {
    tun: Arc<TunQueue>,
    sockets: Vec<Arc<UdpSocket>>,
    table: TableCache,
    buffer: Box<[u8]>,
    outbound: Outbound,
    sender: Sender,
    /// Packets have been coming one at a time lately: the next one is sent before looking for more.
    eager: bool,
}

impl OutboundLane {
    pub(crate) fn new(
        tun: Arc<TunQueue>,
        sockets: Vec<Arc<UdpSocket>>,
        shared: &Shared,
        in_use: FeaturesInUse,
    ) -> Self {
        let outbound = Outbound::new(if in_use.udp_gso { MAX_SEGMENTS } else { 1 }, in_use.tso);
        let is_sealed = shared.wireguard.is_some();
        Self {
            tun,
            sockets,
            table: Cache::new(Arc::clone(&shared.table)),
            buffer: vec![0; READ_BUFFER].into(),
            outbound: if is_sealed { outbound.sealed(MOST_GROWTH) } else { outbound },
            sender: Sender::default(),
            eager: true,
        }
    }

    /// Waits for a packet and sends it, with all others that are there by then.
    pub(crate) fn carry(&mut self, shared: &Shared) -> Result<(), DeviceLost> {
        let Some(mut at) = self.read(0, true)? else { return Ok(()) };
        let table = Arc::clone(self.table.load());
        let judge = BatchContext { table: &table, counters: &shared.counters, now: Instant::now() };
        self.outbound.take(judge, &mut self.buffer, 0..at);
        if self.eager {
            self.send(shared, judge);
            at = 0;
        }
        let mut more = 0;
        while more < MAX_READS && self.buffer.len() - at >= MAX_READ + 64 {
            // The next packet begins on a cache line of its own.
            let start = at.next_multiple_of(64);
            let Some(end) = self.read(start, false)? else { break };
            self.outbound.take(judge, &mut self.buffer, start..end);
            at = end;
            more += 1;
        }
        self.eager = more == 0;
        self.send(shared, judge);
        Ok(())
    }

    /// Reads a packet and returns its end; `None` if there is none, or the wait was cut short.
    fn read(&mut self, at: usize, wait: bool) -> Result<Option<usize>, DeviceLost> {
        match self.tun.read(&mut self.buffer[at..at + MAX_READ], wait) {
            Ok(0) => Err(DeviceLost),
            Ok(len) => Ok(Some(at + len)),
            Err(error) if is_empty(&error) => Ok(None),
            Err(_) => Err(DeviceLost),
        }
    }

    fn send(&mut self, shared: &Shared, judge: BatchContext<'_>) {
        if let Some(wireguard) = &shared.wireguard {
            wireguard.seal(&mut self.outbound, judge.table, &self.buffer);
        }
        self.write_answers();
        let refused = self.flush(shared, judge.table);
        self.outbound.clear();
        if !refused.is_empty() {
            for (packet, mtu) in &refused {
                self.outbound.answer_too_big(judge, packet, *mtu);
            }
            self.write_answers();
            self.outbound.clear();
        }
    }

    fn write_answers(&self) {
        for answer in self.outbound.answers() {
            // Best effort: errors are not guaranteed to arrive.
            let _ = self.tun.write(answer);
        }
    }

    /// Sends the batch. Returns the packets that their path refused, and its MTU.
    fn flush(&mut self, shared: &Shared, table: &Table) -> Vec<(Vec<u8>, u16)> {
        // Takes no memory while it is empty, as it nearly always is.
        let mut refused = Vec::new();
        let mut use_gso = true;
        let mut rest = self.outbound.messages();
        while let Some(first) = rest.first() {
            let v6 = first.state(table).endpoint().is_ipv6();
            let same = |message: &&Message| message.state(table).endpoint().is_ipv6() == v6;
            let run = rest.iter().take_while(same).count();
            let Some(socket) = self.sockets.iter().find(|socket| socket.v6 == v6) else {
                drop_messages(table, &rest[..run]);
                rest = &rest[run..];
                continue;
            };
            let (read, made) = (&*self.buffer, &*self.outbound.headers);
            match self.sender.send(socket, table, &rest[..run], read, made) {
                Ok(sent) => {
                    for message in &rest[..sent] {
                        let counters = &message.state(table).counters;
                        counters.sent(message.packets as u64, message.len as u64);
                    }
                    rest = &rest[sent..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !wait_writable(socket) || shared.is_stopping() {
                        drop_messages(table, &rest[..1]);
                        rest = &rest[1..];
                    }
                }
                Err(error) => {
                    let overhead =
                        if shared.wireguard.is_some() { DATA_OVERHEAD as u32 } else { 0 };
                    learn_path_mtu(table, first, overhead, &error);
                    // What the kernel does not cut, or not for this path, is sent piece by piece.
                    use_gso &= !(first.packets > 1 && error.raw_os_error() == Some(libc::EIO));
                    let single = SingleDatagrams { socket, table, message: first, read, made };
                    single.send(&mut self.sender, &mut refused);
                    rest = &rest[1..];
                }
            }
        }
        if !use_gso && shared.lost_gso() {
            tracing::warn!(
                "the underlay refuses UDP segmentation (UDP_SEGMENT): datagrams are sent one by one from now on"
            );
        }
        if shared.is_gso_lost() {
            self.outbound.max_segments = 1;
        }
        refused
    }
}

struct SingleDatagrams<'a> {
    socket: &'a UdpSocket,
    table: &'a Table,
    message: &'a Message,
    read: &'a [u8],
    made: &'a [u8],
}

impl SingleDatagrams<'_> {
    fn send(&self, sender: &mut Sender, refused: &mut Vec<(Vec<u8>, u16)>) {
        let state = self.message.state(self.table);
        let counters = &state.counters;
        for datagram in self.message.datagrams() {
            let single = self.message.single(datagram);
            let mut result = self.try_send(sender, &single);
            if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMSGSIZE))
                && let Some(path_mtu) = state.path_mtu()
            {
                let packet = Piece::concat(datagram, self.read, self.made);
                if let Some(mtu) = outbound::refusal(&packet, path_mtu) {
                    counters.dropped(DropReason::TooBig, 1);
                    refused.push((packet, mtu));
                    continue;
                }
                result = self.send_fragmented(sender, &single);
            }
            match result {
                Ok(_) => counters.sent(1, single.len as u64),
                Err(_) => counters.dropped(DropReason::SendFailed, 1),
            }
        }
    }

    fn try_send(&self, sender: &mut Sender, single: &Message) -> io::Result<usize> {
        let Self { socket, table, read, made, .. } = *self;
        let single = std::slice::from_ref(single);
        let result = sender.send(socket, table, single, read, made);
        if result.as_ref().is_err_and(is_empty) && wait_writable(socket) {
            return sender.send(socket, table, single, read, made);
        }
        result
    }

    /// Nobody else sends on this socket.
    fn send_fragmented(&self, sender: &mut Sender, single: &Message) -> io::Result<usize> {
        self.socket.set_fragmenting(true)?;
        let result = self.try_send(sender, single);
        self.socket.set_fragmenting(false)?;
        result
    }
}

fn drop_messages(table: &Table, messages: &[Message]) {
    for message in messages {
        let counters = &message.state(table).counters;
        counters.dropped(DropReason::SendFailed, message.packets as u64);
    }
}

/// Learns a path's MTU from a message that was too long.
fn learn_path_mtu(table: &Table, message: &Message, overhead: u32, error: &io::Error) {
    if !matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)) {
        return;
    }
    let state = message.state(table);
    let endpoint = state.endpoint();
    let outer = overhead + if endpoint.is_ipv4() { 28 } else { 48 };
    if let Ok(mtu) = path_mtu(endpoint)
        && let Some(inner) = mtu.checked_sub(outer)
        && ((inner + overhead) as usize) < message.segment
    {
        state.set_path_mtu(Some(inner));
    }
}

/// Waits while the underlay is full: nothing more is read, and the device's own queue fills.
fn wait_writable(socket: &UdpSocket) -> bool {
    let mut wait = [PollFd::new(socket, PollFlags::OUT)];
    poll(&mut wait, Some(&SEND_LIMIT)).is_ok_and(|ready| ready > 0)
}

pub(crate) struct InboundLane {
    socket: Arc<UdpSocket>,
    tun: Arc<TunQueue>,
    table: TableCache,
    buffer: Box<[u8]>,
    slot: usize,
    inbound: Inbound,
    receiver: Receiver,
    pieces: Pieces,
    opened: Vec<OpenedPacket>,
    vnet: bool,
}

/// Memory for the pieces of one write. Pointers in here are set before each call and mean nothing afterwards.
#[derive(Default)]
struct Pieces(Vec<libc::iovec>);

// SAFETY: no pointer in it is followed outside of the call that set it.
unsafe impl Send for Pieces {}

impl InboundLane {
    pub(crate) fn new(
        socket: Arc<UdpSocket>,
        tun: Arc<TunQueue>,
        shared: &Shared,
        in_use: FeaturesInUse,
    ) -> Self {
        let (slot, slots) =
            if in_use.udp_gro { (LARGE_SLOT, LARGE_SLOTS) } else { (SMALL_SLOT, SMALL_SLOTS) };
        Self {
            socket,
            tun,
            table: Cache::new(Arc::clone(&shared.table)),
            buffer: vec![0; slot * slots].into(),
            slot,
            inbound: Inbound::new(in_use.tso, in_use.uso),
            receiver: Receiver::new(slots),
            pieces: Pieces::default(),
            opened: Vec::new(),
            vnet: in_use.tso,
        }
    }

    /// Waits for a datagram and writes it, with all others that are there by then.
    pub(crate) fn carry(&mut self, shared: &Shared) -> Result<(), DeviceLost> {
        // This call returns errors of earlier datagrams, and clears them.
        let Ok(count) = self.receiver.receive(&self.socket, &mut self.buffer, self.slot) else {
            return Ok(());
        };
        let table = Arc::clone(self.table.load());
        for slot in 0..count {
            let Some(received) = self.receiver.received(slot) else { continue };
            if received.truncated {
                shared.counters.dropped(DropReason::Truncated, 1);
                continue;
            }
            let (start, counters) = (slot * self.slot, &shared.counters);
            let (from, range, segment) =
                (received.from, start..start + received.len, received.segment);
            if let Some(wireguard) = &shared.wireguard {
                self.opened.clear();
                let bytes = &mut self.buffer[range];
                let strange = wireguard.open(from, bytes, segment, &mut self.opened);
                counters.dropped(DropReason::UnknownSender, strange);
                let opened = &self.opened;
                self.inbound.take_opened(&table, counters, &self.buffer, start, opened);
            } else {
                self.inbound.take(&table, counters, from, &self.buffer, range, segment);
            }
        }
        self.inbound.finish(&mut self.buffer);
        let written = self.write(&table);
        self.inbound.clear();
        written
    }

    fn write(&mut self, table: &Table) -> Result<(), DeviceLost> {
        let mut result = Ok(());
        for write in self.inbound.writes() {
            let pieces = &mut self.pieces.0;
            pieces.clear();
            if self.vnet {
                let base = write.vnet.as_ptr().cast_mut().cast();
                pieces.push(libc::iovec { iov_base: base, iov_len: vnet::LEN });
            }
            pieces.extend(write.pieces.iter().map(|(at, len)| {
                let range = &self.buffer[*at as usize..][..*len as usize];
                libc::iovec { iov_base: range.as_ptr().cast_mut().cast(), iov_len: range.len() }
            }));
            if let Err(error) = self.tun.write_pieces(pieces) {
                write.refused(table);
                if error.raw_os_error() == Some(libc::EBADFD) {
                    result = Err(DeviceLost);
                }
            }
        }
        result
    }
}
