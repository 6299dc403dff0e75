//! Who on a link answers for an address, whatever the kernel believes.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use flannel_common::{Mac, simulation};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::packet_socket::wait_readable;
use crate::{arp, neighbour_discovery, open_packet_socket};

/// Longer than any frame that answers.
const LARGEST_FRAME: usize = 256;
/// Machines that are told apart: whoever answers in many names gains nothing by more of them.
const MAX_ANSWERS: usize = 16;

/// Who has `address`, asked on one link.
#[derive(Clone, Copy, Debug)]
pub struct AddressQuestion {
    pub link_index: u32,
    /// MAC address of this node's device on the link; what it says itself is not an answer.
    pub own_mac: Mac,
    /// Address of this node on the link, of the same family; without one it asks as a node that does not use it yet.
    pub from: Option<IpAddr>,
    pub address: IpAddr,
}

/// How often a question is asked, and how long answers are waited for.
#[derive(Clone, Copy, Debug)]
pub struct AnswerTiming {
    /// A lost frame must not look like nobody.
    pub tries: u32,
    /// Wait for the first answer of each try.
    pub first: Duration,
    /// Wait for others who answer, too.
    pub more: Duration,
}

impl AnswerTiming {
    /// Whether anybody is there at all: three times within 0.6 s.
    pub const ANYBODY: Self =
        Self { tries: 3, first: Duration::from_millis(200), more: Duration::ZERO };
}

impl AddressQuestion {
    /// MAC addresses of those who answer, this node's own left out. Blocks for as long as `timing` says.
    pub fn ask(&self, timing: AnswerTiming) -> io::Result<Vec<Mac>> {
        if let Some(world) = simulation::world() {
            return Ok(world.who_has(self.link_index, self.address));
        }
        let socket = match self.address {
            IpAddr::V4(_) => open_packet_socket(self.link_index, libc::ETH_P_ARP as u16, &[])?,
            IpAddr::V6(_) => {
                let filter = neighbour_discovery::only_advertisements();
                open_packet_socket(self.link_index, libc::ETH_P_IPV6 as u16, &filter)?
            }
        };
        let mut found: Vec<Mac> = Vec::new();
        for _ in 0..timing.tries {
            rustix::net::send(&socket, &self.frame(), SendFlags::empty())?;
            let mut until = Instant::now() + timing.first;
            while let Some(frame) = receive(&socket, until)? {
                let Some(mac) = self.answer(&frame).filter(|mac| *mac != self.own_mac) else {
                    continue;
                };
                if found.is_empty() {
                    until = Instant::now() + timing.more;
                }
                if found.len() < MAX_ANSWERS && !found.contains(&mac) {
                    found.push(mac);
                }
            }
            if !found.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    fn frame(&self) -> Vec<u8> {
        let (v4, v6) = match self.from {
            Some(IpAddr::V4(from)) => (Some(from), None),
            Some(IpAddr::V6(from)) => (None, Some(from)),
            None => (None, None),
        };
        match self.address {
            IpAddr::V4(address) => arp::request(self.own_mac, v4, address),
            IpAddr::V6(address) => neighbour_discovery::solicitation(self.own_mac, v6, address),
        }
    }

    fn answer(&self, frame: &[u8]) -> Option<Mac> {
        match self.address {
            IpAddr::V4(address) => arp::claimant(frame, address),
            IpAddr::V6(address) => neighbour_discovery::advertiser(frame, address),
        }
    }
}

fn receive(socket: &OwnedFd, until: Instant) -> io::Result<Option<Vec<u8>>> {
    while wait_readable([socket], until)? {
        let mut frame = [0; LARGEST_FRAME];
        match rustix::net::recv(socket, &mut frame[..], RecvFlags::empty()) {
            Ok((length, _)) => return Ok(Some(frame[..length].to_vec())),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
