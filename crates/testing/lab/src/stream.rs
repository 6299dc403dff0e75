//! A stream of numbered datagrams between two places, to count what a fault costs.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::error::{Context, LabError, Result};
use crate::lab::Lab;
use crate::matrix::{PlaceRef, common};
use crate::realtime;

/// After the last datagram was sent, how long stragglers are waited for.
const DRAIN: Duration = Duration::from_millis(300);
const HEADER: usize = 16;
/// Longest time whose datagrams are sent at once by a sender that did not run meanwhile.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(100);

/// How to stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// How many datagrams a second.
    pub packets_per_second: u32,
    /// Bytes of each datagram, at least 16.
    pub payload: usize,
    /// Over IPv6; by default over IPv4 if both places have it.
    pub ipv6: bool,
}

/// A running stream. Dropping it ends it.
#[derive(Debug)]
pub struct Stream {
    begin: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    sender: Option<JoinHandle<Sent>>,
    receiver: Option<JoinHandle<Received>>,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// Datagrams that were sent, or would have been had the kernel not refused.
    pub sent: u64,
    /// Datagrams of these that the sender's kernel refused, e.g. for lack of a route.
    pub refused: u64,
    /// Different datagrams that arrived.
    pub received: u64,
    /// Those that did not.
    pub lost: u64,
    /// Datagrams that arrived again.
    pub duplicates: u64,
    /// The longest time without an arrival.
    pub longest_gap: Duration,
    /// When that time began, from the stream's beginning.
    pub longest_gap_at: Duration,
    /// The longest way of a datagram.
    pub longest_latency: Duration,
    /// How long the stream ran.
    pub elapsed: Duration,
}

impl Lab {
    /// Streams datagrams from one place to another until stopped.
    pub fn stream(
        &self,
        from: &dyn PlaceRef,
        to: &dyn PlaceRef,
        packets_per_second: u32,
    ) -> Result<Stream> {
        let ipv6 = !common(from, to).iter().any(IpAddr::is_ipv4);
        self.stream_with(from, to, StreamOptions { packets_per_second, payload: 64, ipv6 })
    }

    /// As [`Self::stream`], with other options.
    pub fn stream_with(
        &self,
        from: &dyn PlaceRef,
        to: &dyn PlaceRef,
        options: StreamOptions,
    ) -> Result<Stream> {
        let family = |address: &IpAddr| address.is_ipv6() == options.ipv6;
        let none = || LabError::Unreachable {
            from: from.label(),
            to: to.label(),
            reason: "they have no such address family in common".into(),
        };
        let source = from.addresses().into_iter().find(family).ok_or_else(none)?;
        let target = to.addresses().into_iter().find(family).ok_or_else(none)?;
        let bind = |place: &dyn PlaceRef, address: IpAddr| {
            place
                .namespace()
                .run(|| UdpSocket::bind(SocketAddr::new(address, 0)))?
                .context(|| format!("{}: bind {address}", place.label()))
        };
        let (source, sink) = (bind(from, source)?, bind(to, target)?);
        Stream::start(source, sink, options).context(|| "start a stream".into())
    }
}

impl Stream {
    fn start(source: UdpSocket, sink: UdpSocket, options: StreamOptions) -> io::Result<Self> {
        let target = sink.local_addr()?;
        sink.set_read_timeout(Some(Duration::from_millis(20)))?;
        set_socket_recv_buffer_size_force(&sink, 4 << 20)?;
        let begin = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let drained = Arc::new(AtomicBool::new(false));
        let sender = {
            let (stop, sent, drained) =
                (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&drained));
            let (sent_now, received) = (Arc::clone(&sent), Arc::clone(&received));
            std::thread::Builder::new().name("lab-stream-send".into()).spawn(move || {
                enter_realtime();
                let result = send(&source, target, options, begin, &stop, &sent);
                let deadline = Instant::now() + DRAIN;
                let all = || received.load(Ordering::Acquire) >= sent_now.load(Ordering::Acquire);
                while Instant::now() < deadline && !all() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                drained.store(true, Ordering::Release);
                result
            })?
        };
        let receiver = {
            let received = Arc::clone(&received);
            std::thread::Builder::new().name("lab-stream-receive".into()).spawn(move || {
                enter_realtime();
                receive(&sink, begin, &drained, &received)
            })?
        };
        let (sender, receiver) = (Some(sender), Some(receiver));
        Ok(Self { begin, stop, sent, received, sender, receiver })
    }

    /// How many datagrams were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// How many different datagrams have arrived so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Ends the stream, waits for stragglers and reports.
    pub fn stop(mut self) -> StreamReport {
        self.finish().unwrap_or_else(|| unreachable!("a stream ends once"))
    }

    fn finish(&mut self) -> Option<StreamReport> {
        let (sender, receiver) = (self.sender.take()?, self.receiver.take()?);
        self.stop.store(true, Ordering::Release);
        let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The silence between the last arrival and the end of sending counts too.
        let last_gap = sent.end.saturating_duration_since(received.last);
        let (longest_gap, longest_gap_at) = if last_gap > received.longest_gap {
            (last_gap, received.last - self.begin)
        } else {
            (received.longest_gap, received.longest_gap_at)
        };
        Some(StreamReport {
            sent: sent.count,
            refused: sent.refused,
            received: received.count,
            lost: sent.count.saturating_sub(received.count),
            duplicates: received.duplicates,
            longest_gap,
            longest_gap_at,
            longest_latency: received.longest_latency,
            elapsed: sent.end - self.begin,
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A thread that may not is disturbed by others, and still counts right.
fn enter_realtime() {
    let _ = realtime::enter();
}

#[derive(Debug)]
struct Sent {
    count: u64,
    refused: u64,
    end: Instant,
}

#[derive(Debug)]
struct Received {
    count: u64,
    duplicates: u64,
    last: Instant,
    longest_gap: Duration,
    longest_gap_at: Duration,
    longest_latency: Duration,
}

fn send(
    socket: &UdpSocket,
    target: SocketAddr,
    options: StreamOptions,
    begin: Instant,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> Sent {
    let rate = f64::from(options.packets_per_second.max(1));
    let mut packet = vec![0; options.payload.max(HEADER)];
    let (mut count, mut refused) = (0_u64, 0);
    let mut schedule = begin;
    while !stop.load(Ordering::Acquire) {
        let due = schedule + Duration::from_secs_f64(count as f64 / rate);
        let now = Instant::now();
        // Whatever kept this thread from running, it does not make up for it: that burst would overflow the queues of
        // devices, and what is lost there would be of this program's making.
        let late = now.saturating_duration_since(due);
        if late > LONGEST_CATCH_UP {
            schedule += late;
        }
        if let Some(early) = due.checked_duration_since(now).filter(|early| !early.is_zero()) {
            std::thread::sleep(early.min(Duration::from_millis(50)));
            continue;
        }
        packet[..8].copy_from_slice(&count.to_be_bytes());
        packet[8..HEADER].copy_from_slice(&nanos(now - begin).to_be_bytes());
        if socket.send_to(&packet, target).is_err() {
            refused += 1;
        }
        count += 1;
        sent.store(count, Ordering::Release);
    }
    Sent { count, refused, end: Instant::now() }
}

fn receive(
    socket: &UdpSocket,
    begin: Instant,
    drained: &AtomicBool,
    received: &AtomicU64,
) -> Received {
    let mut result = Received {
        count: 0,
        duplicates: 0,
        last: begin,
        longest_gap: Duration::ZERO,
        longest_gap_at: Duration::ZERO,
        longest_latency: Duration::ZERO,
    };
    let mut seen: Vec<u64> = Vec::new();
    let mut buffer = vec![0; 65_536];
    while !drained.load(Ordering::Acquire) {
        // A timeout, or an error that an earlier datagram caused.
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let now = Instant::now();
        let Some((number, sent)) = header(&buffer[..length]) else { continue };
        let (Ok(word), bit) = (usize::try_from(number / 64), 1 << (number % 64)) else { continue };
        if seen.len() <= word {
            seen.resize(word + 1, 0);
        }
        if seen[word] & bit != 0 {
            result.duplicates += 1;
            continue;
        }
        seen[word] |= bit;
        result.count += 1;
        received.store(result.count, Ordering::Release);
        if now - result.last > result.longest_gap {
            result.longest_gap = now - result.last;
            result.longest_gap_at = result.last - begin;
        }
        result.last = now;
        let latency = (now - begin).saturating_sub(Duration::from_nanos(sent));
        result.longest_latency = result.longest_latency.max(latency);
    }
    result
}

fn header(datagram: &[u8]) -> Option<(u64, u64)> {
    let number = datagram.get(..8)?.try_into().ok()?;
    let sent = datagram.get(8..HEADER)?.try_into().ok()?;
    Some((u64::from_be_bytes(number), u64::from_be_bytes(sent)))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
