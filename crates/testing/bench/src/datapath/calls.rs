//! What a small packet costs by the call that moves it: system calls for one, for many, io_uring, and the
//! kernel's own segmentation. In processor time of the thread that makes the calls, which other work on the
//! machine changes little.

use std::io::{self, Read as _};
use std::mem;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use flannel_lab::Lab;
use io_uring::{IoUring, opcode, types};

use super::naive;

const BATCH: usize = 64;
const SMALL: usize = 92;
const PACKETS: usize = 200_000;

pub(super) fn run() -> anyhow::Result<()> {
    println!("a packet of {SMALL} bytes, processor time of the calling thread:");
    let lab = Lab::builder().nodes(2).wire(true).bare().start()?;
    for (name, read) in [
        ("TUN: read", read_one_by_one as fn(&OwnedFd) -> io::Result<()>),
        ("TUN: io_uring, 64 reads at once", read_by_ring),
    ] {
        let tun = lab.node(1).in_netns(|| tun(name.contains("io_uring")))??;
        lab.node(1).ip("addr add 10.99.0.1/24 dev bench0")?;
        lab.node(1).ip("link set bench0 up")?;
        let flood = lab.node(1).in_netns(|| UdpSocket::bind("10.99.0.1:0"))??;
        flood.connect("10.99.0.2:9")?;
        let stop = AtomicBool::new(false);
        let spent = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = flood.send(&[7; SMALL - 28]);
                }
            });
            let spent = spent_by(|| read(&tun));
            stop.store(true, Ordering::Relaxed);
            spent
        });
        say(name, spent?);
    }
    let socket = lab.node(1).in_netns(|| UdpSocket::bind("192.168.100.1:0"))??;
    socket.connect("192.168.100.2:9")?;
    // Somebody has to be there, or every datagram is answered by an error.
    let _sink = lab.node(2).in_netns(|| UdpSocket::bind("192.168.100.2:9"))??;
    for (name, send) in [
        ("UDP: send", send_one_by_one as fn(&UdpSocket) -> io::Result<()>),
        ("UDP: sendmmsg of 64", send_many),
        ("UDP: io_uring, 64 sends at once", send_by_ring),
        ("UDP: sendmsg with UDP_SEGMENT, 64 in one", send_segments),
    ] {
        say(name, spent_by(|| send(&socket))?);
    }
    println!();
    Ok(())
}

fn say(name: &str, seconds: f64) {
    println!("  {name:<60} {:>8.0} ns", seconds / PACKETS as f64 * 1e9);
}

fn spent_by(work: impl FnOnce() -> io::Result<()>) -> anyhow::Result<f64> {
    let before = thread_time()?;
    work().context("move packets")?;
    Ok(thread_time()? - before)
}

fn thread_time() -> anyhow::Result<f64> {
    // SAFETY: all zeroes is a valid value, and the kernel writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        ensure!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) == 0, "getrusage");
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

fn tun(blocking: bool) -> anyhow::Result<OwnedFd> {
    Ok(naive::tun("bench0", if blocking { 0 } else { libc::O_NONBLOCK })?.into())
}

fn read_one_by_one(tun: &OwnedFd) -> io::Result<()> {
    let mut file = std::fs::File::from(tun.try_clone()?);
    let mut buffer = vec![0; 2048];
    let mut left = PACKETS;
    while left > 0 {
        match file.read(&mut buffer) {
            Ok(_) => left -= 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut wait = [rustix::event::PollFd::new(&file, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut wait, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_by_ring(tun: &OwnedFd) -> io::Result<()> {
    let mut ring = IoUring::new(BATCH as u32)?;
    let mut buffers = vec![[0_u8; 2048]; BATCH];
    let fd = types::Fd(tun.as_raw_fd());
    let mut idle: Vec<usize> = (0..BATCH).collect();
    let mut left = PACKETS;
    while left > 0 {
        for at in idle.drain(..) {
            let buffer = &mut buffers[at];
            let entry = opcode::Read::new(fd, buffer.as_mut_ptr(), buffer.len() as u32).build();
            // SAFETY: the buffer lives longer than the ring, and has one reader at a time.
            unsafe { ring.submission().push(&entry.user_data(at as u64)) }
                .map_err(io::Error::other)?;
        }
        ring.submit_and_wait(1)?;
        for done in ring.completion() {
            left = left.saturating_sub(usize::from(done.result() > 0));
            idle.push(done.user_data() as usize);
        }
    }
    // What is still waiting for packets would write into freed memory.
    mem::forget(buffers);
    Ok(())
}

fn send_one_by_one(socket: &UdpSocket) -> io::Result<()> {
    for _ in 0..PACKETS {
        let _ = socket.send(&[7; SMALL - 28]);
    }
    Ok(())
}

fn send_many(socket: &UdpSocket) -> io::Result<()> {
    let block = [7_u8; SMALL - 28];
    let mut piece =
        libc::iovec { iov_base: block.as_ptr().cast_mut().cast(), iov_len: block.len() };
    // SAFETY: headers of all zeroes are valid values.
    let mut calls: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    for call in &mut calls {
        call.msg_hdr.msg_iov = &raw mut piece;
        call.msg_hdr.msg_iovlen = 1;
    }
    let mut left = PACKETS;
    while left > 0 {
        // SAFETY: what the calls point to lives until this returns.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), calls.as_mut_ptr(), BATCH as _, 0) };
        left = left.saturating_sub(usize::try_from(sent).map_err(|_| io::Error::last_os_error())?);
    }
    Ok(())
}

fn send_by_ring(socket: &UdpSocket) -> io::Result<()> {
    let mut ring = IoUring::new(BATCH as u32)?;
    let block = [7_u8; SMALL - 28];
    let fd = types::Fd(socket.as_raw_fd());
    let mut left = PACKETS;
    while left > 0 {
        for _ in 0..BATCH {
            let entry = opcode::Send::new(fd, block.as_ptr(), block.len() as u32).build();
            // SAFETY: the block lives longer than the ring.
            unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        }
        ring.submit_and_wait(BATCH)?;
        left = left.saturating_sub(ring.completion().count());
    }
    Ok(())
}

fn send_segments(socket: &UdpSocket) -> io::Result<()> {
    let size: libc::c_int = (SMALL - 28) as libc::c_int;
    let len = mem::size_of_val(&size) as libc::socklen_t;
    // SAFETY: the kernel reads one int.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            len,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    let block = [7_u8; (SMALL - 28) * BATCH];
    for _ in 0..PACKETS / BATCH {
        let _ = socket.send(&block);
    }
    Ok(())
}
