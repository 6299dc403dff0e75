//! What happens to a cluster, by chance: machines and programs end and come back, the network breaks, disks and kernels
//! fail, clocks jump, operators change their minds.

use std::net::Ipv4Addr;
use std::time::Duration;

use flannel_lease::{LEASE_TTL, LeaseAttrs, Subnet};
use flannel_server::lease_state::{Request, Who};

use crate::clib;
use crate::cluster::Cluster;
use crate::history::note;
use crate::host::{DiskFault, SERVER};
use crate::invariants::Invariants;

const NARROW: &str = "10.1.0.0/20";
const WIDE: &str = "10.1.0.0/16";
/// An operator's change of the network may move routes for so long.
const CHANGE_TIME: Duration = Duration::from_secs(90);

pub(crate) struct Faults {
    rng: fastrand::Rng,
    next: Duration,
    pause: Duration,
    pending: Vec<(Duration, Repair)>,
    backend: &'static str,
    network: &'static str,
    next_address: u8,
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
}

impl Faults {
    /// `long_absence`: a machine is away for longer than a lease lasts.
    pub(crate) fn new(mut rng: fastrand::Rng, long_absence: bool) -> Self {
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
            network: NARROW,
            next_address: 100,
            long_absence,
        }
    }

    pub(crate) fn first_config(&self) -> String {
        self.config()
    }

    fn config(&self) -> String {
        let Self { network, backend, .. } = self;
        format!(
            r#"{{"Network":"{network}","EnableNFTables":true,"Backend":{{"Type":"{backend}"}}}}"#
        )
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
        match self.rng.u8(..20) {
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
                let any = self.rng.usize(..cluster.hosts.len());
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
            15 if self.network == NARROW => self.widen(cluster).await,
            16 => self.release(cluster, invariants, node).await,
            17 => self.admit_stranger(cluster).await,
            18 if cluster.runs(node) => {
                note(format_args!("{name} is killed, and moves meanwhile"));
                cluster.kill(node).await;
                self.change_address(cluster, node);
                self.later(0, 20, Repair::Start(node));
            }
            19 if self.long_absence => self.leave_for_long(cluster, invariants, node).await,
            _ => {}
        }
    }

    fn change_address(&mut self, cluster: &Cluster, node: usize) {
        let host = &cluster.hosts[node];
        let (before, after) = (host.ip.get(), Ipv4Addr::new(192, 168, 0, self.next_address));
        self.next_address += 1;
        if self.next_address >= 250 {
            return;
        }
        note(format_args!("{} moves from {before} to {after}", host.name()));
        host.ip.set(after);
        host.kernel.remove_card_address(before);
        host.kernel.add_card_address(after);
        cluster.network.address_gone(node);
    }

    async fn widen(&mut self, cluster: &Cluster) {
        let before = std::mem::replace(&mut self.network, WIDE);
        let text = self.config();
        note(format_args!("the operator writes the config {text}"));
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
        let text = format!("10.1.{}.0-24", self.rng.u8(1..15));
        let Ok(subnet) = text.parse::<Subnet>() else { return };
        if cluster.stored().is_none_or(|stored| stored.leases.contains_key(&subnet)) {
            return;
        }
        let attrs = LeaseAttrs {
            public_ip: Some(Ipv4Addr::new(192, 168, 0, 253)),
            backend_type: self.backend.into(),
            ..LeaseAttrs::default()
        };
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
            let attrs = LeaseAttrs { public_ip: lease.attrs.public_ip, ..LeaseAttrs::default() };
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
        for number in 0..cluster.hosts.len() {
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
