//! The network between simulated hosts: connections in memory with delays, losses, partitions and ends that are never
//! heard of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use flannel_common::simulation::{ByteStream, StreamListener, Waiting};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::host::name_of;
use crate::http_tap::HttpTap;
use crate::operations;

/// Bytes on the way in one direction.
const WINDOW: usize = 64 << 10;
/// A connection whose other end is silent for so long is given up, as keepalive and the user time-out have it.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// A connection that nobody answers is given up after this.
const CONNECT_LIMIT: Duration = Duration::from_secs(127);
/// A lost packet is sent again after this.
const RETRANSMISSION: Duration = Duration::from_millis(200);
const FIRST_PORT: u16 = 32_768;

/// Clones share the network.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<State>>);

struct State {
    rng: fastrand::Rng,
    slowest_ms: u64,
    loss_percent: u8,
    /// Pairs of hosts, the lower first, between which nothing passes.
    cut: BTreeSet<(usize, usize)>,
    /// Hosts that are off: they send nothing, not even the end of a connection.
    off: BTreeSet<usize>,
    listeners: BTreeMap<SocketAddr, (usize, Arc<Backlog>)>,
    pipes: Vec<Weak<Mutex<Pipe>>>,
    pipes_after_purge: usize,
    next_port: u16,
    sent: BTreeMap<usize, u64>,
    sent_bytes: u64,
}

/// Connections that nobody has accepted yet.
#[derive(Default)]
struct Backlog {
    waiting: Mutex<VecDeque<Stream>>,
    arrived: Notify,
}

/// One direction of a connection.
struct Pipe {
    from: usize,
    to: usize,
    chunks: VecDeque<(Instant, Vec<u8>)>,
    queued: usize,
    last: Instant,
    /// When the end arrives.
    end: Option<Instant>,
    reset: bool,
    /// One end has lost its state, and the other one will not hear of it.
    forgotten: bool,
    /// Since when nothing passes.
    stalled: Option<Instant>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Network {
    pub(crate) fn new(mut rng: fastrand::Rng) -> Self {
        let slowest_ms = *rng.choice(&[1, 5, 50]).unwrap_or(&1);
        let loss_percent = *rng.choice(&[0, 0, 1, 5]).unwrap_or(&0);
        Self(Arc::new(Mutex::new(State {
            rng,
            slowest_ms,
            loss_percent,
            cut: BTreeSet::new(),
            off: BTreeSet::new(),
            listeners: BTreeMap::new(),
            pipes: Vec::new(),
            pipes_after_purge: 0,
            next_port: FIRST_PORT,
            sent: BTreeMap::new(),
            sent_bytes: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes that a host has made to connections so far.
    pub(crate) fn sent(&self, host: usize) -> u64 {
        self.state().sent.get(&host).copied().unwrap_or(0)
    }

    /// Writes of all hosts to connections so far, and their bytes.
    pub(crate) fn all_sent(&self) -> (u64, u64) {
        let state = self.state();
        (state.sent.values().sum(), state.sent_bytes)
    }

    /// From now on nothing passes between two hosts.
    pub(crate) fn cut(&self, a: usize, b: usize) {
        let mut state = self.state();
        state.cut.insert((a.min(b), a.max(b)));
        state
            .stall(|pipe| (pipe.from.min(pipe.to), pipe.from.max(pipe.to)) == (a.min(b), a.max(b)));
    }

    /// Everything passes again. Connections that stood go on, or are reset.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.cut.clear();
        let off = state.off.clone();
        for pipe in state.live_pipes() {
            let reset = state.rng.u8(..3) == 0;
            let mut pipe = lock(&pipe);
            let can_go_on = pipe.stalled.is_some() && !pipe.forgotten;
            if can_go_on && !off.contains(&pipe.from) && !off.contains(&pipe.to) {
                pipe.stalled = None;
                pipe.reset |= reset;
                pipe.wake();
            }
        }
    }

    /// Connections of a host are half open from now on: one end is gone and the other one hears nothing of it, or neither
    /// end hears of the other.
    pub(crate) fn forget_connections(&self, host: usize) {
        let mut state = self.state();
        let (own_end, other_end) = match state.rng.u8(..3) {
            0 => (true, false),
            1 => (false, true),
            _ => (false, false),
        };
        for pipe in state.live_pipes() {
            let mut pipe = lock(&pipe);
            // A pipe is read at its end.
            let resets = match (pipe.from == host, pipe.to == host) {
                (false, true) => own_end,
                (true, false) => other_end,
                _ => continue,
            };
            pipe.reset |= resets;
            if !pipe.reset {
                pipe.forgotten = true;
                pipe.stalled.get_or_insert_with(Instant::now);
            }
            pipe.wake();
        }
    }

    /// Ends of connections that are open.
    pub(crate) fn connections(&self) -> usize {
        self.state().live_pipes().len()
    }

    /// A host goes off without a word, or comes back and knows of no connection.
    pub(crate) fn set_off(&self, host: usize, off: bool) {
        let mut state = self.state();
        if off {
            state.off.insert(host);
            state.listeners.retain(|_, (at, _)| *at != host);
            state.stall(|pipe| pipe.from == host || pipe.to == host);
        } else {
            state.off.remove(&host);
            for pipe in state.live_pipes() {
                let mut pipe = lock(&pipe);
                if pipe.to == host && pipe.stalled.is_some() {
                    pipe.reset = true;
                    pipe.wake();
                }
            }
        }
    }

    /// Connections of an address that is gone are never heard of again.
    pub(crate) fn address_gone(&self, host: usize) {
        self.state().stall(|pipe| pipe.from == host || pipe.to == host);
    }

    pub(crate) fn listen(
        &self,
        host: usize,
        at: SocketAddr,
    ) -> io::Result<Box<dyn StreamListener>> {
        let mut state = self.state();
        state.listeners.retain(|_, (_, backlog)| Arc::strong_count(backlog) > 1);
        if state.listeners.contains_key(&at) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let backlog = Arc::new(Backlog::default());
        state.listeners.insert(at, (host, backlog.clone()));
        Ok(Box::new(Listening(backlog)))
    }

    /// Connects a host, from this address.
    pub(crate) fn connect(
        &self,
        host: usize,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Waiting<io::Result<Box<dyn ByteStream>>> {
        let network = self.clone();
        Box::pin(async move {
            let there = network.state().delay();
            sleep(there).await;
            let connected = network.state().connect(&network, host, from, to);
            let Some(connected) = connected else {
                sleep(CONNECT_LIMIT).await;
                return Err(io::ErrorKind::TimedOut.into());
            };
            let back = network.state().delay();
            sleep(back).await;
            connected.map(|stream| Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

impl State {
    fn delay(&mut self) -> Duration {
        let lost = self.rng.u8(..100) < self.loss_percent;
        let plain = Duration::from_micros(self.rng.u64(100..=self.slowest_ms * 1_000));
        if lost { plain + RETRANSMISSION } else { plain }
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&(a.min(b), a.max(b))) || self.off.contains(&a) || self.off.contains(&b)
    }

    fn live_pipes(&mut self) -> Vec<Arc<Mutex<Pipe>>> {
        self.pipes.retain(|pipe| pipe.strong_count() > 0);
        self.pipes.iter().filter_map(Weak::upgrade).collect()
    }

    fn stall(&mut self, is_concerned: impl Fn(&Pipe) -> bool) {
        for pipe in self.live_pipes() {
            let mut pipe = lock(&pipe);
            if is_concerned(&pipe) && pipe.stalled.is_none() {
                pipe.stalled = Some(Instant::now());
                pipe.wake();
            }
        }
    }

    /// `None` if nobody answers.
    fn connect(
        &mut self,
        network: &Network,
        host: usize,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<io::Result<Stream>> {
        let (peer, backlog) = match self.listeners.get(&to) {
            Some((peer, backlog)) if Arc::strong_count(backlog) > 1 => (*peer, backlog.clone()),
            _ if self.off.is_empty() => return Some(Err(io::ErrorKind::ConnectionRefused.into())),
            _ => return None,
        };
        if self.is_cut(host, peer) {
            return None;
        }
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        let from = SocketAddr::new(from.ip(), self.next_port);
        if self.pipes.len() > self.pipes_after_purge * 2 + 64 {
            self.pipes.retain(|pipe| pipe.strong_count() > 0);
            self.pipes_after_purge = self.pipes.len();
        }
        let out = Pipe::new(host, peer);
        let back = Pipe::new(peer, host);
        self.pipes.extend([&out, &back].map(Arc::downgrade));
        let stream = |own, other, write: &Arc<_>, read: &Arc<_>| Stream {
            network: network.clone(),
            own,
            other,
            write: Arc::clone(write),
            read: Arc::clone(read),
            timer: None,
            tap: None,
        };
        backlog
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(stream(to, from, &back, &out));
        backlog.arrived.notify_one();
        let mut near = stream(from, to, &out, &back);
        near.tap = (!operations::keeps_nothing()).then(|| HttpTap::new(name_of(host)));
        Some(Ok(near))
    }
}

impl Pipe {
    fn new(from: usize, to: usize) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            from,
            to,
            chunks: VecDeque::new(),
            queued: 0,
            last: Instant::now(),
            end: None,
            reset: false,
            forgotten: false,
            stalled: None,
            reader: None,
            writer: None,
        }))
    }

    /// Hands over the first chunk, as far as there is room.
    fn deliver(&mut self, buffer: &mut ReadBuf<'_>) {
        let Some((_, bytes)) = self.chunks.front_mut() else { return };
        let length = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..length]);
        bytes.drain(..length);
        if bytes.is_empty() {
            self.chunks.pop_front();
        }
        self.queued -= length;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

struct Listening(Arc<Backlog>);

impl StreamListener for Listening {
    fn accept(&self) -> Waiting<io::Result<Box<dyn ByteStream>>> {
        let backlog = self.0.clone();
        Box::pin(async move {
            loop {
                let next =
                    backlog.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                if let Some(stream) = next {
                    return Ok(Box::new(stream) as Box<dyn ByteStream>);
                }
                backlog.arrived.notified().await;
            }
        })
    }
}

/// One end of a connection.
struct Stream {
    network: Network,
    own: SocketAddr,
    other: SocketAddr,
    write: Arc<Mutex<Pipe>>,
    read: Arc<Mutex<Pipe>>,
    timer: Option<Pin<Box<Sleep>>>,
    /// At the end that connected.
    tap: Option<HttpTap>,
}

impl ByteStream for Stream {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.own)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.other)
    }
}

impl Stream {
    /// Polls again at this time.
    fn poll_at(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(context)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let pipe = this.read.clone();
        loop {
            let mut pipe = lock(&pipe);
            if pipe.reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let now = Instant::now();
            pipe.reader = Some(context.waker().clone());
            if let Some(since) = pipe.stalled
                && since + SILENCE_LIMIT <= now
            {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            let first = pipe.chunks.front().map(|(due, _)| *due);
            let due = match (pipe.stalled, first, pipe.end) {
                (Some(since), ..) => since + SILENCE_LIMIT,
                (None, Some(due), _) if due <= now => {
                    let before = buffer.filled().len();
                    pipe.deliver(buffer);
                    if let Some(tap) = &mut this.tap {
                        tap.received(&buffer.filled()[before..]);
                    }
                    return Poll::Ready(Ok(()));
                }
                (None, Some(due), _) => due,
                (None, None, Some(end)) if end <= now => return Poll::Ready(Ok(())),
                (None, None, Some(end)) => end,
                (None, None, None) => return Poll::Pending,
            };
            drop(pipe);
            if this.poll_at(due, context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let delay = {
            let mut state = this.network.state();
            let from = lock(&this.write).from;
            *state.sent.entry(from).or_default() += 1;
            state.sent_bytes += bytes.len() as u64;
            state.delay()
        };
        let mut pipe = lock(&this.write);
        if pipe.reset || pipe.end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if pipe.queued >= WINDOW {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = bytes.len().min(WINDOW - pipe.queued);
        let due = pipe.last.max(Instant::now() + delay);
        pipe.last = due;
        pipe.queued += length;
        pipe.chunks.push_back((due, bytes[..length].to_vec()));
        if let Some(tap) = &mut this.tap {
            tap.sent(&bytes[..length]);
        }
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.write);
        let end = pipe.last.max(Instant::now());
        pipe.end.get_or_insert(end);
        pipe.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let is_off = {
            let state = self.network.state();
            state.off.contains(&lock(&self.write).from)
        };
        if is_off {
            return;
        }
        let mut pipe = lock(&self.write);
        let end = pipe.last.max(Instant::now());
        pipe.end.get_or_insert(end);
        pipe.wake();
        drop(pipe);
        let mut pipe = lock(&self.read);
        pipe.reset = true;
        pipe.wake();
    }
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}
