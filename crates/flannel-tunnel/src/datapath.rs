//! The datapath of one network: its device, its sockets, its table, and the threads that serve them.
//!
//! Each direction of each lane has a thread that sleeps in the kernel until there is something to carry. So
//! threads follow the load: without traffic none runs, a packet now and then wakes the one thread that has
//! it, and only load on several queues keeps several busy.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use flannel_common::PublicKey;
use ipnet::IpNet;
use rustix::event::{EventfdFlags, eventfd};

use crate::control::protocol::{Handed, WireguardPeerStatus};
use crate::counters::{CounterSnapshot, Counters};
use crate::icmp::OwnAddresses;
use crate::inbound::Joining;
use crate::lane::{Broken, In, Out};
use crate::protection::Protection;
use crate::sys::device_place::DevicePlace;
use crate::sys::interrupt;
use crate::sys::tun::{self, TunFeatures, TunQueue};
use crate::sys::udp::{UdpFeatures, UdpSocket};
use crate::table::{Peer, Table};
use crate::wireguard::{self, HandedPeer, Wireguard, WireguardDevice, WireguardPeer};

/// Lanes beyond this have not been seen to help.
const MOST_LANES: usize = 8;

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
    /// Packets travel encrypted, between this device and others of WireGuard.
    #[serde(default)]
    pub wireguard: Option<WireguardDevice>,
}

/// What may be used if the kernel has it. Turned off by tests and by people who look for a culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Features {
    pub tun_offload: bool,
    pub udp_gso: bool,
    pub udp_gro: bool,
    pub multi_queue: bool,
    /// How many queues at most; 0 for as many as there are processors.
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
            "TUN TSO {}, TUN USO {}, UDP GSO {}, UDP GRO {}, {} queues, {} threads",
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
    #[error("cannot listen on UDP {address}: {source}{hint}", hint = bind_hint(source))]
    Bind { address: SocketAddr, source: io::Error },
    #[error("cannot start the datapath: {0}")]
    System(#[from] io::Error),
}

fn bind_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program has this port (`ss -ulnp` names it): end it, or choose another port in Backend of the \
             network config"
        }
        _ => "",
    }
}

/// What all threads see.
pub(crate) struct Shared {
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// Of packets that belong to no peer.
    pub(crate) counters: Counters,
    /// Of peers that are gone.
    departed: Counters,
    pub(crate) protection: Protection,
    stopping: AtomicBool,
    gso_lost: AtomicBool,
    /// Readable when the device has broken.
    alarm: Arc<OwnedFd>,
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
    place: DevicePlace,
}

pub struct Datapath {
    shared: Arc<Shared>,
    config: Config,
    sources: Sources,
    threads: Vec<JoinHandle<()>>,
    problem: Option<String>,
}

impl Datapath {
    pub fn start(config: Config) -> Result<Self, DatapathError> {
        let sources = open(&config)?;
        Self::serve(config, sources)
    }

    /// Prepares to go on with what another process has handed over, and touches no packet before [`Self::begin`]:
    /// until that process has ended, the packets and the keys are its.
    pub(crate) fn adopt(handed: Handed, descriptors: Vec<OwnedFd>) -> Result<Self, DatapathError> {
        let Handed { config, in_use, peers, counters, departed, wireguard } = handed;
        let mut descriptors = descriptors.into_iter();
        let queues: Vec<_> =
            descriptors.by_ref().take(in_use.lanes).map(TunQueue::from_fd).map(Arc::new).collect();
        let mut sockets = Vec::new();
        for _ in &queues {
            let lane = config.bind.iter().zip(descriptors.by_ref());
            let lane = lane.map(|(address, fd)| UdpSocket::from_fd(fd, address.is_ipv6()));
            sockets.push(lane.map(Arc::new).collect::<Vec<_>>());
        }
        if queues.is_empty() || sockets.iter().any(|lane| lane.len() < config.bind.len()) {
            return Err(io::Error::other("descriptors are missing").into());
        }
        // Where the device was made has been forgotten with that process; it is found by the name that it has now.
        let name = queues.first().map(|queue| queue.device_name()).transpose()?;
        let place = DevicePlace::find(name.as_deref().unwrap_or_default())?;
        let datapath = Self::prepare(config, Sources { queues, sockets, in_use, place })?;
        if let Some(protection) = datapath.shared.protection.wireguard() {
            protection.adopt(wireguard);
            datapath.follow_wireguard(&[]);
        } else {
            datapath.replace(peers.iter().map(|(peer, _)| *peer));
        }
        let earlier: BTreeMap<IpNet, &CounterSnapshot> =
            peers.iter().map(|(peer, counters)| (peer.subnet, counters)).collect();
        for state in datapath.shared.table.load().peers() {
            if let Some(earlier) = earlier.get(&state.peer.subnet) {
                state.counters.add(earlier);
            }
        }
        datapath.shared.counters.add(&counters);
        datapath.shared.departed.add(&departed);
        Ok(datapath)
    }

    /// Serves what was adopted.
    pub(crate) fn begin(&mut self) -> Result<(), DatapathError> {
        Ok(self.run()?)
    }

    fn serve(config: Config, sources: Sources) -> Result<Self, DatapathError> {
        let mut datapath = Self::prepare(config, sources)?;
        datapath.run()?;
        Ok(datapath)
    }

    fn prepare(config: Config, sources: Sources) -> io::Result<Self> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            table: Arc::new(ArcSwap::from_pointee(Table::empty(config.own))),
            counters: Counters::default(),
            departed: Counters::default(),
            protection: Protection::of(config.wireguard.as_ref()),
            stopping: AtomicBool::new(false),
            gso_lost: AtomicBool::new(false),
            alarm: Arc::new(alarm),
        });
        Ok(Self { shared, config, sources, threads: Vec::new(), problem: None })
    }

    /// What is used of what the kernel may have.
    pub fn in_use(&self) -> InUse {
        let udp_gso = self.sources.in_use.udp_gso && !self.shared.is_gso_lost();
        InUse { udp_gso, ..self.sources.in_use }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Follows another config. What has not changed is not touched.
    pub(crate) fn configure(&mut self, config: Config) -> Result<(), DatapathError> {
        let Config { device, bind, own, features, wireguard } = &config;
        let same_device = *device == self.config.device && *features == self.config.features;
        if let (Some(protection), Some(wireguard)) = (self.shared.protection.wireguard(), wireguard)
        {
            protection.configure(wireguard);
        }
        if !same_device {
            let sources = open(&config)?;
            self.halt();
            self.sources = sources;
            self.resume()?;
        } else if *bind != self.config.bind {
            let lanes = self.sources.queues.len();
            let (sockets, udp) = open_sockets(&config, lanes, &self.bound_sockets())?;
            self.halt();
            self.sources.sockets = sockets;
            self.sources.in_use.udp_gso = udp.gso;
            self.sources.in_use.udp_gro = udp.gro;
            self.resume()?;
        }
        if *own != self.config.own {
            let former = self.shared.table.load_full();
            let peers = former.peers().iter().map(|state| (state.peer, state.wireguard.clone()));
            self.put(Table::next_sealed(&former, *own, peers));
        }
        self.config = config;
        Ok(())
    }

    fn bound_sockets(&self) -> BTreeMap<SocketAddr, Vec<Arc<UdpSocket>>> {
        let of =
            |at: usize| self.sources.sockets.iter().filter_map(move |lane| lane.get(at).cloned());
        let bound = self.config.bind.iter().enumerate();
        bound.map(|(at, address)| (*address, of(at).collect())).collect()
    }

    /// Puts a whole new table in place. Peers that stay keep their counters.
    pub fn replace(&self, peers: impl IntoIterator<Item = Peer>) {
        self.put(Table::next(&self.shared.table.load(), self.config.own, peers));
    }

    /// What was counted of those who go is not forgotten: sums only grow.
    fn put(&self, next: Table) {
        let stay: HashSet<_> = next.peers().iter().map(Arc::as_ptr).collect();
        let former = self.shared.table.swap(Arc::new(next));
        for state in former.peers().iter().filter(|state| !stay.contains(&Arc::as_ptr(state))) {
            self.shared.departed.add(&state.counters.snapshot());
        }
    }

    /// Puts some peers in, or in the place of what they were, and takes some out.
    pub fn update(&self, put: &[Peer], gone: &[IpNet]) {
        let former = self.shared.table.load_full();
        let mut peers: BTreeMap<IpNet, Peer> =
            former.peers().iter().map(|state| (state.peer.subnet, state.peer)).collect();
        for subnet in gone {
            peers.remove(subnet);
        }
        peers.extend(put.iter().map(|peer| (peer.subnet, *peer)));
        self.put(Table::next(&former, self.config.own, peers.into_values()));
    }

    /// The same for peers whose packets are encrypted, who are known by their keys.
    pub fn replace_wireguard(&self, peers: &[WireguardPeer]) {
        if let Some(wireguard) = self.shared.protection.wireguard() {
            let gone = wireguard.others(peers);
            self.change_wireguard(wireguard, peers, &gone);
        }
    }

    pub(crate) fn update_wireguard(&self, put: &[WireguardPeer], gone: &[PublicKey]) {
        if let Some(wireguard) = self.shared.protection.wireguard() {
            self.change_wireguard(wireguard, put, gone);
        }
    }

    /// In this order, so that at every moment packets find somebody who takes them.
    fn change_wireguard(&self, wireguard: &Wireguard, put: &[WireguardPeer], gone: &[PublicKey]) {
        let with_another_key = wireguard.put(put, gone);
        self.follow_wireguard(gone);
        for peer in with_another_key {
            wireguard.initiate(&peer);
        }
        wireguard.remove(gone);
    }

    /// What is behind each peer is where packets find it.
    fn follow_wireguard(&self, gone: &[PublicKey]) {
        let Some(wireguard) = self.shared.protection.wireguard() else { return };
        let gone: HashSet<PublicKey> = gone.iter().copied().collect();
        let former = self.shared.table.load_full();
        let stays = |(config, _): &(WireguardPeer, _)| !gone.contains(&config.public_key);
        let peers = wireguard.peers().into_iter().filter(stays).flat_map(|(config, peer)| {
            let endpoint = config.endpoint;
            let behind = config.allowed.into_iter();
            behind.map(move |subnet| (Peer { subnet, endpoint }, Some(Arc::clone(&peer))))
        });
        self.put(Table::next_sealed(&former, self.config.own, peers));
    }

    /// Peers whose packets are encrypted.
    pub(crate) fn wireguard_peers(&self) -> Vec<WireguardPeerStatus> {
        let Some(wireguard) = self.shared.protection.wireguard() else { return Vec::new() };
        let status = |(config, peer): (WireguardPeer, Arc<wireguard::Peer>)| WireguardPeerStatus {
            public_key: config.public_key,
            endpoint: peer.endpoint(),
            allowed: config.allowed,
            session_age: wireguard.session_age(&peer),
        };
        wireguard.peers().into_iter().map(status).collect()
    }

    /// Takes their sessions out, for the process that goes on with them.
    pub(crate) fn take_wireguard_sessions(&self) -> Vec<HandedPeer> {
        self.shared
            .protection
            .wireguard()
            .map(|wireguard| wireguard.hand_over())
            .unwrap_or_default()
    }

    pub fn peers(&self) -> Vec<(Peer, CounterSnapshot)> {
        let table = self.shared.table.load();
        table.peers().iter().map(|state| (state.peer, state.counters.snapshot())).collect()
    }

    /// What was dropped without being any peer's.
    pub fn counters(&self) -> CounterSnapshot {
        self.shared.counters.snapshot()
    }

    /// Of peers that are gone.
    pub(crate) fn departed(&self) -> CounterSnapshot {
        self.shared.departed.snapshot()
    }

    /// All that was ever counted, whose ever it was.
    pub fn totals(&self) -> CounterSnapshot {
        let total = Counters::default();
        total.add(&self.counters());
        total.add(&self.departed());
        for state in self.shared.table.load().peers() {
            total.add(&state.counters.snapshot());
        }
        total.snapshot()
    }

    /// Why nothing is carried, if so.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }

    /// Readable when the device has gone: time for [`Self::reopen`].
    pub(crate) fn alarm(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.shared.alarm)
    }

    /// Whether the device is in another network namespace by now.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.sources.place.is_left()
    }

    /// Makes the alarm ring.
    pub(crate) fn raise_alarm(&self) {
        let _ = rustix::io::write(&*self.shared.alarm, &1_u64.to_ne_bytes());
    }

    /// Opens the device again, or makes it anew.
    pub(crate) fn reopen(&mut self) -> Result<(), DatapathError> {
        self.halt();
        if self.has_lost_device() {
            // Where it is now nobody serves it.
            self.sources.queues.iter().for_each(|queue| queue.forget_device());
        }
        let lanes = self.sources.sockets.len();
        let opened = open_device(&self.config, lanes);
        match opened.and_then(|opened| Ok((opened, DevicePlace::find(&self.config.device)?))) {
            Ok(((queues, tun), place)) => {
                self.sources.place = place;
                // All were told by one alarm.
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.shared.alarm, &mut count);
                self.sources.queues = queues;
                self.sources.in_use.tso = tun.tso;
                self.sources.in_use.uso = tun.uso;
                self.sources.in_use.lanes = self.sources.queues.len();
                self.problem = None;
                Ok(self.resume()?)
            }
            Err(error) => {
                self.problem = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// What is to be handed to another process, in the order that [`Self::adopt`] takes it.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = self.sources.queues.iter().map(|queue| queue.as_fd());
        let lanes = self.sources.sockets.iter().take(self.sources.queues.len());
        queues.chain(lanes.flatten().map(|socket| socket.as_fd()))
    }

    /// It does not outlive this process any more.
    pub(crate) fn remove_device(&mut self) {
        self.halt();
        for queue in &self.sources.queues {
            queue.forget_device();
        }
    }

    /// Paths may have come to take longer packets.
    pub(crate) fn forget_path_mtus(&self) {
        for state in self.shared.table.load().peers() {
            state.set_path_mtu(None);
        }
    }

    /// Serves again after [`Self::halt`].
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        self.shared.stopping.store(false, Ordering::Relaxed);
        self.run()
    }

    fn run(&mut self) -> io::Result<()> {
        if let Some(wireguard) = self.shared.protection.wireguard() {
            wireguard.set_sockets(self.sources.sockets.first().cloned().unwrap_or_default());
            self.threads.push(start("tunnel-timers", &self.shared, |shared| {
                while let Some(wireguard) = shared.protection.wireguard()
                    && !shared.is_stopping()
                {
                    wireguard.look();
                    // A signal ends this too.
                    let _ = rustix::event::poll(&mut [], Some(&wireguard::LOOK));
                }
                Ok(())
            })?);
        }
        let in_use = self.sources.in_use;
        let joining = Joining { tcp: in_use.tso, udp: in_use.uso };
        for (queue, sockets) in self.sources.queues.iter().zip(&self.sources.sockets) {
            let shared = &self.shared;
            let mut out =
                Out::new(Arc::clone(queue), sockets.clone(), shared, in_use.udp_gso, in_use.tso);
            self.threads.push(start("tunnel-out", shared, move |shared| out.serve(shared))?);
            for socket in sockets {
                let (socket, queue) = (Arc::clone(socket), Arc::clone(queue));
                let mut r#in = In::new(socket, queue, shared, in_use.udp_gro, in_use.tso, joining);
                self.threads.push(start("tunnel-in", shared, move |shared| r#in.serve(shared))?);
            }
        }
        Ok(())
    }

    /// Nothing is read any more; packets wait in the kernel's queues.
    pub(crate) fn halt(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            for thread in self.threads.iter().filter(|thread| !thread.is_finished()) {
                interrupt::wake(thread);
            }
            // One that was about to go to sleep has not noticed, and is woken again.
            std::thread::sleep(Duration::from_micros(200));
        }
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

fn start(
    name: &str,
    shared: &Arc<Shared>,
    mut serve: impl FnMut(&Shared) -> Result<(), Broken> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    interrupt::prepare()?;
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(Broken) = serve(&shared) {
            let _ = rustix::io::write(&*shared.alarm, &1_u64.to_ne_bytes());
        }
    })
}

fn open(config: &Config) -> Result<Sources, DatapathError> {
    let wished = config.features.lanes;
    let lanes = if wished == 0 { processors().min(MOST_LANES) } else { wished };
    let (queues, tun) = open_device(config, lanes)?;
    let (sockets, udp) = open_sockets(config, queues.len(), &BTreeMap::new())?;
    let place = DevicePlace::find(&config.device)?;
    let in_use = InUse {
        tso: tun.tso,
        uso: tun.uso,
        udp_gso: udp.gso,
        udp_gro: udp.gro,
        lanes: queues.len(),
        threads: queues.len() * (1 + config.bind.len()),
    };
    Ok(Sources { queues, sockets, in_use, place })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn open_device(
    config: &Config,
    lanes: usize,
) -> Result<(Vec<Arc<TunQueue>>, TunFeatures), DatapathError> {
    let Features { tun_offload, multi_queue, .. } = config.features;
    let wanted = TunFeatures { tso: tun_offload, uso: tun_offload, multi_queue };
    let (queues, features) = tun::open(&config.device, lanes, wanted)
        .map_err(|source| DatapathError::Tun { device: config.device.clone(), source })?;
    Ok((queues.into_iter().map(Arc::new).collect(), features))
}

type Lanes = Vec<Vec<Arc<UdpSocket>>>;

/// Opens what is not among `bound`, the sockets of each lane by address: a port that this process has is taken for
/// another socket of it, too.
fn open_sockets(
    config: &Config,
    lanes: usize,
    bound: &BTreeMap<SocketAddr, Vec<Arc<UdpSocket>>>,
) -> Result<(Lanes, UdpFeatures), DatapathError> {
    let Features { udp_gso, udp_gro, .. } = config.features;
    let mut udp = UdpFeatures { gso: udp_gso, gro: udp_gro };
    let mut sockets = Vec::new();
    for number in 0..lanes {
        let mut lane = Vec::new();
        for &address in &config.bind {
            if let Some(socket) = bound.get(&address).and_then(|lanes| lanes.get(number)) {
                lane.push(Arc::clone(socket));
                continue;
            }
            let (socket, features) = UdpSocket::bind(address, lanes > 1, udp)
                .map_err(|source| DatapathError::Bind { address, source })?;
            udp = features;
            lane.push(Arc::new(socket));
        }
        sockets.push(lane);
    }
    Ok((sockets, udp))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use flannel_lab::Lab;

    use super::*;

    #[test]
    fn an_address_that_stays_keeps_its_socket_when_another_is_added() {
        let lab = Lab::builder().nodes(1).bare().start().expect("a lab");
        let config = |bind: &[&str]| Config {
            device: "flannel0".to_owned(),
            bind: bind.iter().map(|address| address.parse().expect("an address")).collect(),
            own: OwnAddresses::default(),
            // One queue has one socket, whose port is not shared.
            features: Features { lanes: 1, ..Features::default() },
            wireguard: None,
        };
        let followed = lab.node(1).in_netns(|| {
            let mut datapath = Datapath::start(config(&["192.168.100.1:8285"]))?;
            let before = datapath.sources.sockets[0][0].as_fd().as_raw_fd();
            datapath.configure(config(&["192.168.100.1:8285", "[::1]:8285"]))?;
            let sockets = &datapath.sources.sockets[0];
            assert_eq!((sockets.len(), sockets[0].as_fd().as_raw_fd()), (2, before));
            datapath.remove_device();
            Ok::<_, DatapathError>(())
        });
        followed.expect("a thread").expect("another config is followed");
    }
}
