//! What is sent over a path, and what arrives: TCP streams, a flood of small datagrams, and one request
//! after the other.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flannel_lab::Place;

use super::cpu::Cpu;

const BLOCK: usize = 256 << 10;
const SMALL: usize = 64;
/// Streams have to find their speed before it is measured.
const WARM_UP: Duration = Duration::from_millis(400);
const CONNECT: Duration = Duration::from_secs(5);

/// Where traffic begins and ends.
pub(super) struct Ends<'a> {
    pub(super) from: &'a dyn Place,
    pub(super) to: &'a dyn Place,
    pub(super) target: IpAddr,
}

pub(super) struct Bulk {
    pub(super) bits_per_second: f64,
    /// Of all that took part.
    pub(super) cpu_seconds_per_gigabyte: f64,
}

impl Ends<'_> {
    fn connect(&self) -> anyhow::Result<(TcpStream, TcpStream)> {
        let to = self.to.namespace();
        let target = self.target;
        let listener = to.run(|| TcpListener::bind((target, 0)))??;
        cubic(listener.as_raw_fd())?;
        let address = listener.local_addr()?;
        let begin = Instant::now();
        let sender = loop {
            let connected =
                self.from.namespace().run(|| TcpStream::connect_timeout(&address, CONNECT))?;
            match connected {
                Ok(sender) => break sender,
                // A path may take a moment to stand.
                Err(error) if begin.elapsed() > CONNECT => {
                    return Err(error).context(format!("connect to {address}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        cubic(sender.as_raw_fd())?;
        Ok((sender, listener.accept()?.0))
    }

    pub(super) fn tcp(&self, streams: usize, time: Duration, cpu: &Cpu) -> anyhow::Result<Bulk> {
        let pairs: Vec<_> = (0..streams).map(|_| self.connect()).collect::<Result<_, _>>()?;
        let received = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (mut sender, mut receiver) in pairs {
                let (received, stop) = (&received, &stop);
                scope.spawn(move || {
                    let block = vec![7; BLOCK];
                    while !stop.load(Ordering::Relaxed) && sender.write_all(&block).is_ok() {}
                    let _ = sender.shutdown(std::net::Shutdown::Both);
                });
                scope.spawn(move || {
                    let mut block = vec![0; BLOCK];
                    while let Ok(len @ 1..) = receiver.read(&mut block) {
                        received.fetch_add(len as u64, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(WARM_UP);
            let (begin, before) = (Instant::now(), received.load(Ordering::Relaxed));
            let cpu_before = cpu.spent();
            std::thread::sleep(time);
            let bytes = (received.load(Ordering::Relaxed) - before) as f64;
            let spent = cpu.spent() - cpu_before;
            let seconds = begin.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            Ok(Bulk {
                bits_per_second: bytes * 8.0 / seconds,
                cpu_seconds_per_gigabyte: spent / (bytes / 1e9),
            })
        })
    }

    /// Datagrams of 64 bytes that arrive in a second, while as many are sent as one thread can.
    pub(super) fn small_datagrams(&self, time: Duration) -> anyhow::Result<f64> {
        let target = self.target;
        let receiver = self.to.namespace().run(|| UdpSocket::bind((target, 0)))??;
        let target = receiver.local_addr()?;
        let sender = self.from.namespace().run(|| connected(target))??;
        receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
        let received = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = sender.send(&[7; SMALL]);
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    received.fetch_add(receive_many(&receiver), Ordering::Relaxed);
                }
            });
            std::thread::sleep(WARM_UP);
            let (begin, before) = (Instant::now(), received.load(Ordering::Relaxed));
            std::thread::sleep(time);
            let packets = (received.load(Ordering::Relaxed) - before) as f64;
            let seconds = begin.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            Ok(packets / seconds)
        })
    }

    /// How long 64 bytes take there and back, one after the other; sorted.
    pub(super) fn round_trips(&self, time: Duration) -> anyhow::Result<Vec<Duration>> {
        let (mut client, mut server) = self.connect()?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut times = Vec::with_capacity(100_000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut block = [0; SMALL];
                while server.read_exact(&mut block).is_ok() && server.write_all(&block).is_ok() {}
            });
            let begin = Instant::now();
            let mut block = [0; SMALL];
            while begin.elapsed() < time {
                let sent = Instant::now();
                client.write_all(&block)?;
                client.read_exact(&mut block)?;
                times.push(sent.elapsed());
            }
            let _ = client.shutdown(std::net::Shutdown::Both);
            Ok::<_, io::Error>(())
        })?;
        times.drain(..times.len().min(100));
        times.sort_unstable();
        Ok(times)
    }
}

fn connected(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr =
        if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    Ok(socket)
}

/// Counting must not be what limits.
fn receive_many(socket: &UdpSocket) -> u64 {
    const MANY: usize = 64;
    let mut blocks = [[0_u8; SMALL]; MANY];
    let mut pieces = blocks
        .each_mut()
        .map(|block| libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: block.len() });
    // SAFETY: headers of all zeroes are valid values.
    let mut calls: [libc::mmsghdr; MANY] = unsafe { std::mem::zeroed() };
    for (call, piece) in calls.iter_mut().zip(&mut pieces) {
        call.msg_hdr.msg_iov = piece;
        call.msg_hdr.msg_iovlen = 1;
    }
    let none = std::ptr::null_mut();
    let flags = libc::MSG_WAITFORONE as _;
    // SAFETY: what the calls point to lives until this returns.
    let received =
        unsafe { libc::recvmmsg(socket.as_raw_fd(), calls.as_mut_ptr(), MANY as _, flags, none) };
    u64::try_from(received).unwrap_or(0)
}

/// One congestion control for all, whatever the machine's default is.
fn cubic(socket: libc::c_int) -> io::Result<()> {
    let name = c"cubic";
    // SAFETY: the kernel reads as many bytes as the name has.
    let result = unsafe {
        let (name, len) = (name.as_ptr().cast(), name.count_bytes() as libc::socklen_t);
        libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
