//! What goes over the underlay, looked at as somebody on the wire would.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use flannel_lab::{Lab, Pod, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// In network order, as the kernel wants it here.
const ALL_PROTOCOLS: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;

/// Looks at every frame in the switch for packets between two pods that can be read.
pub(crate) struct Capture {
    stop: Arc<AtomicBool>,
    seen: Arc<Seen>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    frames: AtomicU64,
    readable: AtomicU64,
}

impl Capture {
    pub(crate) fn start(lab: &Lab, one: &Pod, two: &Pod) -> Result<Self> {
        let socket = lab
            .switch()
            .run(|| {
                rustix::net::socket_with(
                    AddressFamily::PACKET,
                    SocketType::RAW,
                    SocketFlags::CLOEXEC,
                    std::num::NonZeroU32::new(ALL_PROTOCOLS).map(rustix::net::Protocol::from_raw),
                )
            })?
            .expect("a packet socket");
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(50))).unwrap();
        let ends = [
            (one.v4().map(IpAddr::V4), two.v4().map(IpAddr::V4)),
            (one.v6().map(IpAddr::V6), two.v6().map(IpAddr::V6)),
        ];
        let marks: Vec<Vec<u8>> = ends
            .into_iter()
            .filter_map(|(a, b)| Some((octets(a?), octets(b?))))
            .flat_map(|(a, b)| [[a.clone(), b.clone()].concat(), [b, a].concat()])
            .collect();
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
        let (ended, counts) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let mut frame = vec![0; 1 << 16];
            while !ended.load(Ordering::Relaxed) {
                let Ok((len, _)) = rustix::net::recv(&socket, &mut frame[..], RecvFlags::empty())
                else {
                    continue;
                };
                let frame = &frame[..len];
                counts.frames.fetch_add(1, Ordering::Relaxed);
                let holds = |mark: &Vec<u8>| frame.windows(mark.len()).any(|part| part == mark);
                if marks.iter().any(holds) {
                    counts.readable.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { stop, seen, thread })
    }

    /// How many frames there were, and how many of them held a packet of the pods in the clear.
    pub(crate) fn stop(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the capture ends well");
        (self.seen.frames.load(Ordering::Relaxed), self.seen.readable.load(Ordering::Relaxed))
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
