//! Datapaths as an applier: what backends want of them, and a worker that keeps their processes, one for each
//! device, equal to that.
//!
//! A process outlives the daemon. Whoever comes finds it by its socket, tells it all that is wanted, and it
//! changes what differs. Should it end, it is started anew and told again: its device has stayed, with address
//! and routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, PublicKey, RepairPolicy, Work, Worker};
use flannel_wanted::{
    KeyedEntry, Requester, Status, StatusPublisher, Stopped, Wanted, WorkerApplier, WorkerHandle,
};
use ipnet::IpNet;
use tokio::sync::oneshot;

use crate::control::client::{Client, TunnelError};
use crate::control::protocol::{Request, WireguardKey};
use crate::counters::CounterSnapshot;
use crate::datapath::Config;
use crate::table::Peer;
use crate::wireguard::WireguardPeer;

const QUEUE: usize = 256;
const REPAIRS: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(10)),
};

/// The name of a device: many peers have it.
pub type DeviceName = Arc<str>;

/// What can be wanted of datapaths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEntry {
    /// A device and its sockets. Boxed: there are one or two among many peers.
    Device(Box<TunnelDevice>),
    Peer(DeviceName, Peer),
    WireguardPeer(DeviceName, Box<WireguardPeer>),
}

pub type TunnelDevice = Config;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelKey {
    Device(DeviceName),
    Peer(DeviceName, IpNet),
    WireguardPeer(DeviceName, PublicKey),
}

impl TunnelEntry {
    fn device(&self) -> DeviceName {
        match self {
            Self::Device(config) => config.device.as_str().into(),
            Self::Peer(device, _) | Self::WireguardPeer(device, _) => Arc::clone(device),
        }
    }
}

impl KeyedEntry for TunnelEntry {
    type Key = TunnelKey;
    type Device = DeviceName;

    fn key(&self) -> TunnelKey {
        match self {
            Self::Device(config) => TunnelKey::Device(config.device.as_str().into()),
            Self::Peer(device, peer) => TunnelKey::Peer(Arc::clone(device), peer.subnet),
            Self::WireguardPeer(device, peer) => {
                TunnelKey::WireguardPeer(Arc::clone(device), peer.public_key)
            }
        }
    }

    fn devices(&self) -> impl Iterator<Item = DeviceName> {
        std::iter::once(self.device())
    }

    fn describe(&self) -> String {
        match self {
            Self::Device(config) => {
                let bind: Vec<String> = config.bind.iter().map(ToString::to_string).collect();
                let kind = if config.wireguard.is_some() { "wireguard tunnel" } else { "tunnel" };
                format!("{kind} {} on UDP {}", config.device, bind.join(" and "))
            }
            Self::Peer(_, peer) => format!("tunnel to {} at {}", peer.subnet, peer.endpoint),
            Self::WireguardPeer(device, peer) => {
                let (key, at) = (peer.public_key, peer.endpoint);
                format!("wireguard peer {key} endpoint {at} dev {device}")
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Device(_) => "tunnel",
            Self::Peer(..) => "tunnel-peer",
            Self::WireguardPeer(..) => "wireguard-peer",
        }
    }

    fn is_foundation(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

/// What has passed through each device.
pub struct Totals(oneshot::Sender<Vec<(DeviceName, CounterSnapshot)>>);

type Handle<S> = WorkerHandle<S, TunnelEntry, Vec<IpNet>, Totals>;
type Command<S> = flannel_wanted::Command<S, TunnelEntry, Vec<IpNet>, Totals>;

/// The applier's handle.
pub struct Tunnel<S> {
    handle: Handle<S>,
    directory: PathBuf,
}

impl<S> Clone for Tunnel<S> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), directory: self.directory.clone() }
    }
}

impl<S: Requester> Tunnel<S> {
    /// `directory`: where the sockets of tunnel processes are.
    pub fn new(directory: PathBuf, seed: u64) -> Self {
        let of = directory.clone();
        let handle = WorkerHandle::late("tunnel's applier", move |publish| {
            Worker::start("tunnel", QUEUE, move || TunnelWork {
                directory: of,
                wanted: Wanted::new(REPAIRS),
                clients: BTreeMap::new(),
                gone: BTreeMap::new(),
                rng: fastrand::Rng::with_seed(seed),
                publish,
            })
        });
        Self { handle, directory }
    }

    /// What has passed through each device since its process, or one that it took over from, was started.
    pub async fn totals(&self) -> Result<Vec<(DeviceName, CounterSnapshot)>, Stopped> {
        self.handle.ask(|answer| Command::Other(Totals(answer))).await
    }
}

/// The process goes on by itself when the daemon ends.
impl<S: Requester> WorkerApplier for Tunnel<S> {
    type Requester = S;
    type Entry = TunnelEntry;
    /// The pod networks that are ours: a tunnel into one of them that nobody wants is ended.
    type Ownership = Vec<IpNet>;
    type Other = Totals;

    fn handle(&self) -> &Handle<S> {
        &self.handle
    }

    fn has_leftovers(&self, _: &Vec<IpNet>) -> bool {
        sockets(&self.directory).next().is_some()
    }
}

/// The sockets of tunnel processes, of this network or another, and the names of their devices.
fn sockets(directory: &Path) -> impl Iterator<Item = (PathBuf, String)> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|file| {
        let name = file.file_name();
        let device = name.to_str()?.strip_prefix("tunnel-")?.strip_suffix(".sock")?;
        Some((file.path(), device.to_owned()))
    })
}

struct TunnelWork<S> {
    directory: PathBuf,
    wanted: Wanted<S, TunnelEntry>,
    clients: BTreeMap<DeviceName, Client>,
    /// Peers that nobody wants any more and of which their process has not been told.
    gone: BTreeMap<DeviceName, Gone>,
    rng: fastrand::Rng,
    publish: StatusPublisher,
}

#[derive(Default)]
struct Gone {
    subnets: Vec<IpNet>,
    keys: Vec<WireguardKey>,
}

/// What is to be told to one process.
#[derive(Default)]
struct Changes {
    peers: Vec<Peer>,
    wireguard: Vec<WireguardPeer>,
    told: Vec<TunnelKey>,
}

impl Changes {
    fn add(&mut self, entry: &TunnelEntry) {
        match entry {
            TunnelEntry::Device(_) => return,
            TunnelEntry::Peer(_, peer) => self.peers.push(*peer),
            TunnelEntry::WireguardPeer(_, peer) => self.wireguard.push((**peer).clone()),
        }
        self.told.push(entry.key());
    }
}

impl<S: Requester> Work for TunnelWork<S> {
    type Command = Command<S>;

    fn carry_out(&mut self, command: Command<S>) {
        let now = Instant::now();
        let answer = match command {
            Command::Replace(networks, desired, answer) => {
                let unwanted = self.wanted.replace(desired);
                self.forget(&unwanted);
                self.end_others(&networks);
                answer
            }
            Command::Update(changes, answer) => {
                let unwanted = self.wanted.update(changes);
                self.forget(&unwanted);
                answer
            }
            Command::Status(answer) => answer,
            Command::Report(report) => return report.answer(&self.wanted, |tally| tally),
            Command::Compare(answer) => {
                self.wanted.begin_comparison();
                self.compare(now);
                self.flush(now);
                let _ = answer.send(self.wanted.end_comparison(now));
                return;
            }
            Command::Other(Totals(answer)) => {
                // A process that does not answer is detected and restarted by the next command.
                let each = self.clients.iter_mut().filter_map(|(device, client)| {
                    let totals = client.totals();
                    let totals = totals.inspect_err(|error| tracing::debug!("{device}: {error}"));
                    Some((Arc::clone(device), totals.ok()?))
                });
                let _ = answer.send(each.collect());
                return;
            }
        };
        self.flush(now);
        let _ = answer.send(Status::of(&self.wanted));
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.wanted.wake(now);
        self.flush(now);
        self.publish.publish(Status::of(&self.wanted));
    }

    fn next_wake(&self) -> Option<Instant> {
        self.wanted.next_wake()
    }

    /// When a process has ended.
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.clients.values().map(Client::as_fd).collect()
    }
}

impl<S: Requester> TunnelWork<S> {
    fn forget(&mut self, unwanted: &[TunnelEntry]) {
        for entry in unwanted {
            match entry {
                TunnelEntry::Device(_) => {}
                TunnelEntry::Peer(device, peer) => {
                    self.gone.entry(Arc::clone(device)).or_default().subnets.push(peer.subnet);
                }
                TunnelEntry::WireguardPeer(device, peer) => {
                    let gone = self.gone.entry(Arc::clone(device)).or_default();
                    gone.keys.push(WireguardKey(peer.public_key));
                }
            }
        }
    }

    fn devices(&self) -> Vec<Config> {
        let config = |entry: &TunnelEntry| match entry {
            TunnelEntry::Device(config) => Some((**config).clone()),
            _ => None,
        };
        // Their keys come before those of peers.
        self.wanted.iter().map_while(config).collect()
    }

    /// Ends tunnels into our networks that are not the one that is wanted: left by another config.
    fn end_others(&mut self, networks: &[IpNet]) {
        let wanted: BTreeSet<String> =
            self.devices().into_iter().map(|config| config.device).collect();
        self.clients.retain(|device, _| wanted.contains(&**device));
        for (file, device) in sockets(&self.directory) {
            if wanted.contains(&device) {
                continue;
            }
            let Ok(Some((client, _))) = Client::find(&file) else {
                let _ = std::fs::remove_file(file);
                continue;
            };
            let ours = client.found().is_some_and(|config| {
                let own = [config.own.v4.map(IpAddr::V4), config.own.v6.map(IpAddr::V6)];
                own.iter().flatten().any(|own| networks.iter().any(|network| network.contains(own)))
            });
            if ours {
                match client.remove() {
                    Ok(()) => tracing::info!("the tunnel {device} is no longer wanted: ended"),
                    Err(error) => {
                        tracing::error!("the tunnel {device} is no longer wanted: {error}")
                    }
                }
                let _ = std::fs::remove_file(file);
            }
        }
    }

    /// Tells the processes what they do not know yet.
    fn flush(&mut self, now: Instant) {
        let ended: Vec<DeviceName> = self
            .clients
            .iter()
            .filter(|(_, client)| client.has_ended())
            .map(|(device, _)| Arc::clone(device))
            .collect();
        for device in ended {
            tracing::warn!("the tunnel process of {device} has ended: starting it anew");
            if let Some(client) = self.clients.remove(&device) {
                client.reap();
            }
            self.rewrite_all_on(&device);
        }
        let devices = self.devices();
        if devices.is_empty() {
            self.gone.clear();
        }
        if devices.is_empty() || !self.wanted.is_dirty() && self.gone.is_empty() {
            return;
        }
        let batch = self.wanted.batch();
        let mut changes: BTreeMap<DeviceName, Changes> = BTreeMap::new();
        for entry in self.wanted.entries(&batch) {
            changes.entry(entry.device()).or_default().add(entry);
        }
        for config in devices {
            let device: DeviceName = config.device.as_str().into();
            let changes = changes.remove(&device).unwrap_or_default();
            if let Err(error) = self.tell(&device, config, changes) {
                if !matches!(error, TunnelError::Refused(_)) {
                    self.clients.remove(&device);
                    self.rewrite_all_on(&device);
                }
                let (key, text) = (TunnelKey::Device(device), error.to_string());
                let failed = self.wanted.failed(&key, text.clone(), now, &mut self.rng);
                if failed.is_some_and(|(_, news)| news) {
                    tracing::error!("{text}");
                }
            }
        }
    }

    /// Asks the processes what they have. What they are configured to they are told again in any case: they
    /// change what differs.
    fn compare(&mut self, now: Instant) {
        for config in self.devices() {
            let device: DeviceName = config.device.as_str().into();
            let Some(client) = self.clients.get_mut(&device) else { continue };
            let status = match client.status() {
                Ok(status) => status,
                Err(error) => {
                    tracing::warn!("{error}");
                    self.clients.remove(&device);
                    self.rewrite_all_on(&device);
                    continue;
                }
            };
            self.wanted.mark(&TunnelKey::Device(Arc::clone(&device)));
            let peers: BTreeMap<IpNet, Peer> =
                status.peers.into_iter().map(|(peer, _)| (peer.subnet, peer)).collect();
            let keys: BTreeSet<PublicKey> =
                status.wireguard.iter().map(|peer| peer.public_key).collect();
            let has = |entry: &TunnelEntry| match entry {
                TunnelEntry::Device(_) => true,
                TunnelEntry::Peer(_, peer) => peers.get(&peer.subnet) == Some(peer),
                TunnelEntry::WireguardPeer(_, peer) => keys.contains(&peer.public_key),
            };
            let of_device = self.wanted.iter().filter(|entry| entry.device() == device);
            let missing: Vec<TunnelKey> =
                of_device.filter(|entry| !has(entry)).map(KeyedEntry::key).collect();
            for key in missing {
                self.wanted.disturbed(&key, now, &mut self.rng);
            }
            if config.wireguard.is_none() {
                let unwanted = |subnet: &IpNet| {
                    self.wanted.get(&TunnelKey::Peer(Arc::clone(&device), *subnet)).is_none()
                };
                let gone: Vec<IpNet> = peers.into_keys().filter(unwanted).collect();
                self.gone.entry(Arc::clone(&device)).or_default().subnets.extend(gone);
            }
        }
    }

    fn rewrite_all_on(&mut self, device: &DeviceName) {
        self.wanted.rewrite_where(|entry, _| entry.device() == *device);
    }

    fn tell(
        &mut self,
        device: &DeviceName,
        config: Config,
        mut changes: Changes,
    ) -> Result<(), TunnelError> {
        let key = TunnelKey::Device(Arc::clone(device));
        let (anew, marked) = (!self.clients.contains_key(device), self.wanted.is_marked(&key));
        // What is refused waits for its time; without a device there is nothing to tell of peers.
        if anew && !marked {
            return Ok(());
        }
        if anew {
            let client = Client::find_or_start(&self.directory, device)?;
            self.clients.insert(Arc::clone(device), client);
            changes = Changes::default();
            for entry in self.wanted.iter().filter(|entry| entry.device() == *device) {
                changes.add(entry);
            }
        }
        let Some(client) = self.clients.get_mut(device) else { return Ok(()) };
        let is_wireguard = config.wireguard.is_some();
        if marked {
            client.command(&Request::Configure(config))?;
            self.wanted.succeeded(&key);
        }
        let gone = self.gone.remove(device).unwrap_or_default();
        let Changes { peers, wireguard, told } = changes;
        match (anew, is_wireguard) {
            (true, true) => client.command(&Request::ReplaceWireguard(wireguard))?,
            (true, false) => client.command(&Request::Replace(peers))?,
            (false, true) if !wireguard.is_empty() || !gone.keys.is_empty() => {
                // One that went and came back is wanted.
                let put = |key: &WireguardKey| wireguard.iter().any(|w| w.public_key == key.0);
                let gone = gone.keys.into_iter().filter(|key| !put(key)).collect();
                client.command(&Request::UpdateWireguard { put: wireguard, gone })?;
            }
            (false, false) if !peers.is_empty() || !gone.subnets.is_empty() => {
                client.command(&Request::Update { put: peers, gone: gone.subnets })?;
            }
            (false, _) => {}
        }
        told.iter().for_each(|key| self.wanted.succeeded(key));
        Ok(())
    }
}
