//! The datapath of one network: its device, its sockets, its table, and the threads that serve them.
//!
//! Threads follow the load. All directions of all lanes wait in one epoll; each wakes one thread and is not
//! watched again until that thread has worked it off. The thread that went to sleep last is woken first, so
//! little traffic keeps one thread busy and its caches warm, more traffic wakes more, and none costs nothing.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::counters::{CounterSnapshot, Counters};
use crate::icmp::OwnAddresses;
use crate::inbound::Joining;
use crate::lane::{Direction, In, Out, Turn};
use crate::sys::tun::{self, TunFeatures, TunQueue};
use crate::sys::udp::{UdpFeatures, UdpSocket};
use crate::table::{Peer, Table};

/// Lanes beyond this have not been seen to help.
const MOST_LANES: usize = 8;
/// Marks the event that ends the threads.
const STOP: u64 = u64::MAX;

/// What a datapath is to be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// The TUN device, which is made if it is not there and stays when the datapath goes.
    pub device: String,
    /// Where datagrams are sent from and received, at most one address of each family.
    pub bind: Vec<SocketAddr>,
    pub own: OwnAddresses,
    #[serde(default)]
    pub features: Features,
}

/// What may be used if the kernel has it. Turned off by tests and by people who look for a culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Features {
    pub tun_offload: bool,
    pub udp_gso: bool,
    pub udp_gro: bool,
    pub multi_queue: bool,
    /// How many queues and threads at most; 0 for as many as there are processors.
    pub lanes: usize,
}

impl Default for Features {
    fn default() -> Self {
        Self { tun_offload: true, udp_gso: true, udp_gro: true, multi_queue: true, lanes: 0 }
    }
}

/// What is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InUse {
    pub tso: bool,
    pub uso: bool,
    pub udp_gso: bool,
    pub udp_gro: bool,
    pub lanes: usize,
    pub threads: usize,
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is = |on: bool| if on { "on" } else { "off" };
        write!(
            f,
            "TUN TSO {}, TUN USO {}, UDP GSO {}, UDP GRO {}, {} queues, up to {} threads",
            is(self.tso),
            is(self.uso),
            is(self.udp_gso),
            is(self.udp_gro),
            self.lanes,
            self.threads
        )
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    #[error(
        "cannot open the TUN device {device}: {source}; it takes the right CAP_NET_ADMIN and /dev/net/tun \
         (in a container: a privileged one, or that device mounted)"
    )]
    Tun { device: String, source: io::Error },
    #[error("cannot listen on UDP {address}: {source}; is another flannel or tunnel running here?")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("cannot start the datapath: {0}")]
    System(#[from] io::Error),
}

/// What all threads see.
pub(crate) struct Shared {
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// Of packets that belong to no peer.
    pub(crate) counters: Counters,
    stopping: AtomicBool,
    gso_lost: AtomicBool,
    broken: AtomicBool,
    /// Readable when the device has broken.
    alarm: OwnedFd,
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// True for the first who finds out.
    pub(crate) fn lost_gso(&self) -> bool {
        !self.gso_lost.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_gso_lost(&self) -> bool {
        self.gso_lost.load(Ordering::Relaxed)
    }
}

/// Device and sockets, of a datapath that runs or to be handed to the next.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) queues: Vec<Arc<TunQueue>>,
    /// For each lane one of every family.
    pub(crate) sockets: Vec<Vec<Arc<UdpSocket>>>,
    pub(crate) in_use: InUse,
}

pub struct Datapath {
    shared: Arc<Shared>,
    config: Config,
    sources: Sources,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
}

struct Watched {
    epoll: OwnedFd,
    directions: Vec<Mutex<Direction>>,
}

impl Datapath {
    pub fn start(config: Config) -> Result<Self, DatapathError> {
        let sources = open(&config)?;
        let shared = Arc::new(Shared {
            table: Arc::new(ArcSwap::from_pointee(Table::empty(config.own))),
            counters: Counters::default(),
            stopping: AtomicBool::new(false),
            gso_lost: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            alarm: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(io::Error::from)?,
        });
        let mut datapath = Self {
            shared,
            config,
            sources,
            threads: Vec::new(),
            stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?),
        };
        datapath.run()?;
        Ok(datapath)
    }

    /// What is used of what the kernel may have.
    pub fn in_use(&self) -> InUse {
        InUse {
            udp_gso: self.sources.in_use.udp_gso && !self.shared.is_gso_lost(),
            ..self.sources.in_use
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Puts a whole new table in place. Peers that stay keep their counters.
    pub fn replace(&self, peers: impl IntoIterator<Item = Peer>) {
        let next = Table::next(&self.shared.table.load(), self.config.own, peers);
        self.shared.table.store(Arc::new(next));
    }

    pub fn peers(&self) -> Vec<(Peer, CounterSnapshot)> {
        let table = self.shared.table.load();
        table.peers().iter().map(|state| (state.peer, state.counters.snapshot())).collect()
    }

    /// What was dropped without being any peer's.
    pub fn counters(&self) -> CounterSnapshot {
        self.shared.counters.snapshot()
    }

    fn run(&mut self) -> io::Result<()> {
        let in_use = self.sources.in_use;
        let joining = Joining { tcp: in_use.tso, udp: in_use.uso };
        let mut directions = Vec::new();
        for (queue, sockets) in self.sources.queues.iter().zip(&self.sources.sockets) {
            let out = Out::new(
                Arc::clone(queue),
                sockets.clone(),
                &self.shared,
                in_use.udp_gso,
                in_use.tso,
            );
            directions.push(Mutex::new(Direction::Out(Box::new(out))));
            for socket in sockets {
                let r#in = In::new(
                    Arc::clone(socket),
                    Arc::clone(queue),
                    &self.shared,
                    in_use.udp_gro,
                    in_use.tso,
                    joining,
                );
                directions.push(Mutex::new(Direction::In(Box::new(r#in))));
            }
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (direction, index) in directions.iter().zip(0_u64..) {
            let direction = lock(direction);
            epoll::add(&epoll, direction.source(), epoll::EventData::new_u64(index), WATCH)?;
        }
        let stop = epoll::EventData::new_u64(STOP);
        epoll::add(&epoll, self.stop.as_fd(), stop, epoll::EventFlags::IN)?;
        let watched = Arc::new(Watched { epoll, directions });
        for number in 0..in_use.threads {
            let (watched, shared) = (Arc::clone(&watched), Arc::clone(&self.shared));
            let name = format!("tunnel-{number}");
            let thread = std::thread::Builder::new().name(name);
            self.threads.push(thread.spawn(move || serve(&watched, &shared))?);
        }
        Ok(())
    }

    fn halt(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // One is enough for all: nobody reads it.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.halt();
    }
}

const WATCH: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

fn serve(watched: &Watched, shared: &Shared) {
    // One at a time: what else is ready is for the other threads.
    let mut event =
        [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(STOP) }];
    loop {
        match epoll::wait(&watched.epoll, &mut event, None) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        let index = event[0].data.u64();
        let Some(direction) = usize::try_from(index).ok().and_then(|at| watched.directions.get(at))
        else {
            return;
        };
        let mut direction = lock(direction);
        match direction.turn(shared) {
            Turn::Done => {
                let data = epoll::EventData::new_u64(index);
                // It cannot fail for what is watched already.
                let _ = epoll::modify(&watched.epoll, direction.source(), data, WATCH);
            }
            Turn::Broken => {
                shared.broken.store(true, Ordering::Relaxed);
                let _ = rustix::io::write(&shared.alarm, &1_u64.to_ne_bytes());
            }
        }
    }
}

fn lock(direction: &Mutex<Direction>) -> std::sync::MutexGuard<'_, Direction> {
    direction.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(config: &Config) -> Result<Sources, DatapathError> {
    let Features { tun_offload, udp_gso, udp_gro, multi_queue, lanes } = config.features;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = if lanes == 0 { processors.min(MOST_LANES) } else { lanes };
    let wanted = TunFeatures { tso: tun_offload, uso: tun_offload, multi_queue };
    let (queues, tun) = tun::open(&config.device, lanes, wanted)
        .map_err(|source| DatapathError::Tun { device: config.device.clone(), source })?;
    let mut udp = UdpFeatures { gso: udp_gso, gro: udp_gro };
    let mut sockets = Vec::new();
    for _ in &queues {
        let mut lane = Vec::new();
        for &address in &config.bind {
            let (socket, features) = UdpSocket::bind(address, queues.len() > 1, udp)
                .map_err(|source| DatapathError::Bind { address, source })?;
            udp = features;
            lane.push(Arc::new(socket));
        }
        sockets.push(lane);
    }
    let in_use = InUse {
        tso: tun.tso,
        uso: tun.uso,
        udp_gso: udp.gso,
        udp_gro: udp.gro,
        lanes: queues.len(),
        threads: (2 * queues.len()).min(processors),
    };
    Ok(Sources { queues: queues.into_iter().map(Arc::new).collect(), sockets, in_use })
}
