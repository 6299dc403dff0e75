//! Whether another machine on the link has an IPv4 address that this one has: by ARP, as RFC 5227 asks before an address
//! is used. No firewall filters it, and no router answers.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

/// A lost frame must not look like nobody.
const PROBES: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_millis(200);
const ARP_ETHERTYPE: [u8; 2] = [0x08, 0x06];
/// Ethernet and IPv4, with addresses of six and four bytes.
const ARP_OF_IPV4: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];

/// The hardware address of another machine that answers for `address`. `None` when nobody does within a second, or when
/// it cannot be asked.
pub async fn duplicate_address(
    link_index: u32,
    own_mac: [u8; 6],
    address: Ipv4Addr,
) -> Option<[u8; 6]> {
    let asked = tokio::task::spawn_blocking(move || ask(link_index, own_mac, address));
    asked.await.ok()?.unwrap_or_else(|error| {
        tracing::debug!("cannot ask by ARP who else has {address}: {error}");
        None
    })
}

fn ask(link_index: u32, own_mac: [u8; 6], address: Ipv4Addr) -> io::Result<Option<[u8; 6]>> {
    let socket = open(link_index)?;
    let mut frame = [0; 128];
    for _ in 0..PROBES {
        rustix::net::send(&socket, &request(own_mac, address), SendFlags::empty())?;
        let until = Instant::now() + PROBE_PAUSE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut waiting = [PollFd::new(&socket, PollFlags::IN)];
            if poll(&mut waiting, Some(&timeout)).is_ok_and(|ready| ready > 0) {
                let (length, _) = rustix::net::recv(&socket, &mut frame, RecvFlags::DONTWAIT)?;
                let other = frame.get(..length).and_then(|frame| claimant(frame, address));
                if let Some(other) = other.filter(|other| *other != own_mac) {
                    return Ok(Some(other));
                }
            }
        }
    }
    Ok(None)
}

/// Who has `address`? Sent from no address, so that no neighbour learns anything wrong by it.
fn request(own_mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let parts: [&[u8]; 9] = [
        &[0xff; 6],
        &own_mac,
        &ARP_ETHERTYPE,
        &ARP_OF_IPV4,
        &REQUEST,
        &own_mac,
        &[0; 4],
        &[0; 6],
        &address.octets(),
    ];
    parts.concat()
}

/// The sender of an ARP frame that says of itself to have `address`.
fn claimant(frame: &[u8], address: Ipv4Addr) -> Option<[u8; 6]> {
    let arp = frame.get(12..).filter(|rest| rest.starts_with(&ARP_ETHERTYPE))?;
    let arp = arp.get(2..).filter(|rest| rest.starts_with(&ARP_OF_IPV4))?;
    let says = arp.get(14..18)? == address.octets();
    arp.get(8..14)?.try_into().ok().filter(|_| says)
}

fn open(link_index: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; what is returned is checked. Protocol 0: nothing is received before it is bound.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ARP as u16).to_be();
    address.sll_ifindex = i32::try_from(link_index).map_err(io::Error::other)?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives as long as the call, and its length is its own.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_answers_for_the_address_is_found_and_other_frames_say_nothing() {
        let (own, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let address = Ipv4Addr::new(192, 0, 2, 7);
        let asked = request(own, address);
        assert_eq!(asked.len(), 14 + 28);
        assert_eq!(claimant(&asked, address), None, "who asks has no address");
        let mut reply = request(other, Ipv4Addr::UNSPECIFIED);
        reply[28..32].copy_from_slice(&address.octets());
        assert_eq!(claimant(&reply, address), Some(other));
        assert_eq!(claimant(&reply, Ipv4Addr::new(192, 0, 2, 8)), None);
        for length in 0..32 {
            assert_eq!(claimant(&reply[..length], address), None, "{length}");
        }
        reply[12] = 0x86;
        assert_eq!(claimant(&reply, address), None, "it is not ARP");
    }
}
