//! The measuring stick: the same entries written to the kernel with nothing around it. Messages are
//! put together byte by byte beforehand, so that what is timed is the kernel and the system calls.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use flannel_entries::kernel::{Entry, ROUTE_PROTOCOL};

const BATCH: usize = 64 * 1024;
const CREATE_REPLACE: u16 = 0x400 | 0x100;
const REQUEST: u16 = 1;
const ACK: u16 = 4;

/// Large batches, acknowledged by their last message.
pub(crate) fn batches(entries: &[Entry], link: u32) -> anyhow::Result<Duration> {
    let mut batches: Vec<Vec<u8>> = Vec::new();
    for message in entries.iter().filter_map(|entry| message(entry, link)) {
        match batches.last_mut() {
            Some(batch) if batch.len() + message.len() <= BATCH => batch.extend(message),
            _ => batches.push(message),
        }
    }
    let batches: Vec<Vec<u8>> = batches.into_iter().map(acknowledge_last).collect();
    let socket = open()?;
    let mut answer = vec![0; 64 * 1024];
    let start = Instant::now();
    for batch in &batches {
        send(&socket, batch)?;
        expect_ack(&socket, &mut answer)?;
    }
    Ok(start.elapsed())
}

/// One request, one acknowledgement, and the next.
pub(crate) fn one_by_one(entries: &[Entry], link: u32) -> anyhow::Result<Duration> {
    let messages: Vec<Vec<u8>> =
        entries.iter().filter_map(|e| message(e, link)).map(acknowledge_last).collect();
    let socket = open()?;
    let mut answer = vec![0; 64 * 1024];
    let start = Instant::now();
    for message in &messages {
        send(&socket, message)?;
        expect_ack(&socket, &mut answer)?;
    }
    Ok(start.elapsed())
}

/// Takes a route away, as somebody else would.
pub(crate) fn delete_route(route: &Entry, link: u32) -> anyhow::Result<()> {
    let mut message = acknowledge_last(message(route, link).context("not a peer's entry")?);
    message[4..6].copy_from_slice(&libc::RTM_DELROUTE.to_ne_bytes());
    message[6..8].copy_from_slice(&(REQUEST | ACK).to_ne_bytes());
    let socket = open()?;
    send(&socket, &message)?;
    expect_ack(&socket, &mut vec![0; 4096])
}

/// Sets the flag in the last message of a batch.
fn acknowledge_last(mut batch: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    let mut last = 0;
    while at + 16 <= batch.len() {
        last = at;
        let len = u32::from_ne_bytes([batch[at], batch[at + 1], batch[at + 2], batch[at + 3]]);
        at += (len as usize).next_multiple_of(4);
    }
    let flags = u16::from_ne_bytes([batch[last + 6], batch[last + 7]]) | ACK;
    batch[last + 6..last + 8].copy_from_slice(&flags.to_ne_bytes());
    batch
}

fn open() -> anyhow::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the returned descriptor is owned by nobody else.
    unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("netlink socket");
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> anyhow::Result<()> {
    // SAFETY: pointer and length describe `bytes`, which outlives the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()).context("send") } else { Ok(()) }
}

fn expect_ack(socket: &OwnedFd, answer: &mut [u8]) -> anyhow::Result<()> {
    // SAFETY: pointer and length describe `answer`, borrowed mutably for the call.
    let len =
        unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if len < 20 {
        bail!("no answer from the kernel: {}", io::Error::last_os_error());
    }
    let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    if code != 0 {
        bail!("the kernel refuses: {}", io::Error::from_raw_os_error(-code));
    }
    Ok(())
}

/// The entries a peer consists of.
fn message(entry: &Entry, link: u32) -> Option<Vec<u8>> {
    match entry {
        Entry::Neighbour(e) => Some(neighbour(family(e.ip), 0, link, e.ip, e.mac.0)),
        Entry::Fdb(e) => Some(neighbour(libc::AF_BRIDGE as u8, 2, link, e.dst, e.mac.0)),
        Entry::Route(e) => {
            let mut body =
                vec![family(e.dst.addr()), e.dst.prefix_len(), 0, 0, 254, ROUTE_PROTOCOL, 0, 1];
            body.extend((if e.onlink { 4u32 } else { 0 }).to_ne_bytes());
            attribute(&mut body, 1, &octets(e.dst.addr()));
            attribute(&mut body, 4, &link.to_ne_bytes());
            if let Some(via) = e.via {
                attribute(&mut body, 5, &octets(via));
            }
            if e.metric != 0 {
                attribute(&mut body, 6, &e.metric.to_ne_bytes());
            }
            Some(header(libc::RTM_NEWROUTE, body))
        }
        _ => None,
    }
}

fn neighbour(family: u8, flags: u8, link: u32, dst: IpAddr, mac: [u8; 6]) -> Vec<u8> {
    let mut body = vec![family, 0, 0, 0];
    body.extend(link.to_ne_bytes());
    body.extend(0x80u16.to_ne_bytes());
    body.extend([flags, 0]);
    attribute(&mut body, 1, &octets(dst));
    attribute(&mut body, 2, &mac);
    header(libc::RTM_NEWNEIGH, body)
}

fn header(kind: u16, body: Vec<u8>) -> Vec<u8> {
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | CREATE_REPLACE).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}
