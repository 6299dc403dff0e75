//! The datapath of one network: its device, its sockets, its table, and the threads that serve them.
//!
//! Each direction of each lane has a thread that sleeps in the kernel until there is something to carry: only load on
//! several queues keeps several busy.

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
use flannel_entries::tunnel::{Features, Peer, TunnelDevice, WireguardPeer};
use ipnet::IpNet;
use rustix::event::{EventfdFlags, eventfd};

use crate::control::protocol::{Handed, TunnelStatus, WireguardPeerStatus};
use crate::counters::{CounterSnapshot, Counters};
use crate::lane::{DeviceLost, InboundLane, OutboundLane};
use crate::sys::device_place::DevicePlace;
use crate::sys::interrupt;
use crate::sys::tun::{self, TunFeatures, TunQueue};
use crate::sys::udp::{UdpFeatures, UdpSocket};
use crate::table::{PeerState, Table};
use crate::wireguard::{self, Wireguard};

/// Largest number of lanes: more have not been seen to help.
const MAX_LANES: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FeaturesInUse {
    pub tso: bool,
    pub uso: bool,
    pub udp_gso: bool,
    pub udp_gro: bool,
    pub lanes: usize,
    pub threads: usize,
}

impl std::fmt::Display for FeaturesInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tso, uso, udp_gso, udp_gro, lanes, threads } = *self;
        let [tso, uso, gso, gro] =
            [tso, uso, udp_gso, udp_gro].map(|is_on| if is_on { "on" } else { "off" });
        write!(f, "TUN TSO {tso}, TUN USO {uso}, UDP GSO {gso}, UDP GRO {gro}, ")?;
        write!(f, "{lanes} queues, {threads} threads")
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

pub(crate) struct Shared {
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// Counters of packets that belong to no peer.
    pub(crate) counters: Counters,
    departed: Counters,
    /// Seals and opens packets, a batch at a time; `None` where they travel as they are, as with the Go flannel.
    pub(crate) wireguard: Option<Wireguard>,
    stopping: AtomicBool,
    gso_lost: AtomicBool,
    /// Readable when the device has broken.
    alarm: Arc<OwnedFd>,
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Notes that the kernel cannot cut messages. Returns true for the first who notices.
    pub(crate) fn lost_gso(&self) -> bool {
        !self.gso_lost.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_gso_lost(&self) -> bool {
        self.gso_lost.load(Ordering::Relaxed)
    }

    /// Makes the alarm readable.
    fn raise_alarm(&self) {
        let _ = rustix::io::write(&*self.alarm, &1_u64.to_ne_bytes());
    }
}

#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) queues: Vec<Arc<TunQueue>>,
    /// Sockets of each lane, one of every family.
    pub(crate) sockets: Vec<Vec<Arc<UdpSocket>>>,
    tun: TunFeatures,
    udp: UdpFeatures,
    place: DevicePlace,
}

pub struct Datapath {
    shared: Arc<Shared>,
    config: TunnelDevice,
    sources: Sources,
    threads: Vec<JoinHandle<()>>,
    problem: Option<String>,
}

impl Datapath {
    pub fn start(config: TunnelDevice) -> Result<Self, DatapathError> {
        let sources = open(&config)?;
        let mut datapath = Self::prepare(config, sources)?;
        datapath.serve()?;
        Ok(datapath)
    }

    /// Prepares to go on with what another process has handed over, without touching a packet before [`Self::serve`]:
    /// until that process has ended, the packets and the keys belong to it.
    pub(crate) fn adopt(
        handed: Handed,
        mut descriptors: impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, DatapathError> {
        let Handed { config, in_use, peers, counters, departed, wireguard } = handed;
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
        // Where the device was made was known to the former process only; it is found by its current name.
        let name = queues.first().map(|queue| queue.device_name()).transpose()?;
        let place = DevicePlace::find(name.as_deref().unwrap_or_default())?;
        let (tso, uso) = (in_use.tso, in_use.uso);
        let tun = TunFeatures { tso, uso, multi_queue: in_use.lanes > 1 };
        let udp = UdpFeatures { gso: in_use.udp_gso, gro: in_use.udp_gro };
        let datapath = Self::prepare(config, Sources { queues, sockets, tun, udp, place })?;
        if let Some(device) = &datapath.shared.wireguard {
            device.adopt(wireguard);
            datapath.follow_wireguard(&HashSet::new());
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

    fn prepare(config: TunnelDevice, sources: Sources) -> io::Result<Self> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            table: Arc::new(ArcSwap::from_pointee(Table::build(config.own, Vec::new()))),
            counters: Counters::default(),
            departed: Counters::default(),
            wireguard: config.wireguard.as_ref().map(Wireguard::new),
            stopping: AtomicBool::new(false),
            gso_lost: AtomicBool::new(false),
            alarm: Arc::new(alarm),
        });
        Ok(Self { shared, config, sources, threads: Vec::new(), problem: None })
    }

    pub fn in_use(&self) -> FeaturesInUse {
        let Sources { queues, tun: TunFeatures { tso, uso, .. }, udp, .. } = &self.sources;
        let (tso, uso, lanes) = (*tso, *uso, queues.len());
        let (udp_gso, udp_gro) = (udp.gso && !self.shared.is_gso_lost(), udp.gro);
        let threads = lanes * (1 + self.config.bind.len());
        FeaturesInUse { tso, uso, udp_gso, udp_gro, lanes, threads }
    }

    pub fn config(&self) -> &TunnelDevice {
        &self.config
    }

    /// Applies another config. What has not changed is not touched.
    pub(crate) fn configure(&mut self, config: TunnelDevice) -> Result<(), DatapathError> {
        let TunnelDevice { device, bind, own, features, wireguard } = &config;
        let same_device = *device == self.config.device && *features == self.config.features;
        if let (Some(device), Some(config)) = (&self.shared.wireguard, wireguard) {
            device.configure(config);
        }
        if !same_device {
            let sources = open(&config)?;
            self.halt();
            self.sources = sources;
            self.serve()?;
        } else if *bind != self.config.bind {
            let lanes = self.sources.queues.len();
            let (sockets, udp) = open_sockets(&config, lanes, &self.bound_sockets())?;
            self.halt();
            (self.sources.sockets, self.sources.udp) = (sockets, udp);
            self.serve()?;
        }
        if *own != self.config.own {
            let former = self.shared.table.load_full();
            let peers = former.peers().iter().map(|state| (state.peer, state.wireguard.clone()));
            self.put(Table::next(&former, *own, peers));
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

    /// Replaces the whole table. Peers that stay keep their counters.
    pub fn replace(&self, peers: impl IntoIterator<Item = Peer>) {
        let peers = peers.into_iter().map(|peer| (peer, None));
        self.put(Table::next(&self.shared.table.load(), self.config.own, peers));
    }

    /// Counters of peers that go are kept: sums only grow.
    fn put(&self, next: Table) {
        let stay: HashSet<_> = next.peers().iter().map(Arc::as_ptr).collect();
        let former = self.shared.table.swap(Arc::new(next));
        for state in former.peers().iter().filter(|state| !stay.contains(&Arc::as_ptr(state))) {
            self.shared.departed.add(&state.counters.snapshot());
        }
    }

    /// Replaces the table by one in which few peers have changed.
    fn put_changed(&self, (next, departed): (Table, Vec<Arc<PeerState>>)) {
        self.shared.table.store(Arc::new(next));
        departed.iter().for_each(|state| self.shared.departed.add(&state.counters.snapshot()));
    }

    pub fn update(&self, put: &[Peer], gone: &[IpNet]) {
        let former = self.shared.table.load_full();
        let changed = former.changed(put.iter().map(|peer| (*peer, None)), gone.iter().copied());
        if let Some(changed) = changed {
            return self.put_changed(changed);
        }
        let mut peers: BTreeMap<IpNet, Peer> =
            former.peers().iter().map(|state| (state.peer.subnet, state.peer)).collect();
        for subnet in gone {
            peers.remove(subnet);
        }
        peers.extend(put.iter().map(|peer| (peer.subnet, *peer)));
        self.replace(peers.into_values());
    }

    /// Replaces all peers of a WireGuard device, which are identified by their keys.
    pub fn replace_wireguard(&self, peers: &[WireguardPeer]) {
        if let Some(wireguard) = &self.shared.wireguard {
            self.update_wireguard(peers, &wireguard.others(peers));
        }
    }

    /// Changes some peers of a WireGuard device and removes some, in an order by which packets always find a peer.
    pub(crate) fn update_wireguard(&self, put: &[WireguardPeer], gone: &[PublicKey]) {
        let Some(wireguard) = &self.shared.wireguard else { return };
        let keys = put.iter().map(|peer| &peer.public_key).chain(gone);
        let before = wireguard.allowed_of(keys);
        let with_another_key = wireguard.put(put, gone);
        let gone_keys: HashSet<PublicKey> = gone.iter().copied().collect();
        match self.changed_wireguard(wireguard, put, &gone_keys, before) {
            Some(changed) => self.put_changed(changed),
            None => self.follow_wireguard(&gone_keys),
        }
        for peer in with_another_key {
            wireguard.initiate(&peer);
        }
        wireguard.remove(gone);
    }

    /// The next table, if few slots have to be changed. `before`: the networks behind changed or removed peers.
    fn changed_wireguard(
        &self,
        wireguard: &Wireguard,
        put: &[WireguardPeer],
        gone: &HashSet<PublicKey>,
        mut before: HashSet<IpNet>,
    ) -> Option<(Table, Vec<Arc<PeerState>>)> {
        let former = self.shared.table.load_full();
        let mut placed = Vec::new();
        for WireguardPeer { public_key, endpoint, allowed, .. } in put {
            let peer = wireguard.peer(*public_key)?;
            for subnet in allowed.iter().copied() {
                let holder = former.peer_of(subnet).and_then(|state| state.wireguard.as_ref());
                // A network behind two peers needs all of them to decide.
                let stays = |key| key != public_key && !gone.contains(key);
                if holder.is_some_and(|holder| stays(&holder.public_key)) {
                    return None;
                }
                before.remove(&subnet);
                placed.push((Peer { subnet, endpoint: *endpoint }, Some(Arc::clone(&peer))));
            }
        }
        former.changed(placed, before)
    }

    fn follow_wireguard(&self, gone: &HashSet<PublicKey>) {
        let Some(wireguard) = &self.shared.wireguard else { return };
        let former = self.shared.table.load_full();
        let stays = |(config, _): &(WireguardPeer, _)| !gone.contains(&config.public_key);
        let peers = wireguard.peers().into_iter().filter(stays).flat_map(|(config, peer)| {
            let endpoint = config.endpoint;
            let behind = config.allowed.into_iter();
            behind.map(move |subnet| (Peer { subnet, endpoint }, Some(Arc::clone(&peer))))
        });
        self.put(Table::next(&former, self.config.own, peers));
    }

    /// Stops serving, and takes out what the process that goes on needs besides descriptors.
    pub(crate) fn hand_over(&mut self) -> Handed {
        self.halt();
        let wireguard = self.shared.wireguard.as_ref();
        Handed {
            config: self.config.clone(),
            in_use: self.in_use(),
            peers: self.peers(),
            counters: self.shared.counters.snapshot(),
            departed: self.shared.departed.snapshot(),
            wireguard: wireguard.map(Wireguard::hand_over).unwrap_or_default(),
        }
    }

    pub fn peers(&self) -> Vec<(Peer, CounterSnapshot)> {
        let table = self.shared.table.load();
        let peers = table.peers().iter();
        let mut peers: Vec<_> =
            peers.map(|state| (state.peer, state.counters.snapshot())).collect();
        peers.sort_by_key(|(peer, _)| peer.subnet);
        peers
    }

    pub(crate) fn status(&self) -> TunnelStatus {
        let wireguard = self.shared.wireguard.iter().flat_map(|wireguard| {
            let peers = wireguard.peers().into_iter();
            peers.map(|(config, peer)| WireguardPeerStatus {
                public_key: config.public_key,
                endpoint: peer.endpoint(),
                allowed: config.allowed,
                session_age: wireguard.session_age(&peer),
            })
        });
        TunnelStatus {
            config: Some(self.config.clone()),
            in_use: Some(self.in_use()),
            problem: self.problem.clone(),
            peers: self.peers(),
            counters: self.shared.counters.snapshot(),
            wireguard: wireguard.collect(),
        }
    }

    pub fn totals(&self) -> CounterSnapshot {
        let total = Counters::default();
        total.add(&self.shared.counters.snapshot());
        total.add(&self.shared.departed.snapshot());
        for state in self.shared.table.load().peers() {
            total.add(&state.counters.snapshot());
        }
        total.snapshot()
    }

    /// Readable when the device has gone: time for [`Self::reopen`].
    pub(crate) fn alarm(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.shared.alarm)
    }

    /// Raises the alarm if the device has been moved to another network namespace, which its queues do not tell.
    pub(crate) fn look_for_device(&self) {
        if self.sources.place.is_left() {
            self.shared.raise_alarm();
        }
    }

    pub(crate) fn reopen(&mut self) -> Result<(), DatapathError> {
        self.halt();
        if self.sources.place.is_left() {
            // Nobody serves it where it is now.
            self.sources.queues.iter().for_each(|queue| queue.forget_device());
        }
        let lanes = self.sources.sockets.len();
        let opened = open_device(&self.config, lanes)
            .and_then(|opened| Ok((opened, DevicePlace::find(&self.config.device)?)));
        self.problem = opened.as_ref().err().map(ToString::to_string);
        let ((queues, tun), place) = opened?;
        (self.sources.queues, self.sources.tun, self.sources.place) = (queues, tun, place);
        // One alarm wakes all threads.
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.shared.alarm, &mut count);
        self.serve()
    }

    /// Descriptors that are handed to another process, in the order of [`Self::adopt`].
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = self.sources.queues.iter().map(|queue| queue.as_fd());
        let lanes = self.sources.sockets.iter().take(self.sources.queues.len());
        queues.chain(lanes.flatten().map(|socket| socket.as_fd()))
    }

    /// Makes the device end with this process.
    pub(crate) fn remove_device(&mut self) {
        self.halt();
        for queue in &self.sources.queues {
            queue.forget_device();
        }
    }

    pub(crate) fn forget_path_mtus(&self) {
        for state in self.shared.table.load().peers() {
            state.set_path_mtu(None);
        }
    }

    /// Serves what was adopted, or again after [`Self::halt`].
    pub(crate) fn serve(&mut self) -> Result<(), DatapathError> {
        self.shared.stopping.store(false, Ordering::Relaxed);
        if let Some(wireguard) = &self.shared.wireguard {
            wireguard.set_sockets(self.sources.sockets.first().cloned().unwrap_or_default());
            self.threads.push(start("tunnel-timers", &self.shared, |shared| {
                shared.wireguard.iter().for_each(Wireguard::check_timers);
                // A signal ends this too.
                let _ = rustix::event::poll(&mut [], Some(&wireguard::TIMER_INTERVAL));
                Ok(())
            })?);
        }
        let in_use = self.in_use();
        for (queue, sockets) in self.sources.queues.iter().zip(&self.sources.sockets) {
            let shared = &self.shared;
            let mut out = OutboundLane::new(Arc::clone(queue), sockets.clone(), shared, in_use);
            self.threads.push(start("tunnel-out", shared, move |shared| out.carry(shared))?);
            for socket in sockets {
                let (socket, queue) = (Arc::clone(socket), Arc::clone(queue));
                let mut r#in = InboundLane::new(socket, queue, shared, in_use);
                self.threads.push(start("tunnel-in", shared, move |shared| r#in.carry(shared))?);
            }
        }
        Ok(())
    }

    /// Stops reading; packets wait in the kernel's queues.
    pub(crate) fn halt(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            for thread in self.threads.iter().filter(|thread| !thread.is_finished()) {
                interrupt::wake(thread);
            }
            // A thread that was about to go to sleep has not noticed, and is woken again.
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

/// Starts a thread that calls `carry` until it is told to stop, which wakes it.
fn start(
    name: &str,
    shared: &Arc<Shared>,
    mut carry: impl FnMut(&Shared) -> Result<(), DeviceLost> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    interrupt::prepare()?;
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        while !shared.is_stopping() {
            if let Err(DeviceLost) = carry(&shared) {
                return shared.raise_alarm();
            }
        }
    })
}

fn open(config: &TunnelDevice) -> Result<Sources, DatapathError> {
    let wished = config.features.lanes;
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = if wished == 0 { processors().min(MAX_LANES) } else { wished };
    let (queues, tun) = open_device(config, lanes)?;
    let (sockets, udp) = open_sockets(config, queues.len(), &BTreeMap::new())?;
    let place = DevicePlace::find(&config.device)?;
    Ok(Sources { queues, sockets, tun, udp, place })
}

fn open_device(
    config: &TunnelDevice,
    lanes: usize,
) -> Result<(Vec<Arc<TunQueue>>, TunFeatures), DatapathError> {
    let Features { tun_offload, multi_queue, .. } = config.features;
    let wanted = TunFeatures { tso: tun_offload, uso: tun_offload, multi_queue };
    let (queues, features) = tun::open(&config.device, lanes, wanted)
        .map_err(|source| DatapathError::Tun { device: config.device.clone(), source })?;
    Ok((queues.into_iter().map(Arc::new).collect(), features))
}

type Lanes = Vec<Vec<Arc<UdpSocket>>>;

/// Opens the sockets that are not among `bound`: a port that this process holds is in use for other sockets, too.
fn open_sockets(
    config: &TunnelDevice,
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

    use flannel_common::PrivateKey;
    use flannel_entries::tunnel::{OwnAddresses, WireguardDevice};
    use flannel_lab::Lab;

    use super::*;
    use crate::table::tests::BUILT;

    #[test]
    fn an_address_that_stays_keeps_its_socket_when_another_is_added() {
        let lab = Lab::builder().nodes(1).bare().start().expect("a lab");
        let config = |bind: &[&str]| TunnelDevice {
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

    /// A datapath that carries nothing, for it has neither device nor sockets.
    fn idle(wireguard: Option<WireguardDevice>) -> Datapath {
        let config = TunnelDevice {
            device: "none".to_owned(),
            bind: Vec::new(),
            own: OwnAddresses::default(),
            features: Features::default(),
            wireguard,
        };
        let (queues, sockets) = (Vec::new(), Vec::new());
        let (tun, udp) = (TunFeatures::default(), UdpFeatures::default());
        let place = DevicePlace::find("none").expect("a socket");
        Datapath::prepare(config, Sources { queues, sockets, tun, udp, place }).expect("an alarm")
    }

    fn subnet(number: u16) -> IpNet {
        let [high, low] = number.to_be_bytes();
        IpNet::new([10, high, low, 0].into(), 24).expect("a subnet")
    }

    fn endpoint(number: u16) -> SocketAddr {
        let [high, low] = number.to_be_bytes();
        ([192, 0, high, low], 8285).into()
    }

    #[test]
    fn a_changed_lease_of_ten_thousand_builds_no_table_again() {
        let datapath = idle(None);
        let peer = |number| Peer { subnet: subnet(number), endpoint: endpoint(number) };
        datapath.replace((0..10_000).map(peer));
        let built = BUILT.get();
        for number in 0..100 {
            let moved = Peer { endpoint: endpoint(number + 20_000), ..peer(number) };
            datapath.update(&[moved], &[subnet(number + 5_000)]);
        }
        assert_eq!(BUILT.get(), built);
        assert_eq!(datapath.peers().len(), 9_900);
    }

    #[test]
    fn a_changed_lease_of_ten_thousand_builds_no_table_again_with_wireguard() {
        let private_key = PrivateKey::from_random([7; 32]);
        let datapath = idle(Some(WireguardDevice { private_key, mtu: 1420 }));
        let key = |number: u16| {
            let [high, low] = number.to_be_bytes();
            let mut key = [0; 32];
            (key[0], key[1]) = (high, low);
            PublicKey(key)
        };
        let peer = |number| WireguardPeer {
            public_key: key(number),
            preshared_key: None,
            endpoint: endpoint(number),
            keepalive: 0,
            allowed: vec![subnet(number)],
        };
        datapath.replace_wireguard(&(0..10_000).map(peer).collect::<Vec<_>>());
        let built = BUILT.get();
        for number in 0..100 {
            let moved = WireguardPeer { endpoint: endpoint(number + 20_000), ..peer(number) };
            let renewed =
                WireguardPeer { public_key: key(number + 30_000), ..peer(number + 1_000) };
            let gone = [key(number + 1_000), key(number + 5_000)];
            datapath.update_wireguard(&[moved, renewed], &gone);
        }
        assert_eq!(BUILT.get(), built);
        assert_eq!(datapath.peers().len(), 9_900);
    }
}
