//! Who has an address on a wire: everybody is asked by ARP, whatever the kernel believes, and all that answer are told.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use flannel_kernel::Mac;
use flannel_kernel::look::Device;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// For the first answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// For a second one, of somebody who has the same address.
const SECOND_ANSWER_TIMEOUT: Duration = Duration::from_millis(60);
const TICK: Duration = Duration::from_millis(20);
const ARP: u16 = libc::ETH_P_ARP as u16;
/// Of a request or an answer, without an Ethernet header.
const MESSAGE: usize = 28;
const REQUEST: u16 = 1;
const ANSWER: u16 = 2;
const BROADCAST: [u8; 6] = [0xff; 6];

/// All that answer for an address on a device's wire. `from`: an address of the device.
pub(crate) fn who_has(device: &Device, from: Ipv4Addr, ip: Ipv4Addr) -> io::Result<Vec<Mac>> {
    let Some(mac) = device.mac.filter(|_| device.up && !device.noarp) else {
        return Ok(Vec::new());
    };
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TICK))?;
    bind(&socket, &place(device.index, BROADCAST))?;
    send(&socket, &place(device.index, BROADCAST), &request(mac, from, ip))?;
    let mut found: Vec<Mac> = Vec::new();
    let mut until = Instant::now() + ANSWER_TIMEOUT;
    while Instant::now() < until {
        let Some(bytes) = receive(&socket)? else { continue };
        let Some(answered) = read_answer(&bytes, ip) else { continue };
        if found.is_empty() {
            until = Instant::now() + SECOND_ANSWER_TIMEOUT;
        }
        if !found.contains(&answered) {
            found.push(answered);
        }
    }
    Ok(found)
}

fn request(mac: Mac, from: Ipv4Addr, ip: Ipv4Addr) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    // Ethernet, IPv4, and how long their addresses are.
    bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
    bytes[6..8].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[8..14].copy_from_slice(&mac.0);
    bytes[14..18].copy_from_slice(&from.octets());
    bytes[24..28].copy_from_slice(&ip.octets());
    bytes
}

fn read_answer(bytes: &[u8], ip: Ipv4Addr) -> Option<Mac> {
    let message = bytes.get(..MESSAGE)?;
    let is_answer = message[6..8] == ANSWER.to_be_bytes() && message[14..18] == ip.octets();
    is_answer.then(|| Mac::from_slice(&message[8..14])).flatten()
}

fn place(index: u32, mac: [u8; 6]) -> libc::sockaddr_ll {
    // SAFETY: all zeroes are a value of this plain structure.
    let mut place: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    place.sll_family = libc::AF_PACKET as u16;
    place.sll_protocol = ARP.to_be();
    place.sll_ifindex = index.cast_signed();
    place.sll_halen = 6;
    place.sll_addr[..6].copy_from_slice(&mac);
    place
}

fn bind(socket: &OwnedFd, to: &libc::sockaddr_ll) -> io::Result<()> {
    let length = size_of_val(to) as libc::socklen_t;
    // SAFETY: the address lives until the call returns, and the kernel is told how large it is.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(to).cast(), length) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn send(socket: &OwnedFd, to: &libc::sockaddr_ll, bytes: &[u8]) -> io::Result<()> {
    let length = size_of_val(to) as libc::socklen_t;
    // SAFETY: both buffers live until the call returns, and the kernel is told how large they are.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            std::ptr::from_ref(to).cast(),
            length,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `None` if nothing has come for a while.
fn receive(socket: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 64];
    match rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::empty()) {
        Ok((length, _)) => {
            bytes.truncate(length);
            Ok(Some(bytes))
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_for_the_address_that_was_asked_for_alone() {
        let (ours, theirs) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let ip = Ipv4Addr::new(10, 244, 1, 2);
        let asked = request(ours, Ipv4Addr::new(10, 244, 1, 1), ip);
        assert_eq!(read_answer(&asked, ip), None, "a question");
        let mut answer = request(theirs, ip, Ipv4Addr::new(10, 244, 1, 1));
        answer[7] = 2;
        assert_eq!(read_answer(&answer, ip), Some(theirs));
        assert_eq!(read_answer(&answer, Ipv4Addr::new(10, 244, 1, 3)), None);
        assert_eq!(read_answer(&answer[..20], ip), None);
    }
}
