//! What happens to a cluster, by chance: machines and programs end and come back, the network breaks, disks and kernels
//! fail, clocks jump, operators change their minds.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use flannel_lease::{LEASE_TTL, LeaseAttrs, Subnet};
use flannel_server::lease_state::{Request, Who};
use ipnet::{Ipv4Net, Ipv6Net};

use crate::clib;
use crate::cluster::{Backup, Cluster};
use crate::history::note;
use crate::host::{DiskFault, Families, SERVER, place_addresses};
use crate::invariants::Invariants;

/// The networks of a cluster, of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Networks {
    v4: &'static str,
    v6: &'static str,
}

const NARROW: Networks = Networks { v4: "10.1.0.0/20", v6: "fd10:1::/56" };
const WIDE: Networks = Networks { v4: "10.1.0.0/16", v6: "fd10:1::/48" };
const WIDEST: Networks = Networks { v4: "10.0.0.0/13", v6: "fd10:1::/48" };
/// Name of the file beside the log of the lease server.
const SNAPSHOT: &str = "leases.snapshot";
/// Place of a node that is none of ours.
const STRANGER_PLACE: u16 = 253;
/// Subnets that an operator reserves for machines that never come.
const RESERVED_SUBNETS: usize = 3;
/// Places to which machines move.
const FREE_PLACES: std::ops::Range<u16> = 20_000..30_000;
/// An operator's change of the network may move routes for so long.
const CHANGE_TIME: Duration = Duration::from_secs(90);

pub(crate) struct Faults {
    rng: fastrand::Rng,
    next: Duration,
    pause: Duration,
    pending: Vec<(Duration, Repair)>,
    backend: &'static str,
    network: Networks,
    next_place: u16,
    backup: Option<Backup>,
    /// The snapshot of the lease server, which an operator puts back.
    lost_snapshot: Option<Vec<u8>>,
    long_absence: bool,
}

/// What ends a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repair {
    Boot(usize),
    Start(usize),
    Network,
    Disk,
    /// A node that is none of ours leaves.
    Stranger(Subnet),
    Snapshot,
}

impl Faults {
    /// `long_absence`: a machine is away for longer than a lease lasts.
    pub(crate) fn new(mut rng: fastrand::Rng, nodes: usize, long_absence: bool) -> Self {
        let backend = if rng.bool() { "vxlan" } else { "host-gw" };
        let pause = Duration::from_secs(rng.u64(3..40));
        let next = Duration::from_secs(rng.u64(2..30));
        let pending = Vec::new();
        Self {
            rng,
            next,
            pause,
            pending,
            backend,
            network: match nodes {
                ..=12 => NARROW,
                13..=200 => WIDE,
                _ => WIDEST,
            },
            next_place: FREE_PLACES.start,
            backup: None,
            lost_snapshot: None,
            long_absence,
        }
    }

    pub(crate) fn first_config(&self, families: Families) -> String {
        self.config(families)
    }

    fn config(&self, families: Families) -> String {
        let Self { network: Networks { v4, v6 }, backend, .. } = self;
        let networks = match families {
            Families::V4 => format!(r#""Network":"{v4}""#),
            Families::V6 => format!(r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"{v6}""#),
            Families::Both => {
                format!(r#""Network":"{v4}","EnableIPv6":true,"IPv6Network":"{v6}""#)
            }
        };
        format!(r#"{{{networks},"EnableNFTables":true,"Backend":{{"Type":"{backend}"}}}}"#)
    }

    /// Does what is due.
    pub(crate) async fn act(&mut self, cluster: &mut Cluster, invariants: &mut Invariants) {
        let now = clib::elapsed();
        let due: Vec<Repair> = {
            let (due, later) = self.pending.iter().partition(|(at, _)| *at <= now);
            self.pending = later;
            let due: Vec<(Duration, Repair)> = due;
            due.into_iter().map(|(_, repair)| repair).collect()
        };
        for repair in due {
            match repair {
                Repair::Stranger(subnet) => release_stranger(cluster, invariants, subnet).await,
                repair => self.repair(repair, cluster),
            }
        }
        // A machine whose power went while its disk was written.
        for number in 0..cluster.hosts.len() {
            let host = &cluster.hosts[number];
            if host.is_up.get()
                && host.exists.get()
                && host.power_ends_after_syncs.get() == Some(0)
                && host.disk.get() == DiskFault::Off
            {
                note(format_args!("{} lost its power in the middle of a write", host.name()));
                cluster.switch_off(number).await;
                self.later(2, 20, Repair::Boot(number));
            }
        }
        if now < self.next {
            return;
        }
        self.next = now + self.pause.mul_f64(0.25 + 1.5 * self.rng.f64());
        self.begin(cluster, invariants).await;
    }

    fn later(&mut self, least: u64, most: u64, repair: Repair) {
        let pause = Duration::from_millis(self.rng.u64(least * 1_000..=most * 1_000));
        self.pending.push((clib::elapsed() + pause, repair));
    }

    fn repair(&mut self, repair: Repair, cluster: &mut Cluster) {
        match repair {
            // Others may have mended it before.
            Repair::Stranger(_) => {}
            Repair::Snapshot => self.put_back_snapshot(cluster),
            Repair::Boot(number) if cluster.hosts[number].is_up.get() => {}
            Repair::Start(number) if !cluster.hosts[number].is_up.get() || cluster.runs(number) => {
            }
            Repair::Boot(number) => cluster.boot(number),
            Repair::Start(number) => {
                note(format_args!("{} starts its program again", cluster.hosts[number].name()));
                cluster.start(number);
            }
            Repair::Network => {
                note(format_args!("the network is as before"));
                cluster.network.heal();
            }
            Repair::Disk => {
                for host in &cluster.hosts {
                    if host.disk.get() != DiskFault::Off {
                        host.disk.set(DiskFault::None);
                    }
                }
            }
        }
    }

    async fn begin(&mut self, cluster: &mut Cluster, invariants: &mut Invariants) {
        let node = self.rng.usize(cluster.nodes());
        let host = cluster.hosts[node].clone();
        let name = host.name();
        match self.rng.u8(..30) {
            0 | 1 => {
                note(format_args!("nothing passes between {name} and the server"));
                cluster.network.cut(SERVER, node);
                self.later(1, 90, Repair::Network);
            }
            2 | 3 if cluster.runs(node) => {
                note(format_args!("flanneld of {name} is killed"));
                cluster.kill(node).await;
                self.later(0, 20, Repair::Start(node));
            }
            4 if cluster.runs(node) => {
                note(format_args!("{name} loses its power"));
                cluster.switch_off(node).await;
                self.later(1, 60, Repair::Boot(node));
            }
            5 if cluster.runs(SERVER) => {
                note(format_args!("the lease server is killed"));
                cluster.kill(SERVER).await;
                self.later(0, 30, Repair::Start(SERVER));
            }
            6 if cluster.runs(SERVER) => {
                note(format_args!("the server loses its power"));
                cluster.switch_off(SERVER).await;
                self.later(1, 60, Repair::Boot(SERVER));
            }
            7 if cluster.runs(SERVER) => {
                let syncs = self.rng.u32(..6);
                note(format_args!("the server loses its power after {syncs} more syncs"));
                cluster.hosts[SERVER].power_ends_after_syncs.set(Some(syncs));
            }
            8 if cluster.runs(SERVER) => {
                let fault = if self.rng.bool() { DiskFault::Full } else { DiskFault::SyncFails };
                note(format_args!("the server's disk: {fault:?}"));
                cluster.hosts[SERVER].disk.set(fault);
                self.later(1, 60, Repair::Disk);
            }
            9 if host.is_up.get() => self.change_address(cluster, node),
            10 => {
                let any = match self.rng.bool() {
                    true => SERVER,
                    false => node,
                };
                let hours = self.rng.i64(-60..=60);
                note(format_args!("the clock of {} jumps by {hours} h", cluster.hosts[any].name()));
                cluster.hosts[any].set_clock_by(hours * 3_600_000);
            }
            11 | 12 if host.is_up.get() => {
                if let Some(what) = host.kernel.vandalize(&mut self.rng) {
                    note(format_args!("somebody deletes {what} of {name}"));
                }
            }
            13 if host.is_up.get() => {
                note(format_args!("the kernel of {name} loses announcements"));
                host.kernel.vandalize(&mut self.rng);
                host.kernel.overflow();
            }
            14 if host.is_up.get() => {
                note(format_args!("the kernel of {name} refuses changes and tears dumps"));
                host.kernel.refusals.set(self.rng.u32(..5));
                host.kernel.torn_dumps.set(self.rng.u32(..4));
                host.kernel.vandalize(&mut self.rng);
            }
            15 | 20 if self.network == NARROW => self.widen(cluster, invariants).await,
            16 => self.release(cluster, invariants, node).await,
            17 => self.admit_stranger(cluster).await,
            19 if !self.long_absence => self.admit_stranger(cluster).await,
            18 if cluster.runs(node) => {
                note(format_args!("{name} is killed, and moves meanwhile"));
                cluster.kill(node).await;
                self.change_address(cluster, node);
                self.later(0, 20, Repair::Start(node));
            }
            21 => {
                note(format_args!("connections of {name} are half open"));
                cluster.network.forget_connections(node);
            }
            22 => self.back_up(cluster),
            23 if cluster.runs(SERVER) => self.restore(cluster, invariants).await,
            24 if cluster.runs(SERVER) => self.lose_snapshot(cluster).await,
            25 if cluster.runs(node) && cluster.runs(SERVER) => {
                self.copy_machine(cluster, node);
            }
            26 if cluster.runs(node) => {
                note(format_args!("flanneld of {name} is upgraded"));
                cluster.upgrade(node).await;
            }
            27 if cluster.runs(SERVER) => {
                note(format_args!("the lease server is upgraded"));
                cluster.kill(SERVER).await;
                cluster.start(SERVER);
            }
            28 if host.is_up.get() => {
                note(format_args!("the disk of {name} is full"));
                host.disk.set(DiskFault::Full);
                self.later(1, 60, Repair::Disk);
            }
            29 => self.reserve_or_free(cluster, invariants).await,
            19 => self.leave_for_long(cluster, invariants, node).await,
            _ => {}
        }
    }

    fn change_address(&mut self, cluster: &Cluster, node: usize) {
        let Some(place) = self.free_place() else { return };
        let host = &cluster.hosts[node];
        let before: Vec<_> = host.addresses().collect();
        host.move_to(place);
        let after: Vec<_> = host.addresses().collect();
        note(format_args!("{} moves from {before:?} to {after:?}", host.name()));
        cluster.network.address_gone(node);
    }

    /// A place that no machine has had.
    fn free_place(&mut self) -> Option<u16> {
        let place = self.next_place;
        self.next_place += 1;
        FREE_PLACES.contains(&place).then_some(place)
    }

    /// An operator copies the files of the lease server.
    fn back_up(&mut self, cluster: &Cluster) {
        if self.lost_snapshot.is_none()
            && let Some(backup) = cluster.back_up()
        {
            note(format_args!("the operator copies the data of the lease server"));
            self.backup = Some(backup);
        }
    }

    /// An operator puts an old copy in the place of the lease server's files. What came after it is lost, and that is
    /// nobody's fault: leases of then may be given to others, and machines may get back what they had.
    async fn restore(&mut self, cluster: &mut Cluster, invariants: &mut Invariants) {
        let Some(backup) = self.backup.take().filter(|_| self.lost_snapshot.is_none()) else {
            return;
        };
        note(format_args!("the operator puts the copy of the lease server's data back"));
        let now = cluster.stored();
        cluster.kill(SERVER).await;
        if cluster.restore(&backup).is_err() {
            return;
        }
        let had = |subnet: &Subnet| backup.acknowledged.leases.contains_key(subnet);
        let held = cluster.nodes().filter_map(|number| cluster.subnet_of(number));
        let stored = now.iter().flat_map(|now| now.leases.keys().copied());
        let later: Vec<Subnet> = held.chain(stored).filter(|subnet| !had(subnet)).collect();
        invariants.given_away.extend(later);
        invariants.restored();
        cluster.start(SERVER);
    }

    /// The snapshot of the lease server is lost, until an operator finds it: a server that starts without it would give
    /// out subnets that are in use.
    async fn lose_snapshot(&mut self, cluster: &mut Cluster) {
        let path = cluster.hosts[SERVER].data_directory().join(SNAPSHOT);
        let Ok(content) = std::fs::read(&path) else { return };
        note(format_args!("the lease server is killed, and its snapshot is lost"));
        cluster.kill(SERVER).await;
        if std::fs::remove_file(&path).is_ok() {
            self.lost_snapshot = Some(content);
        }
        cluster.start(SERVER);
        self.later(5, 60, Repair::Snapshot);
    }

    fn put_back_snapshot(&mut self, cluster: &Cluster) {
        let Some(content) = self.lost_snapshot.take() else { return };
        let path = cluster.hosts[SERVER].data_directory().join(SNAPSHOT);
        // The log may have had everything.
        if cluster.stored().is_none() && !path.exists() {
            note(format_args!("the snapshot of the lease server is found"));
            let _ = std::fs::write(path, content);
            let _ = cluster.hosts[SERVER].note_all_synced();
        }
    }

    /// A machine is copied with its disk, and the copy gets a card and an address of its own.
    fn copy_machine(&mut self, cluster: &mut Cluster, original: usize) {
        let machine_id = self.rng.bool();
        let Some(copy) = cluster.copy_machine(original, machine_id) else { return };
        let with = if machine_id { "with" } else { "without" };
        let (copied, name) = (cluster.hosts[copy].name(), cluster.hosts[original].name());
        note(format_args!("{copied} is a copy of {name}, {with} its machine-id"));
    }

    /// An operator reserves a subnet for a machine that never comes, or frees what was reserved.
    async fn reserve_or_free(&mut self, cluster: &Cluster, invariants: &mut Invariants) {
        let Some(stored) = cluster.stored() else { return };
        let mut reserved = stored.leases.iter().filter(|(_, lease)| lease.expires.is_none());
        let request = if self.rng.bool()
            && let Some((subnet, _)) = reserved.next()
        {
            note(format_args!("the operator frees the reservation of {subnet}"));
            invariants.unreserved.insert(*subnet);
            Request::Unreserve { subnet: *subnet }
        } else {
            // Some subnets are left for machines.
            if stored.leases.len() >= cluster.hosts.len() + RESERVED_SUBNETS {
                return;
            }
            let Some(place) = self.free_place() else { return };
            let Some(subnet) = self.any_subnet(cluster.families) else { return };
            note(format_args!("the operator reserves {subnet} for a machine that is to come"));
            let attrs =
                LeaseAttrs { backend_type: "".into(), ..self.attrs(cluster.families, place) };
            Request::Reserve { subnet, attrs }
        };
        if let Some(Err(error)) = cluster.ask(request).await {
            note(format_args!("which fails: {error}"));
        }
    }

    fn any_subnet(&mut self, families: Families) -> Option<Subnet> {
        let number = self.rng.u8(1..15);
        let v4 = Ipv4Net::new(Ipv4Addr::new(10, 1, number, 0), 24).ok();
        let number = self.rng.u16(1..255);
        let v6 = Ipv6Net::new(Ipv6Addr::new(0xfd10, 1, 0, number, 0, 0, 0, 0), 64).ok();
        Subnet::new(v4.filter(|_| families.has_v4()), v6.filter(|_| families.has_v6()))
    }

    fn attrs(&self, families: Families, place: u16) -> LeaseAttrs {
        let (v4, v6) = place_addresses(place);
        LeaseAttrs {
            public_ip: Some(v4).filter(|_| families.has_v4()),
            public_ipv6: Some(v6).filter(|_| families.has_v6()),
            backend_type: self.backend.into(),
            ..LeaseAttrs::default()
        }
    }

    async fn widen(&mut self, cluster: &Cluster, invariants: &mut Invariants) {
        let before = std::mem::replace(&mut self.network, WIDE);
        let text = self.config(cluster.families);
        // A restored config would be narrower than leases that were given since.
        self.backup = None;
        note(format_args!("the operator writes the config {text}"));
        invariants.wanted_config = Some(text.clone());
        match cluster.ask(Request::SetConfig { text, force: false }).await {
            Some(Ok(_)) => {}
            // It may have been written all the same: the next try says so.
            failed => {
                note(format_args!("which fails: {failed:?}"));
                self.network = before;
            }
        }
    }

    /// A node that is none of ours comes for a while.
    async fn admit_stranger(&mut self, cluster: &Cluster) {
        if self.backend != "host-gw" {
            return;
        }
        let Some(subnet) = self.any_subnet(cluster.families) else { return };
        if cluster.stored().is_none_or(|stored| stored.leases.contains_key(&subnet)) {
            return;
        }
        let attrs = self.attrs(cluster.families, STRANGER_PLACE);
        note(format_args!("a node comes from elsewhere and has {subnet}"));
        let import = Request::Import { subnet, attrs, left: Some(3_600_000) };
        if let Some(Err(error)) = cluster.ask(import).await {
            note(format_args!("which fails: {error}"));
            return;
        }
        self.later(5, 60, Repair::Stranger(subnet));
    }

    /// An operator gives the lease of a machine back, or reserves it.
    async fn release(&mut self, cluster: &Cluster, invariants: &mut Invariants, node: usize) {
        let Some(subnet) = cluster.subnet_of(node) else { return };
        let Some(stored) = cluster.stored() else { return };
        let Some(lease) = stored.leases.get(&subnet) else { return };
        let request = if self.rng.bool() {
            let LeaseAttrs { public_ip, public_ipv6, .. } = lease.attrs;
            let attrs = LeaseAttrs { public_ip, public_ipv6, ..LeaseAttrs::default() };
            note(format_args!("the operator reserves {subnet}"));
            Request::Reserve { subnet, attrs }
        } else {
            note(format_args!("the operator releases {subnet}"));
            invariants.given_away.insert(subnet);
            invariants.freed.insert(subnet);
            invariants.routes_move_until = clib::elapsed() + CHANGE_TIME;
            Request::Release { subnet, version: None, who: Who::anybody() }
        };
        if let Some(Err(error)) = cluster.ask(request).await {
            note(format_args!("which fails: {error}"));
        }
    }

    async fn leave_for_long(
        &mut self,
        cluster: &mut Cluster,
        invariants: &mut Invariants,
        node: usize,
    ) {
        self.long_absence = false;
        let name = cluster.hosts[node].name();
        note(format_args!("{name} is switched off for longer than a lease lasts"));
        if let Some(subnet) = cluster.subnet_of(node) {
            invariants.given_away.insert(subnet);
            invariants.freed.insert(subnet);
        }
        self.end(cluster).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        cluster.switch_off(node).await;
        tokio::time::sleep(LEASE_TTL + Duration::from_secs(600)).await;
        invariants.routes_move_until = clib::elapsed() + CHANGE_TIME;
        cluster.boot(node);
    }

    /// No more faults: everything that is broken is mended.
    pub(crate) async fn end(&mut self, cluster: &mut Cluster) {
        note(format_args!("the faults end"));
        cluster.network.heal();
        self.put_back_snapshot(cluster);
        for number in SERVER..cluster.nodes().end {
            let host = cluster.hosts[number].clone();
            host.kernel.refusals.set(0);
            host.kernel.torn_dumps.set(0);
            let is_off = host.disk.get() == DiskFault::Off;
            host.power_ends_after_syncs.set(None);
            if is_off && host.is_up.get() {
                cluster.switch_off(number).await;
            }
            if !host.is_up.get() {
                cluster.boot(number);
            } else {
                host.disk.set(DiskFault::None);
                if !cluster.runs(number) {
                    cluster.start(number);
                }
            }
        }
        self.pending.clear();
    }
}

async fn release_stranger(cluster: &Cluster, invariants: &mut Invariants, subnet: Subnet) {
    note(format_args!("the node with {subnet} leaves"));
    invariants.freed.insert(subnet);
    let request = Request::Release { subnet, version: None, who: Who::anybody() };
    if let Some(Err(error)) = cluster.ask(request).await {
        note(format_args!("which fails: {error}"));
    }
}
