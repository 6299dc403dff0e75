//! Applier of datapaths: a worker that keeps their processes, one for each device, equal to what is wanted of them.
//!
//! A process outlives the daemon, and the next daemon finds it by its socket. A process is told everything that is
//! wanted and changes what differs; so is its successor, should it end: the device has stayed, with address and routes.
//! A process that does not answer for too long is killed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, PublicKey, RepairPolicy, Work, Worker};
use flannel_entries::tunnel::{
    DeviceName, Peer, TunnelDevice, TunnelEntry, TunnelKey, WireguardPeer,
};
use flannel_wanted::{
    Applier, COMMAND_QUEUE, KeyedEntry, Requester, Status, StatusPublisher, Stopped, Wanted,
    WorkerHandle,
};
use ipnet::IpNet;
use tokio::sync::oneshot;

use crate::control::client::{Client, TunnelError, socket_path, sockets};
use crate::control::protocol::{Request, WireguardKey};
use crate::counters::CounterSnapshot;

const REPAIRS: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(10)),
};

const ALIVE_INTERVAL: Duration = Duration::from_secs(2);

pub struct Totals(oneshot::Sender<Vec<(DeviceName, CounterSnapshot)>>);

type Handle<S> = WorkerHandle<S, TunnelEntry, Vec<IpNet>, Totals>;
type Command<S> = flannel_wanted::Command<S, TunnelEntry, Vec<IpNet>, Totals>;

#[derive(Clone)]
pub struct Tunnel<S> {
    handle: Handle<S>,
    directory: PathBuf,
}

impl<S: Requester> Tunnel<S> {
    /// Makes the applier. `directory` holds the sockets of tunnel processes.
    pub fn new(directory: PathBuf, seed: u64) -> Self {
        let of = directory.clone();
        let handle = WorkerHandle::lazy("tunnel's applier", move |publish| {
            Worker::start("tunnel", COMMAND_QUEUE, move || TunnelWork {
                directory: of,
                wanted: Wanted::new(REPAIRS),
                processes: BTreeMap::new(),
                next_question: Instant::now(),
                gone: BTreeMap::new(),
                rng: fastrand::Rng::with_seed(seed),
                publish,
            })
        });
        Self { handle, directory }
    }

    /// Traffic of each device since its process, or one that it took over from, was started.
    pub async fn totals(&self) -> Result<Vec<(DeviceName, CounterSnapshot)>, Stopped> {
        self.handle.ask(|answer| Command::Other(Totals(answer))).await
    }
}

/// The process goes on by itself when the daemon ends.
impl<S: Requester> Applier for Tunnel<S> {
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

fn end_process(client: Client, device: &str, socket: &Path) {
    match client.remove() {
        Ok(()) => tracing::info!("the tunnel {device} is no longer wanted: ended"),
        Err(error) => tracing::error!("the tunnel {device} is no longer wanted: {error}"),
    }
    let _ = std::fs::remove_file(socket);
}

struct TunnelWork<S> {
    directory: PathBuf,
    wanted: Wanted<S, TunnelEntry>,
    processes: BTreeMap<DeviceName, Client>,
    /// When they are asked next whether they are alive.
    next_question: Instant,
    /// Peers that nobody wants any more and of which their process has not been told.
    gone: BTreeMap<DeviceName, RemovedPeers>,
    rng: fastrand::Rng,
    publish: StatusPublisher,
}

#[derive(Default)]
struct RemovedPeers {
    subnets: Vec<IpNet>,
    keys: Vec<WireguardKey>,
}

#[derive(Default)]
struct ProcessChanges {
    peers: Vec<Peer>,
    wireguard: Vec<WireguardPeer>,
    told: Vec<TunnelKey>,
}

impl ProcessChanges {
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
                let (mut totals, mut failures) = (Vec::new(), Vec::new());
                for (device, client) in &self.processes {
                    match client.totals() {
                        Ok(of_device) => totals.push((Arc::clone(device), of_device)),
                        Err(error) => failures.push((Arc::clone(device), error)),
                    }
                }
                let _ = answer.send(totals);
                for (device, error) in failures {
                    self.failed(device, &error, now);
                }
                return;
            }
        };
        self.flush(now);
        let _ = answer.send(Status::of(&self.wanted));
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.check_alive(now);
        self.wanted.wake(now);
        self.flush(now);
        self.publish.publish(Status::of(&self.wanted));
    }

    fn next_wake(&self) -> Option<Instant> {
        let question = (!self.processes.is_empty()).then_some(self.next_question);
        self.wanted.next_wake().into_iter().chain(question).min()
    }

    /// Readable when a process has ended.
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        self.processes.values().map(Client::as_fd).collect()
    }
}

impl<S: Requester> TunnelWork<S> {
    fn forget(&mut self, unwanted: &[TunnelEntry]) {
        for entry in unwanted {
            match entry {
                TunnelEntry::Device(config) => self.end(&config.device),
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

    /// Ends the process of a device that nobody wants any more, and removes the device.
    fn end(&mut self, device: &str) {
        self.gone.remove(device);
        let Some(client) = self.processes.remove(device) else { return };
        end_process(client, device, &socket_path(&self.directory, device));
    }

    fn devices(&self) -> Vec<TunnelDevice> {
        let config = |entry: &TunnelEntry| match entry {
            TunnelEntry::Device(config) => Some((**config).clone()),
            _ => None,
        };
        // Their keys come before those of peers.
        self.wanted.iter().map_while(config).collect()
    }

    /// Ends tunnels into our networks that are not the wanted one: left by another config.
    fn end_others(&mut self, networks: &[IpNet]) {
        let wanted: BTreeSet<String> =
            self.devices().into_iter().map(|config| config.device).collect();
        self.processes.retain(|device, _| wanted.contains(&**device));
        let is_ours = |client: &Client| {
            let own = client.config.as_ref().map(|config| config.own);
            let (v4, v6) = own.map_or((None, None), |own| (own.v4, own.v6));
            let own = v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6));
            own.into_iter().any(|own| networks.iter().any(|network| network.contains(&own)))
        };
        for (device, file) in sockets(&self.directory).filter(|(it, _)| !wanted.contains(it)) {
            match Client::find(&file) {
                Ok(Some((client, _))) if is_ours(&client) => end_process(client, &device, &file),
                Ok(Some(_)) => {}
                Ok(None) => drop(std::fs::remove_file(file)),
                // It may be another network's, whose own applier handles it.
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }

    /// Tells the processes what they do not know yet.
    fn flush(&mut self, now: Instant) {
        let has_ended = |_: &DeviceName, client: &mut Client| client.has_ended();
        let ended: Vec<_> = self.processes.extract_if(.., has_ended).collect();
        for (device, client) in ended {
            tracing::warn!("the tunnel process of {device} has ended: starting it again");
            if let Err(error) = client.reap() {
                tracing::error!("the tunnel process of {device}: {error}");
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
        let mut changes: BTreeMap<DeviceName, ProcessChanges> = BTreeMap::new();
        for entry in self.wanted.entries(&batch) {
            changes.entry(entry.device()).or_default().add(entry);
        }
        for config in devices {
            let device: DeviceName = config.device.as_str().into();
            let changes = changes.remove(&device).unwrap_or_default();
            if let Err(error) = self.tell(&device, config, changes) {
                self.failed(device, &error, now);
            }
        }
    }

    /// Asks the processes whether they are alive, if it is time. One that has ended is noticed elsewhere.
    fn check_alive(&mut self, now: Instant) {
        if now < self.next_question {
            return;
        }
        let asked = self.processes.iter().filter(|(_, client)| !client.has_ended());
        let hung: Vec<_> = asked
            .filter_map(|(device, client)| Some((Arc::clone(device), client.check_alive().err()?)))
            .collect();
        let now = Instant::now();
        self.next_question = now + ALIVE_INTERVAL;
        for (device, error) in hung {
            self.failed(device, &error, now);
        }
    }

    /// Notes that something could not be told to a process. It is retried, with another one if this one is useless.
    fn failed(&mut self, device: DeviceName, error: &TunnelError, now: Instant) {
        let mut text = error.to_string();
        if !matches!(error, TunnelError::Refused(_)) {
            let client = self.processes.remove(&device);
            if let TunnelError::Hung { .. } = error
                && let Some(client) = client
                && let Err(error) = client.end()
            {
                text = format!("{text}: {error}");
            }
            self.rewrite_all_on(&device);
        }
        let key = TunnelKey::Device(device);
        let failed = self.wanted.failed(&key, text.clone(), now, &mut self.rng);
        if failed.is_some_and(|(_, news)| news) {
            tracing::error!("{text}");
        }
    }

    /// Asks the processes for their state. Their config is sent again in any case: they change what differs.
    fn compare(&mut self, now: Instant) {
        for config in self.devices() {
            let device: DeviceName = config.device.as_str().into();
            let Some(client) = self.processes.get(&device) else { continue };
            let status = client.status();
            let status = status.inspect_err(|error| self.failed(Arc::clone(&device), error, now));
            // An operator's comparison retries at once.
            self.wanted.mark(&TunnelKey::Device(Arc::clone(&device)));
            let Ok(status) = status else { continue };
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
        config: TunnelDevice,
        mut changes: ProcessChanges,
    ) -> Result<(), TunnelError> {
        let key = TunnelKey::Device(Arc::clone(device));
        let marked = self.wanted.is_marked(&key);
        let is_new = !self.processes.contains_key(device);
        // A refused device waits for its next attempt, which telling of peers would postpone.
        let has_device = self.processes.get(device).is_some_and(|client| client.config.is_some());
        if !has_device && !marked {
            return Ok(());
        }
        if is_new {
            let client = Client::find_or_start(&self.directory, device)?;
            self.processes.insert(Arc::clone(device), client);
            changes = ProcessChanges::default();
            for entry in self.wanted.iter().filter(|entry| entry.device() == *device) {
                changes.add(entry);
            }
        }
        let Some(client) = self.processes.get_mut(device) else { return Ok(()) };
        let is_wireguard = config.wireguard.is_some();
        if marked {
            client.configure(config)?;
            self.wanted.succeeded(&key);
        }
        let gone = self.gone.remove(device).unwrap_or_default();
        let ProcessChanges { peers, wireguard, told } = changes;
        match (is_new, is_wireguard) {
            (true, true) => client.command(&Request::ReplaceWireguard(wireguard))?,
            (true, false) => client.command(&Request::Replace(peers))?,
            (false, true) if !wireguard.is_empty() || !gone.keys.is_empty() => {
                // A peer that went and came back is wanted.
                let put: HashSet<PublicKey> = wireguard.iter().map(|w| w.public_key).collect();
                let gone = gone.keys.into_iter().filter(|key| !put.contains(&key.0)).collect();
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
