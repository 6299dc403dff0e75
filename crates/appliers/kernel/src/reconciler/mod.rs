//! Keeps the kernel equal to what is wanted.
//!
//! Three movements, and no others: `resync` compares everything in the kernel with the desired entries and marks the
//! differences; `hear` does the same for one outside change; `flush` writes what is marked, in order of dependency,
//! in large batches. Whatever may drop entries silently (a device down, an address gone) asks for a resync, so no
//! list of the kernel's side effects is kept here.

mod compare;
mod devices;
mod hazards;
mod read;
mod wireguard;
mod write;
mod xfrm;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_entries::facts::{DefaultRoute, Facts, KernelVersion, Path};
use flannel_entries::kernel::{Entry, Key, Ownership};
use flannel_netlink::{Connection, NetlinkError, Protocol, Request};
use flannel_wanted::{Comparison, Desired, Wanted};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteAttribute;

use crate::encode;
use crate::hazards::Hazard;
use crate::links::Links;
use crate::monitor::{Monitor, Notification};
use crate::observed::{Event, route_ip};
use crate::repairs::RepairLog;
use crate::wanted::REPAIRS;
use hazards::HazardWatch;
use wireguard::Tunnels;
use xfrm::Policies;

/// Belt and braces: everything is compared this often even when nothing was heard.
const ROUTINE_RESYNC: Duration = Duration::from_secs(120);

pub(crate) struct Reconciler<S> {
    connection: Connection,
    pub(crate) monitor: Monitor,
    links: Links,
    default_routes: Vec<DefaultRoute>,
    kernel: KernelVersion,
    pub(crate) wanted: Wanted<S, Entry>,
    ownership: Ownership,
    removals: Vec<(Key, Request)>,
    /// Routes that nobody wants any more and that the comparison under way is to find and remove.
    released: BTreeSet<Key>,
    repairs: RepairLog,
    watch: HazardWatch,
    tunnels: Tunnels,
    policies: Policies,
    rng: fastrand::Rng,
    /// What is believed of the kernel may be wrong.
    pub(crate) resync_due: bool,
    /// Not before something was declared as a whole: until then nothing is known of what is ours.
    next_routine: Option<Instant>,
    /// Changes of routes, neighbours and rules are heard of.
    hears_changes: bool,
    /// The next comparison is the first one after the whole was declared.
    taking_over: bool,
    /// Outside changes of routes so far: a path learned before may be another now.
    routing_version: u64,
    facts_changed: bool,
    pub(crate) overflows: u64,
    pub(crate) resyncs: u64,
}

impl<S: Ord + Clone> Reconciler<S> {
    pub(crate) fn open(kernel: KernelVersion, seed: u64) -> io::Result<Self> {
        let mut reconciler = Self {
            connection: Connection::open(Protocol::Route)?,
            monitor: Monitor::open()?,
            links: Links::default(),
            default_routes: Vec::new(),
            kernel,
            wanted: Wanted::new(REPAIRS),
            ownership: Ownership::default(),
            removals: Vec::new(),
            released: BTreeSet::new(),
            repairs: RepairLog::default(),
            watch: HazardWatch::default(),
            tunnels: Tunnels::default(),
            policies: Policies::default(),
            rng: fastrand::Rng::with_seed(seed),
            resync_due: false,
            next_routine: None,
            hears_changes: false,
            taking_over: false,
            routing_version: 0,
            facts_changed: true,
            overflows: 0,
            resyncs: 0,
        };
        reconciler.read_links()?;
        reconciler.read_routes()?;
        Ok(reconciler)
    }

    pub(crate) fn new_facts(&mut self) -> Option<Facts> {
        std::mem::take(&mut self.facts_changed).then(|| Facts {
            interfaces: self.links.interfaces(),
            default_routes: self.default_routes.clone(),
            routing_version: self.routing_version,
            kernel: self.kernel,
        })
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        [self.wanted.next_wake(), self.next_routine, self.watch.next_wake(), self.tunnels.next_look]
            .into_iter()
            .flatten()
            .min()
    }

    /// Replaces the whole desired state and makes the kernel equal to it, taking over what is ours.
    pub(crate) fn replace(
        &mut self,
        ownership: Ownership,
        desired: Desired<S, Entry>,
        now: Instant,
    ) -> io::Result<()> {
        let prepared = !self.hears_changes && !self.wanted.is_empty();
        // What is removed below because nobody wants it any more was ours by the old rule.
        let unwanted = self.wanted.replace(desired);
        self.ownership = ownership;
        // Routes are removed as they are found, each once: to the kernel a metric of 0 means any, so a
        // second removal would take the route of another metric that has come in its place.
        let (routes, others): (Vec<Entry>, Vec<Entry>) =
            unwanted.into_iter().partition(|entry| matches!(entry.key(), Key::Route(..)));
        self.released = routes.iter().map(Entry::key).collect();
        self.remove_unwanted(others);
        let is_written = !self.wanted.is_dirty() && self.removals.is_empty() && routes.is_empty();
        if prepared && is_written {
            // Nobody has to wait until it is seen what else there is.
            self.hear_changes()?;
            (self.next_routine, self.taking_over) = (Some(now), true);
            return Ok(());
        }
        let compared = self.resync(now, true);
        self.released.clear();
        compared?;
        self.flush(now)?;
        self.look_for_hazards()?;
        if !self.hears_changes {
            // Only now, so that thousands of our own writes are not echoed; one more comparison finds what happened meanwhile.
            self.hear_changes()?;
            self.resync_due = true;
        }
        Ok(())
    }

    fn hear_changes(&mut self) -> io::Result<()> {
        self.monitor.watch_everything()?;
        self.hears_changes = true;
        Ok(())
    }

    pub(crate) fn update(&mut self, changes: Desired<S, Entry>, now: Instant) -> io::Result<()> {
        let unwanted = self.wanted.update(changes);
        self.remove_unwanted(unwanted);
        self.flush(now)
    }

    pub(crate) fn hazards(&self) -> &BTreeSet<Hazard> {
        &self.watch.hazards
    }

    pub(crate) fn react(&mut self, now: Instant) -> io::Result<()> {
        let mut heard = Vec::new();
        self.monitor.drain(self.connection.port(), |what| heard.push(what))?;
        if let Some(by) = self.monitor.drain_policies(self.policies.port())? {
            self.policies.changed_by = Some(by);
        }
        for what in heard {
            match what {
                Notification::Overflow => {
                    tracing::warn!(
                        "the kernel reports more changes than could be queued: comparing everything"
                    );
                    self.overflows += 1;
                    self.resync_due = true;
                }
                // It may still decide where packets go: a rule, a setting, a route of another table.
                Notification::Setting(device) => {
                    if device.is_none_or(|link| self.concerns_pods(link)) {
                        self.watch.look_at_everything();
                    }
                }
                Notification::Change(message, by) => {
                    let decides = self.decides(&message);
                    match Event::read(message) {
                        Some(event) => self.hear(event, by, now),
                        None if decides => self.watch.look_at_everything(),
                        None => {}
                    }
                }
            }
        }
        if self.next_routine.is_some_and(|due| due <= now) {
            self.resync_due = true;
        }
        if self.is_resync_due() {
            self.resync_due = false;
            let taking_over = std::mem::take(&mut self.taking_over);
            self.resync(now, taking_over)?;
        }
        if self.tunnels.next_look.is_some_and(|due| due <= now) {
            self.compare_wireguard(now)?;
        }
        if let Some(by) = self.policies.changed_by.take() {
            self.compare_policies(by, now)?;
        }
        self.wanted.wake(now);
        self.flush(now)?;
        self.repairs.report(now, |key| self.wanted.is_good(key));
        // Before anything is wanted there is nobody to be kept from.
        if self.next_routine.is_some() && self.watch.is_due(now) {
            self.look_for_hazards()?;
        }
        Ok(())
    }

    /// Compares everything now, because somebody asks for it, and puts right what differs.
    pub(crate) fn compare_now(&mut self, now: Instant) -> (Comparison, Option<io::Error>) {
        // Before something was declared as a whole, nothing is known of what is ours.
        if self.next_routine.is_none() {
            return (Comparison::default(), None);
        }
        self.wanted.begin_comparison();
        let mut removed = Vec::new();
        let mut compare = || {
            self.resync(now, false)?;
            let unwanted = |key: &&Key| self.wanted.get(key).is_none();
            let keys = self.removals.iter().map(|(key, _)| key);
            removed = keys.filter(unwanted).map(ToString::to_string).collect();
            self.flush(now)?;
            self.look_for_hazards()
        };
        let error = compare().err();
        let failure = error.as_ref().map(|error| format!("netlink: {error}; it is tried again"));
        (Comparison { removed, failure, ..self.wanted.end_comparison(now) }, error)
    }

    fn is_resync_due(&self) -> bool {
        self.resync_due && self.next_routine.is_some()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.is_resync_due()
            || self.wanted.is_dirty()
            || !self.removals.is_empty()
            || !self.tunnels.removals.is_empty()
            || !self.policies.removals.is_empty()
            || self.policies.changed_by.is_some()
    }

    pub(crate) fn lookup(&mut self, addresses: &[IpAddr]) -> io::Result<Vec<Option<Path>>> {
        let mut paths = Vec::with_capacity(addresses.len());
        for ip in addresses {
            paths.push(self.path(&encode::lookup_route(*ip, None))?.ok());
        }
        Ok(paths)
    }

    fn path(&mut self, question: &RouteNetlinkMessage) -> io::Result<Result<Path, NetlinkError>> {
        let message = match self.connection.get(question)? {
            Ok(RouteNetlinkMessage::NewRoute(message)) => message,
            Ok(_) => return Ok(Err(NetlinkError::new(libc::EPROTO, "no route for an answer"))),
            Err(error) => return Ok(Err(error)),
        };
        let (mut link, mut gateway, mut source) = (None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => link = self.links.name(*index),
                RouteAttribute::Gateway(ip) => gateway = route_ip(ip),
                RouteAttribute::PrefSource(ip) => source = route_ip(ip),
                _ => {}
            }
        }
        let path = link.map(|link| Path { link, gateway, source });
        Ok(path.ok_or_else(|| NetlinkError::new(libc::ENETUNREACH, "no device")))
    }
}
