//! Looking at all frames of a node for a mark.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flannel_link::open_packet_socket;
use rustix::io::ioctl_fionbio;
use rustix::net::netdevice::index_to_name;
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_timeout,
};

use super::{
    Devices, Direction, FIRST_LARGE, LargePacket, Mark, MarkedFrame, Packet, PacketSize, Place,
    Sighting, filter,
};

const ALL_DEVICES: u32 = 0;
/// Between two looks whether it is over.
const TICK: Duration = Duration::from_millis(50);
/// More than the filter shows of a frame.
const FRAME: usize = 1_024;

/// Room for a burst of frames that nobody has read yet.
const RECEIVE_MEMORY: usize = 8 << 20;
/// Numbers of which it is remembered when they were seen.
const MAX_REMEMBERED: usize = 4_096;

/// Tells a watch that nobody waits for more.
#[derive(Clone, Debug, Default)]
pub struct WatchEnd(Arc<AtomicBool>);

impl WatchEnd {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sees all frames of all devices of this network namespace, from when it is opened.
pub struct Watch {
    socket: OwnedFd,
    mark: Mark,
    devices: Devices,
}

type Key = (i32, Packet, Direction, PacketSize, Option<(IpAddr, IpAddr)>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchResult {
    pub sightings: Vec<Sighting>,
    /// From a packet's first sighting on this node to the last of its answer, the median; of small and of large ones.
    pub round_trips: [Option<Duration>; 2],
}

/// How often a frame was seen at each place. Bounded: whoever has seen the mark can send it from and to any address.
#[derive(Default)]
struct SeenFrames(BTreeMap<Key, u32>);

/// Far more than a packet has places on its way.
const MAX_PLACES: usize = 1_024;

impl SeenFrames {
    /// Whether it counts: one too many at a new place does not.
    fn count(&mut self, key: Key) -> bool {
        if self.0.len() >= MAX_PLACES && !self.0.contains_key(&key) {
            return false;
        }
        let count = self.0.entry(key).or_default();
        *count = count.saturating_add(1);
        true
    }
}

impl Watch {
    /// It needs `CAP_NET_RAW`.
    pub fn open(mark: Mark, devices: Devices, large: Option<LargePacket>) -> io::Result<Self> {
        let filter = filter::program(large);
        let socket = open_packet_socket(ALL_DEVICES, libc::ETH_P_ALL as u16, &filter)?;
        ioctl_fionbio(&socket, false)?;
        // As much as the kernel gives; less does as well where nothing else goes on.
        let _ = set_socket_recv_buffer_size(&socket, RECEIVE_MEMORY);
        let _ = set_socket_recv_buffer_size_force(&socket, RECEIVE_MEMORY);
        set_socket_timeout(&socket, Timeout::Recv, Some(TICK))?;
        Ok(Self { socket, mark, devices })
    }

    /// Blocks until it is ended, or for `limit`. It also ends after `quiet` without a frame, once one was seen.
    pub fn look(
        self,
        ended: &WatchEnd,
        limit: Duration,
        quiet: Option<Duration>,
    ) -> io::Result<WatchResult> {
        let mut times: BTreeMap<u16, (Instant, Option<Instant>)> = BTreeMap::new();
        let mut until = Instant::now() + limit;
        let mut seen = SeenFrames::default();
        let mut names: BTreeMap<i32, (String, Place)> = BTreeMap::new();
        let mut frame = vec![0; FRAME];
        while !ended.is_set() && Instant::now() < until {
            let Some((length, device, direction)) = self.receive(&mut frame)? else { continue };
            let Some(found) = MarkedFrame::find(frame.get(..length).unwrap_or(&frame), self.mark)
            else {
                continue;
            };
            let MarkedFrame { packet, number, carried } = found;
            let size = if number < FIRST_LARGE { PacketSize::Small } else { PacketSize::Large };
            if !seen.count((device, packet, direction, size, carried)) {
                continue;
            }
            if times.len() < MAX_REMEMBERED {
                let now = Instant::now();
                let (_, answered) = times.entry(number).or_insert((now, None));
                *answered = (packet == Packet::Answer).then_some(now).or(*answered);
            }
            // At once: it may be gone when we are asked.
            names.entry(device).or_insert_with(|| {
                let name = name(&self.socket, device);
                let place = self.devices.place(&name);
                (name, place)
            });
            if let Some(quiet) = quiet {
                until = Instant::now() + quiet;
            }
        }
        let sighting = |((index, packet, direction, size, carried), count)| {
            let (device, place) = names.get(&index).cloned()?;
            Some(Sighting { device, place, packet, direction, count, size, carried })
        };
        let round_trips = [true, false].map(|is_small| {
            let of_size = times.iter().filter(|(number, _)| (**number < FIRST_LARGE) == is_small);
            let took = of_size.filter_map(|(_, (asked, answered))| Some((*answered)? - *asked));
            let mut took: Vec<Duration> = took.collect();
            took.sort();
            took.get(took.len() / 2).copied()
        });
        Ok(WatchResult {
            sightings: seen.0.into_iter().filter_map(sighting).collect(),
            round_trips,
        })
    }

    /// `None` if nothing has come for a while.
    fn receive(&self, frame: &mut [u8]) -> io::Result<Option<(usize, i32, Direction)>> {
        // SAFETY: all zeroes are a value of this plain structure.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&from) as libc::socklen_t;
        // SAFETY: both buffers live until the call returns, and the kernel is told how large they are.
        let received = unsafe {
            let (socket, to) = (self.socket.as_raw_fd(), frame.as_mut_ptr().cast());
            let sender = (&raw mut from).cast();
            libc::recvfrom(socket, to, frame.len(), 0, sender, &raw mut length)
        };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            };
        };
        let is_outgoing = from.sll_pkttype == libc::PACKET_OUTGOING;
        let direction = if is_outgoing { Direction::Out } else { Direction::In };
        Ok(Some((received, from.sll_ifindex, direction)))
    }
}

/// Name of a device of the socket's namespace, or its number if it is gone.
fn name(socket: &OwnedFd, index: i32) -> String {
    let name = u32::try_from(index).ok().and_then(|index| index_to_name(socket, index).ok());
    name.unwrap_or_else(|| index.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn whoever_copies_the_mark_fills_no_memory() {
        let mut seen = SeenFrames::default();
        let key = |number: u32| {
            let ends = (Ipv4Addr::from_bits(number).into(), Ipv4Addr::LOCALHOST.into());
            (1, Packet::Request, Direction::In, PacketSize::Small, Some(ends))
        };
        for number in 0..100_000 {
            seen.count(key(number));
        }
        assert_eq!(seen.0.len(), MAX_PLACES);
        assert!(seen.count(key(0)), "places that are known count on");
        assert_eq!(seen.0[&key(0)], 2);
    }
}
