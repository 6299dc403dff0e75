//! Responder: a socket for each address of this node that peers may ask at.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flannel_common::{Backoff, Task, Throttle};
use ipnet::IpNet;
use tokio::net::UdpSocket;

use super::socket;
use crate::ask_limits::AskLimits;
use crate::cookie::Cookies;
use crate::peers::SharedPeers;
use crate::responder::{Directory, Way, answer, has_good_cookie};
use crate::wire::Standing;

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Packets that are read in a second at most: whoever floods a node does not keep its daemon from its work.
const MAX_READ: u32 = 20_000;
const READ_PAUSE: Duration = Duration::from_millis(100);
/// The longest packet there is, so that a large one is not taken for shorter than it was.
const MAX_DATAGRAM_LEN: usize = 65_535;

/// The sockets of one process, for all its networks: they share the addresses of the underlay.
pub struct Listeners {
    port: u16,
    answering: Arc<Responder>,
    open: Mutex<HashMap<SocketAddr, (Way, Task)>>,
    wanted: Mutex<HashMap<String, Vec<(SocketAddr, Way)>>>,
}

struct Responder {
    cookies: Cookies,
    started: Instant,
    networks: Mutex<HashMap<String, SharedPeers>>,
}

impl Listeners {
    pub fn new(port: u16) -> Self {
        let (cookies, started, networks) = (Cookies::default(), Instant::now(), Mutex::default());
        let answering = Arc::new(Responder { cookies, started, networks });
        Self { port, answering, open: Mutex::default(), wanted: Mutex::default() }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers this network's peers at these addresses from now on, and at no others.
    pub(crate) fn listen(&self, network: &str, at: Vec<(SocketAddr, Way)>, peers: &SharedPeers) {
        lock(&self.answering.networks).insert(network.to_owned(), peers.clone());
        let mut wanted = lock(&self.wanted);
        wanted.insert(network.to_owned(), at);
        let mut open = lock(&self.open);
        let all: HashMap<SocketAddr, Way> = wanted.values().flatten().copied().collect();
        open.retain(|at, (way, _)| all.get(at) == Some(way));
        for (at, way) in all {
            open.entry(at).or_insert_with(|| {
                (way, Task::spawn("probe listener", serve(at, way, self.answering.clone())))
            });
        }
    }

    pub(crate) fn leave(&self, network: &str) {
        lock(&self.answering.networks).remove(network);
    }
}

async fn serve(at: SocketAddr, way: Way, answering: Arc<Responder>) {
    let socket = open_patiently(at).await;
    let mut bytes = vec![0; MAX_DATAGRAM_LEN];
    let mut limits = AskLimits::default();
    let mut reads = Throttle::with_burst(MAX_READ, Duration::from_secs(1));
    loop {
        let Ok((length, from)) = socket.recv_from(&mut bytes).await else {
            // What an answer met on its way is told here, and is over.
            continue;
        };
        if reads.pass(Instant::now()).is_none() {
            // The kernel drops what waits too long.
            tokio::time::sleep(READ_PAUSE).await;
            continue;
        }
        let Some(packet) = bytes.get(..length) else { continue };
        let now = answering.started.elapsed();
        let is_known = has_good_cookie(packet, from.ip(), now, &answering.cookies);
        if !limits.allow(from.ip(), is_known, now) {
            continue;
        }
        let directory = &mut &*answering;
        let sent = answer(packet, from.ip(), way, now, &answering.cookies, directory);
        let Some(sent) = sent else { continue };
        if sent.plain && socket::leave_out_checksums(&socket, true).is_err() {
            continue;
        }
        let _ = socket.try_send_to(&sent.reply.encode(), from);
        if sent.plain {
            let _ = socket::leave_out_checksums(&socket, false);
        }
    }
}

async fn open_patiently(at: SocketAddr) -> UdpSocket {
    let mut tries = RETRY.tries(fastrand::Rng::new());
    loop {
        match socket::answering(at) {
            Ok(socket) => return socket,
            Err(error) => {
                let pause = tries.pause();
                tracing::warn!(
                    "Cannot answer the probes of peers on UDP {at}: {error}; to them it looks as if no \
                     daemon ran here. Free the port, or choose another with --peer-probe-port; next try \
                     in {pause:.0?}"
                );
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// The directory of whichever network knows the one who asks.
impl Directory for &Responder {
    fn machine(&self) -> Option<NonZeroU64> {
        let networks = lock(&self.networks);
        networks.values().find_map(|peers| lock(peers).own().and_then(|own| own.machine))
    }

    fn standing(&self, subnet: &IpNet) -> Standing {
        let networks = lock(&self.networks);
        let known = networks.values().filter_map(|peers| lock(peers).standing(subnet));
        known.into_iter().next().unwrap_or(Standing::Unknown)
    }

    fn heard(&self, subnet: &IpNet, is_v6: bool) -> Option<Duration> {
        lock(&self.networks).values().find_map(|peers| lock(peers).heard(subnet, is_v6))
    }

    fn hear(&mut self, subnet: &IpNet, is_v6: bool, from: IpAddr, now: Duration) {
        lock(&self.networks).values().for_each(|peers| lock(peers).hear(subnet, is_v6, from, now));
    }

    fn note_fits(&mut self, subnet: &IpNet, from: IpAddr, is_v6: bool, fits: Option<NonZeroU16>) {
        let networks = lock(&self.networks);
        networks.values().for_each(|peers| lock(peers).note_fits(subnet, from, is_v6, fits));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
