//! The datapath as an applier: what backends want of it, and a worker that keeps its process equal to that.
//!
//! The process outlives the daemon. Whoever comes finds it by its socket, tells it all that is wanted, and it
//! changes what differs. Should it end, it is started anew and told again: its device has stayed, with address
//! and routes.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flannel_common::{Backoff, RepairPolicy, Work};
use flannel_wanted::{
    KeyedEntry, Requester, Status, StatusPublisher, Wanted, WorkerApplier, WorkerHandle,
};
use ipnet::IpNet;

use crate::control::client::{Client, TunnelError};
use crate::control::protocol::Request;
use crate::datapath::Config;
use crate::table::Peer;

const QUEUE: usize = 256;
const REPAIRS: RepairPolicy = RepairPolicy {
    at_once: 10,
    calm: Duration::from_secs(60),
    undone: Backoff::new(Duration::from_millis(50), Duration::from_secs(60)),
    refused: Backoff::new(Duration::from_millis(50), Duration::from_secs(10)),
};

/// What can be wanted of a datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEntry {
    /// Its device and sockets, of which a node has one for each network. Boxed: there is one among many peers.
    Device(Box<TunnelDevice>),
    Peer(Peer),
}

pub type TunnelDevice = Config;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelKey {
    Device,
    Peer(IpNet),
}

impl KeyedEntry for TunnelEntry {
    type Key = TunnelKey;
    type Device = TunnelKey;

    fn key(&self) -> TunnelKey {
        match self {
            Self::Device(_) => TunnelKey::Device,
            Self::Peer(peer) => TunnelKey::Peer(peer.subnet),
        }
    }

    fn devices(&self) -> impl Iterator<Item = TunnelKey> {
        std::iter::once(TunnelKey::Device)
    }

    fn describe(&self) -> String {
        match self {
            Self::Device(config) => {
                let bind: Vec<String> = config.bind.iter().map(ToString::to_string).collect();
                format!("tunnel {} on UDP {}", config.device, bind.join(" and "))
            }
            Self::Peer(peer) => format!("tunnel to {} at {}", peer.subnet, peer.endpoint),
        }
    }

    fn is_foundation(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

type Handle<S> = WorkerHandle<S, TunnelEntry, Vec<IpNet>>;
type Command<S> = flannel_wanted::Command<S, TunnelEntry, Vec<IpNet>>;

/// The applier's handle.
pub struct Tunnel<S>(Handle<S>);

impl<S> Clone for Tunnel<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Requester> Tunnel<S> {
    /// `directory`: where the sockets of tunnel processes are.
    pub fn start(directory: PathBuf, seed: u64) -> io::Result<Self> {
        let work = move |publish| TunnelWork {
            directory,
            wanted: Wanted::new(REPAIRS),
            client: None,
            gone: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            publish,
        };
        WorkerHandle::start("tunnel's applier", "tunnel", QUEUE, work).map(Self)
    }
}

/// The process goes on by itself when the daemon ends.
impl<S: Requester> WorkerApplier for Tunnel<S> {
    type Requester = S;
    type Entry = TunnelEntry;
    /// The pod networks that are ours: a tunnel into one of them that nobody wants is ended.
    type Ownership = Vec<IpNet>;
    type Other = Infallible;

    fn handle(&self) -> &Handle<S> {
        &self.0
    }
}

struct TunnelWork<S> {
    directory: PathBuf,
    wanted: Wanted<S, TunnelEntry>,
    client: Option<(String, Client)>,
    /// Peers that nobody wants any more and of which the process has not been told.
    gone: Vec<IpNet>,
    rng: fastrand::Rng,
    publish: StatusPublisher,
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
            Command::Other(nothing) => match nothing {},
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

    fn wake_on(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().map(|(_, client)| client.as_fd())
    }
}

impl<S: Requester> TunnelWork<S> {
    fn forget(&mut self, unwanted: &[TunnelEntry]) {
        self.gone.extend(unwanted.iter().filter_map(|entry| match entry {
            TunnelEntry::Peer(peer) => Some(peer.subnet),
            TunnelEntry::Device(_) => None,
        }));
    }

    fn device(&self) -> Option<Config> {
        match self.wanted.get(&TunnelKey::Device) {
            Some(TunnelEntry::Device(config)) => Some((**config).clone()),
            _ => None,
        }
    }

    /// Ends tunnels into our networks that are not the one that is wanted: left by another config.
    fn end_others(&mut self, networks: &[IpNet]) {
        let wanted = self.device().map(|config| config.device);
        if self.client.as_ref().is_some_and(|(device, _)| wanted.as_ref() != Some(device)) {
            self.client = None;
        }
        let Ok(files) = std::fs::read_dir(&self.directory) else { return };
        for file in files.flatten() {
            let name = file.file_name();
            let device =
                name.to_str().and_then(|name| name.strip_prefix("tunnel-")?.strip_suffix(".sock"));
            let Some(device) = device.filter(|device| wanted.as_deref() != Some(*device)) else {
                continue;
            };
            let Ok(Some((client, _))) = Client::find(&file.path()) else {
                let _ = std::fs::remove_file(file.path());
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
                let _ = std::fs::remove_file(file.path());
            }
        }
    }

    /// Tells the process what it does not know yet.
    fn flush(&mut self, now: Instant) {
        if let Some((device, client)) = self.client.take_if(|(_, client)| client.has_ended()) {
            tracing::warn!("the tunnel process of {device} has ended: starting it anew");
            client.reap();
            self.wanted.rewrite_where(|_, _| true);
        }
        let Some(config) = self.device() else {
            self.gone.clear();
            return;
        };
        if !self.wanted.is_dirty() && self.gone.is_empty() {
            return;
        }
        // What is refused waits for its time; without a device there is nothing to tell of peers.
        if self.client.is_none() && !self.wanted.is_marked(&TunnelKey::Device) {
            return;
        }
        if let Err(error) = self.tell(config) {
            if !matches!(error, TunnelError::Refused(_)) {
                self.client = None;
                self.wanted.rewrite_where(|_, _| true);
            }
            let text = error.to_string();
            let failed = self.wanted.failed(&TunnelKey::Device, text.clone(), now, &mut self.rng);
            if failed.is_some_and(|(_, news)| news) {
                tracing::error!("{text}");
            }
        }
    }

    fn tell(&mut self, config: Config) -> Result<(), TunnelError> {
        let anew = self.client.is_none();
        let (_, client) = match &mut self.client {
            Some(client) => client,
            none => {
                let client = Client::find_or_start(&self.directory, &config.device)?;
                none.insert((config.device.clone(), client))
            }
        };
        if anew || self.wanted.is_marked(&TunnelKey::Device) {
            client.command(&Request::Configure(config))?;
            self.wanted.succeeded(&TunnelKey::Device);
        }
        let peer = |entry: &TunnelEntry| match entry {
            TunnelEntry::Peer(peer) => Some(*peer),
            TunnelEntry::Device(_) => None,
        };
        if anew {
            let peers = self.wanted.iter().filter_map(|(_, entry)| peer(entry)).collect();
            client.command(&Request::Replace(peers))?;
            self.wanted.rewrite_where(|_, _| true);
            let batch = self.wanted.batch();
            self.wanted.written(batch, &BTreeSet::new());
        } else {
            let batch = self.wanted.batch();
            let put: Vec<Peer> =
                self.wanted.entries(&batch).filter_map(|(_, entry)| peer(entry)).collect();
            let gone = self.gone.clone();
            if !put.is_empty() || !gone.is_empty() {
                client.command(&Request::Update { put, gone })?;
            }
            self.wanted.written(batch, &BTreeSet::new());
        }
        self.gone.clear();
        Ok(())
    }
}
