//! Keeps the kernel equal to what is wanted.
//!
//! Three movements, and no others: `resync` reads all the kernel holds past the desired entries and
//! marks the differences; `hear` does the same for one outside change; `flush` writes what is marked,
//! in order of dependency, in large batches. Whatever may drop entries silently (a device down, an
//! address gone) asks for a resync, so no list of the kernel's side effects is kept here.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::RouteAttribute;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::encode::{self, dump};
use crate::link_plan::{LinkPlan, plan_link};
use crate::links::{LinkChange, Links};
use crate::netlink::{Connection, Heard, Monitor, NetlinkError, Request};
use crate::observed::{
    Event, Hop, Observed, ObservedAddress, ObservedFdb, ObservedLink, ObservedNeighbour,
    ObservedRoute, RouteKind, route_ip,
};
use crate::repairs::RepairLog;
use crate::settings;
use crate::wanted::{Repair, Wanted};
use crate::{
    DefaultRoute, Entry, Facts, IfName, KernelVersion, Key, Link, Ownership, Path, ROUTE_PROTOCOL,
    Route,
};

/// Belt and braces: everything is compared this often even when nothing was heard.
const ROUTINE_RESYNC: Duration = Duration::from_secs(120);

pub(crate) struct Reconciler<S> {
    connection: Connection,
    monitor: Monitor,
    links: Links,
    default_routes: Vec<DefaultRoute>,
    kernel: KernelVersion,
    pub(crate) wanted: Wanted<S>,
    ownership: Ownership,
    doomed: Vec<(Key, Request)>,
    repairs: RepairLog,
    rng: fastrand::Rng,
    resync_due: bool,
    next_routine: Option<Instant>,
    /// Outside changes of routes so far: a path learned before may be another now.
    routing_version: u64,
    facts_changed: bool,
}

impl<S: Ord + Clone> Reconciler<S> {
    pub(crate) fn open(kernel: KernelVersion, seed: u64) -> io::Result<Self> {
        let monitor = Monitor::open()?;
        monitor.watch_links_and_addresses()?;
        let mut reconciler = Self {
            connection: Connection::open()?,
            monitor,
            links: Links::default(),
            default_routes: Vec::new(),
            kernel,
            wanted: Wanted::new(),
            ownership: Ownership::default(),
            doomed: Vec::new(),
            repairs: RepairLog::default(),
            rng: fastrand::Rng::with_seed(seed),
            resync_due: false,
            next_routine: None,
            routing_version: 0,
            facts_changed: true,
        };
        reconciler.read_links()?;
        reconciler.read_routes()?;
        Ok(reconciler)
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// The facts, if they have changed since the last call.
    pub(crate) fn new_facts(&mut self) -> Option<Facts> {
        std::mem::take(&mut self.facts_changed).then(|| Facts {
            interfaces: self.links.interfaces(),
            default_routes: self.default_routes.clone(),
            routing_version: self.routing_version,
            kernel: self.kernel,
        })
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        [self.wanted.next_wake(), self.next_routine].into_iter().flatten().min()
    }

    /// Replaces the whole desired state and makes the kernel equal to it, taking over what is ours.
    pub(crate) fn replace(
        &mut self,
        ownership: Ownership,
        desired: Vec<(S, Vec<Entry>)>,
        now: Instant,
    ) -> io::Result<()> {
        let first = self.next_routine.is_none();
        // What is removed below because nobody wants it any more was ours by the old rule.
        let mut unwanted =
            self.wanted.retain(&desired.iter().map(|(owner, _)| owner.clone()).collect());
        for (owner, entries) in desired {
            unwanted.extend(self.wanted.set(owner, entries));
        }
        self.ownership = ownership;
        self.doom_entries(unwanted);
        self.resync(now, true)?;
        self.flush(now)?;
        if first {
            // Joined only now, so that the first thousands of entries are not echoed to us one by
            // one; what happened meanwhile is found by one more comparison.
            self.monitor.watch_routes_and_neighbours()?;
            self.resync_due = true;
        }
        Ok(())
    }

    /// Replaces what single owners want.
    pub(crate) fn update(&mut self, changes: Vec<(S, Vec<Entry>)>, now: Instant) -> io::Result<()> {
        let mut unwanted = Vec::new();
        for (owner, entries) in changes {
            unwanted.extend(self.wanted.set(owner, entries));
        }
        self.doom_entries(unwanted);
        self.flush(now)
    }

    /// Hears what others did, and puts it right.
    pub(crate) fn react(&mut self, now: Instant) -> io::Result<()> {
        let mut heard = Vec::new();
        self.monitor.drain(self.connection.port(), |what| heard.push(what))?;
        for what in heard {
            match what {
                Heard::Overflow => {
                    tracing::warn!(
                        "the kernel reports more changes than could be queued: comparing everything"
                    );
                    self.resync_due = true;
                }
                Heard::Change(message, by) => {
                    if let Some(event) = Event::read(message) {
                        self.hear(event, by, now);
                    }
                }
            }
        }
        if self.next_routine.is_some_and(|due| due <= now) {
            self.resync_due = true;
        }
        if std::mem::take(&mut self.resync_due) {
            self.resync(now, false)?;
        }
        self.wanted.wake(now);
        self.flush(now)?;
        self.repairs.report(now);
        Ok(())
    }

    pub(crate) fn has_work(&self) -> bool {
        self.resync_due || self.wanted.is_dirty() || !self.doomed.is_empty()
    }

    /// How the kernel would send to each of these addresses.
    pub(crate) fn lookup(&mut self, addresses: &[IpAddr]) -> io::Result<Vec<Option<Path>>> {
        let mut paths = Vec::with_capacity(addresses.len());
        for ip in addresses {
            let answer = self.connection.get(&encode::lookup_route(*ip))?;
            let path = match answer {
                Ok(RouteNetlinkMessage::NewRoute(message)) => {
                    let mut link = None;
                    let mut gateway = None;
                    let mut source = None;
                    for attribute in &message.attributes {
                        match attribute {
                            RouteAttribute::Oif(index) => link = self.links.name(*index),
                            RouteAttribute::Gateway(ip) => gateway = route_ip(ip),
                            RouteAttribute::PrefSource(ip) => source = route_ip(ip),
                            _ => {}
                        }
                    }
                    link.map(|link| Path { link, gateway, source })
                }
                _ => None,
            };
            paths.push(path);
        }
        Ok(paths)
    }

    // --- reading -----------------------------------------------------------------------------

    fn read_links(&mut self) -> io::Result<()> {
        let before = self.links.interfaces();
        self.links.clear();
        for observed in self.connection.dump(&dump::links(), Observed::read)? {
            if let Observed::Link(link) = observed {
                self.links.put(link);
            }
        }
        for observed in self.connection.dump(&dump::addresses(), Observed::read)? {
            if let Observed::Address(address) = observed {
                self.links.put_address(address);
            }
        }
        self.facts_changed |= self.links.interfaces() != before;
        Ok(())
    }

    fn read_routes(&mut self) -> io::Result<Vec<ObservedRoute>> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let read = |message| match Observed::read(message) {
                Some(Observed::Route(route)) => Some(route),
                _ => None,
            };
            match self.connection.dump(&dump::routes(family), read) {
                Ok(some) => routes.extend(some),
                // A kernel without IPv6 has no such table.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let defaults = self.default_routes_of(&routes);
        if defaults != self.default_routes {
            self.default_routes = defaults;
            self.facts_changed = true;
        }
        Ok(routes)
    }

    fn default_routes_of(&self, routes: &[ObservedRoute]) -> Vec<DefaultRoute> {
        let mut defaults: Vec<DefaultRoute> = routes
            .iter()
            .filter(|route| route.kind == RouteKind::Unicast && route.dst.prefix_len() == 0)
            .flat_map(|route| {
                route.hops.iter().filter_map(|hop| {
                    Some(DefaultRoute {
                        ipv6: route.dst.addr().is_ipv6(),
                        link: self.links.name(hop.link)?,
                        metric: route.metric,
                        gateway: hop.via,
                    })
                })
            })
            .collect();
        defaults.sort_by_key(|route| (route.ipv6, route.metric));
        defaults
    }

    /// Compares everything. `taking_over`: unmarked routes of the Go flannel count as ours.
    fn resync(&mut self, now: Instant, taking_over: bool) -> io::Result<()> {
        self.next_routine = Some(now + ROUTINE_RESYNC);
        self.wanted.begin_resync();
        self.read_links()?;
        self.compare_links(now);
        for (address, name) in self.addresses_of_ours() {
            self.compare_address(&address, name, now);
        }
        let ours: Vec<u32> =
            self.ownership.links.iter().filter_map(|name| self.links.index(*name)).collect();
        for link in ours {
            for request in [
                dump::neighbours(AddressFamily::Inet, link),
                dump::neighbours(AddressFamily::Inet6, link),
                dump::fdb(link),
            ] {
                for observed in self.connection.dump(&request, Observed::read)? {
                    match observed {
                        Observed::Neighbour(n) if n.link == link => self.compare_neighbour(&n, now),
                        Observed::Fdb(f) if f.link == link => self.compare_fdb(&f, now),
                        _ => {}
                    }
                }
            }
        }
        for route in self.read_routes()? {
            self.compare_route(&route, taking_over, now);
        }
        self.compare_settings(now);
        for key in self.wanted.unseen(|key| !matches!(key, Key::Link(_))) {
            self.missing(&key, 0, now);
        }
        Ok(())
    }

    fn addresses_of_ours(&self) -> Vec<(ObservedAddress, IfName)> {
        self.links
            .iter()
            .filter(|(link, _)| self.ownership.links.contains(&link.name))
            .flat_map(|(link, addresses)| addresses.iter().map(|a| (a.clone(), link.name)))
            .collect()
    }

    // --- comparing ---------------------------------------------------------------------------

    fn hear(&mut self, event: Event, by: u32, now: Instant) {
        match event {
            Event::New(Observed::Link(link)) => self.hear_link(link),
            Event::Gone(Observed::Link(link)) => {
                if self.links.remove(link.index) {
                    self.node_changed();
                    self.resync_due |= self.is_referenced(link.name);
                }
            }
            Event::New(Observed::Address(address)) => {
                if self.links.put_address(address.clone()) {
                    self.node_changed();
                }
                if let Some(name) = self.links.name(address.link)
                    && self.ownership.links.contains(&name)
                {
                    self.compare_address(&address, name, now);
                }
            }
            Event::Gone(Observed::Address(address)) => {
                if self.links.remove_address(address.link, address.addr) {
                    self.node_changed();
                    // Routes that needed this address have vanished with it, without a word.
                    let name = self.links.name(address.link);
                    self.resync_due |= name.is_some_and(|name| self.is_referenced(name));
                }
            }
            Event::New(Observed::Route(route)) => {
                let known = self.compare_route(&route, false, now);
                self.note_foreign_route(&route, known);
            }
            Event::Gone(Observed::Route(route)) => {
                let key = Key::Route(route.dst, route.metric);
                let wanted = self.route_matches(&key, &route);
                if wanted == Some(true) {
                    self.missing(&key, by, now);
                }
                self.note_foreign_route(&route, wanted.is_some());
            }
            Event::New(Observed::Neighbour(neighbour)) => self.compare_neighbour(&neighbour, now),
            Event::Gone(Observed::Neighbour(neighbour)) => {
                if let Some(name) = self.links.name(neighbour.link) {
                    self.missing(&Key::Neighbour(name, neighbour.ip), by, now);
                }
            }
            Event::New(Observed::Fdb(fdb)) => self.compare_fdb(&fdb, now),
            Event::Gone(Observed::Fdb(fdb)) => {
                if let Some(name) = self.links.name(fdb.link) {
                    let key = Key::Fdb(name, fdb.mac);
                    if matches!(self.wanted.get(&key), Some(Entry::Fdb(w)) if w.dst == fdb.dst) {
                        self.missing(&key, by, now);
                    }
                }
            }
        }
    }

    fn hear_link(&mut self, link: ObservedLink) {
        let name = link.name;
        let change = self.links.put(link);
        if change == LinkChange::None {
            return;
        }
        self.node_changed();
        self.resync_due |= self.is_referenced(name);
    }

    /// A device or an address has come, gone or changed: what could not be written may be now.
    fn node_changed(&mut self) {
        self.facts_changed = true;
        self.wanted.retry_failed();
    }

    fn is_referenced(&self, name: IfName) -> bool {
        self.ownership.links.contains(&name) || self.wanted.refers_to(name)
    }

    /// A route that is not ours has changed: paths to peers may have too.
    fn note_foreign_route(&mut self, route: &ObservedRoute, wanted: bool) {
        if wanted || route.protocol == ROUTE_PROTOCOL {
            return;
        }
        self.routing_version += 1;
        self.facts_changed = true;
        // The list of default routes is read anew with everything else: this is rare.
        self.resync_due |= route.dst.prefix_len() == 0;
    }

    fn compare_links(&mut self, now: Instant) {
        let links: Vec<Link> = self.wanted.links().cloned().collect();
        for link in links {
            let key = Key::Link(link.name);
            match plan_link(&link, &self.links) {
                LinkPlan::Keep => self.wanted.seen(&key),
                _ => self.missing(&key, 0, now),
            }
        }
        let orphans: Vec<(IfName, u32)> = self
            .links
            .iter()
            .filter(|(link, addresses)| {
                self.wanted.get(&Key::Link(link.name)).is_none()
                    && self.ownership.owns_orphan(link, addresses)
            })
            .map(|(link, _)| (link.name, link.index))
            .collect();
        for (name, index) in orphans {
            self.doomed.push((Key::Link(name), encode::delete_link(index)));
        }
    }

    fn compare_address(&mut self, address: &ObservedAddress, name: IfName, _now: Instant) {
        let key = Key::Address(name, address.addr);
        if self.wanted.get(&key).is_some() {
            self.wanted.seen(&key);
        } else if self.ownership.owns_address(address, name) {
            self.doomed.push((key, encode::delete_address(address.link, address.addr)));
        }
    }

    fn compare_neighbour(&mut self, neighbour: &ObservedNeighbour, now: Instant) {
        let Some(name) = self.links.name(neighbour.link) else { return };
        let key = Key::Neighbour(name, neighbour.ip);
        match self.wanted.get(&key) {
            Some(Entry::Neighbour(wanted)) => {
                if neighbour.permanent && neighbour.mac == Some(wanted.mac) {
                    self.wanted.seen(&key);
                } else {
                    self.missing(&key, 0, now);
                }
            }
            _ if self.ownership.owns_neighbour(neighbour, name) => {
                self.doomed.push((key, encode::delete_neighbour(neighbour.link, neighbour.ip)));
            }
            _ => {}
        }
    }

    fn compare_fdb(&mut self, fdb: &ObservedFdb, now: Instant) {
        let Some(name) = self.links.name(fdb.link) else { return };
        let key = Key::Fdb(name, fdb.mac);
        let odd = match self.wanted.get(&key) {
            Some(Entry::Fdb(wanted)) if wanted.dst == fdb.dst => {
                if fdb.permanent {
                    self.wanted.seen(&key);
                } else {
                    self.missing(&key, 0, now);
                }
                false
            }
            Some(_) => {
                // A forwarding entry may have several destinations: ours is written, this one goes.
                self.missing(&key, 0, now);
                true
            }
            None => self.ownership.owns_fdb(fdb, name),
        };
        if odd {
            self.doomed.push((key, encode::delete_fdb(fdb.link, fdb.mac, fdb.dst)));
        }
    }

    /// Returns whether the route is one of ours.
    fn compare_route(&mut self, route: &ObservedRoute, taking_over: bool, now: Instant) -> bool {
        let key = Key::Route(route.dst, route.metric);
        match self.route_matches(&key, route) {
            Some(true) => {
                self.wanted.seen(&key);
                true
            }
            Some(false) => {
                self.missing(&key, 0, now);
                // Ours replaces it in place, unless it stands beside ours.
                if route.hops.len() == 1 {
                    self.doomed.push((key, encode::delete_route(route)));
                }
                true
            }
            None => {
                let ours = self.ownership.owns_route(route, &self.links, taking_over);
                if ours {
                    self.doomed.push((key, encode::delete_route(route)));
                }
                ours
            }
        }
    }

    /// Whether the route is as wanted; `None`: no route of this key is wanted.
    fn route_matches(&self, key: &Key, route: &ObservedRoute) -> Option<bool> {
        let as_wanted = match self.wanted.get(key)? {
            Entry::Blackhole(_) => route.kind == RouteKind::Blackhole,
            Entry::Route(Route { via, link, onlink, .. }) => {
                let index = self.links.index(*link);
                let hop = index.map(|link| Hop { link, via: *via, onlink: *onlink });
                route.kind == RouteKind::Unicast
                    && matches!(route.hops.as_slice(), [only] if Some(only) == hop.as_ref())
            }
            _ => return None,
        };
        Some(as_wanted && route.protocol == ROUTE_PROTOCOL && route.tos == 0)
    }

    fn compare_settings(&mut self, now: Instant) {
        let keys = self.wanted.unseen(|key| matches!(key, Key::Sysctl(_) | Key::Offload(_)));
        for key in keys {
            let set = match self.wanted.get(&key) {
                Some(Entry::Sysctl(sysctl)) => settings::sysctl_is_set(sysctl),
                Some(Entry::Offload(offload)) => settings::offload_is_set(offload),
                _ => continue,
            };
            if set { self.wanted.seen(&key) } else { self.missing(&key, 0, now) }
        }
    }

    /// A wanted entry is not there, or not as wanted.
    fn missing(&mut self, key: &Key, by: u32, now: Instant) {
        if self.wanted.get(key).is_none() {
            return;
        }
        match self.wanted.disturbed(key, now, &mut self.rng) {
            Repair::Now => self.repairs.repaired(key, by),
            Repair::Later(pause) => self.repairs.truce(key, by, pause, now),
            Repair::AlreadyDue => {}
        }
    }

    // --- writing -----------------------------------------------------------------------------

    fn doom_entries(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            if let Some(request) = self.removal(&entry) {
                self.doomed.push((entry.key(), request));
            }
        }
    }

    /// `None`: it is gone with its device, or cannot be taken back.
    fn removal(&self, entry: &Entry) -> Option<Request> {
        let gone_route = |dst, metric, kind, hops| ObservedRoute {
            dst,
            metric,
            protocol: ROUTE_PROTOCOL,
            kind,
            tos: 0,
            hops,
        };
        if let Entry::Blackhole(e) = entry {
            let route = gone_route(e.dst, e.metric, RouteKind::Blackhole, Vec::new());
            return Some(encode::delete_route(&route));
        }
        let index = self.links.index(entry.link()?)?;
        Some(match entry {
            Entry::Link(_) => encode::delete_link(index),
            Entry::Address(e) => encode::delete_address(index, e.addr),
            Entry::Neighbour(e) => encode::delete_neighbour(index, e.ip),
            Entry::Fdb(e) => encode::delete_fdb(index, e.mac, e.dst),
            Entry::Route(e) => {
                let hop = Hop { link: index, via: e.via, onlink: e.onlink };
                encode::delete_route(&gone_route(e.dst, e.metric, RouteKind::Unicast, vec![hop]))
            }
            Entry::Sysctl(_) | Entry::Offload(_) | Entry::Blackhole(_) => return None,
        })
    }

    /// Writes what is marked: first what must be there, in order of dependency; then, in reverse,
    /// what must not.
    fn flush(&mut self, now: Instant) -> io::Result<()> {
        if self.wanted.is_dirty() {
            self.flush_links(now)?;
            self.flush_entries(now)?;
        }
        self.flush_doomed()
    }

    fn flush_links(&mut self, now: Instant) -> io::Result<()> {
        let dirty: Vec<Link> = self
            .wanted
            .links()
            .filter(|link| self.wanted.is_marked(&Key::Link(link.name)))
            .cloned()
            .collect();
        for link in dirty {
            let key = Key::Link(link.name);
            match self.settle_link(&link)? {
                Ok(()) => self.wanted.succeeded(&key),
                Err(error) => self.note_failure(&key, error.to_string(), now),
            }
        }
        Ok(())
    }

    fn settle_link(&mut self, link: &Link) -> io::Result<Result<(), NetlinkError>> {
        let plan = plan_link(link, &self.links);
        match plan {
            LinkPlan::Keep => return Ok(Ok(())),
            LinkPlan::Wait(parent) => {
                let text = format!("waiting for {parent}, the device it is to send through");
                return Ok(Err(NetlinkError::new(libc::ENODEV, &text)));
            }
            LinkPlan::Change(request) => {
                if self.apply_one(request)?.is_ok() {
                    return self.refresh_link(link.name, false).map(Ok);
                }
                // An older kernel may refuse; then the device is made anew.
                tracing::debug!("{} cannot be changed in place", link.name);
            }
            LinkPlan::Create | LinkPlan::Recreate(_) => {}
        }
        if let LinkPlan::Recreate(reason) = plan_link(link, &self.links) {
            tracing::warn!("making {} anew: {reason}", link.name);
        }
        if let Some(index) = self.links.index(link.name) {
            if let Err(error) = self.apply_one(encode::delete_link(index))? {
                return Ok(Err(error));
            }
            self.links.remove(index);
        }
        let Some(parent) = self.links.index(link.parent()) else {
            return Ok(Err(NetlinkError::new(libc::ENODEV, "its parent device is gone")));
        };
        if let Err(error) = self.apply_one(encode::create_link(link, parent))? {
            return Ok(Err(error));
        }
        self.refresh_link(link.name, true).map(Ok)
    }

    fn apply_one(&mut self, request: Request) -> io::Result<Result<(), NetlinkError>> {
        let mut result = Ok(());
        self.connection.apply([request], |_, error| result = Err(error))?;
        Ok(result)
    }

    /// Learns the state of a device we have just written, and marks what stands on it.
    fn refresh_link(&mut self, name: IfName, made_anew: bool) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_string()));
        if let Ok(answer) = self.connection.get(&RouteNetlinkMessage::GetLink(message))?
            && let Some(Observed::Link(link)) = Observed::read(answer)
        {
            self.links.put(link);
            self.facts_changed = true;
        }
        if made_anew {
            self.wanted.soil_link(name);
        } else {
            // Down and up, or another MAC, has cost what stood on it.
            self.resync_due = true;
        }
        Ok(())
    }

    fn flush_entries(&mut self, now: Instant) -> io::Result<()> {
        let batch = self.wanted.batch();
        let indices: BTreeMap<IfName, u32> =
            self.links.iter().map(|(link, _)| (link.name, link.index)).collect();
        let mut failures = BTreeMap::new();
        let mut sent = Vec::new();
        let requests = self.wanted.entries(&batch).filter_map(|(key, entry)| {
            match write(entry, &indices) {
                Write::Request(request) => {
                    sent.push(key);
                    return Some(request);
                }
                Write::Done(Ok(())) => {}
                Write::Done(Err(error)) => drop(failures.insert(key.clone(), error)),
                // Devices come before everything else; one that is marked only now has its turn next.
                Write::Elsewhere => drop(failures.insert(key.clone(), "not made yet".to_owned())),
            }
            None
        });
        let mut refused = Vec::new();
        self.connection.apply(requests, |at, error| refused.push((at, error)))?;
        failures.extend(refused.into_iter().map(|(at, e)| (sent[at].clone(), e.to_string())));
        self.wanted.written(batch, &failures.keys().cloned().collect());
        for (key, error) in failures {
            self.note_failure(&key, error, now);
        }
        Ok(())
    }

    fn flush_doomed(&mut self) -> io::Result<()> {
        if self.doomed.is_empty() {
            return Ok(());
        }
        let mut doomed = std::mem::take(&mut self.doomed);
        doomed.sort_by(|(a, _), (b, _)| b.cmp(a));
        let (keys, requests): (Vec<Key>, Vec<Request>) = doomed.into_iter().unzip();
        let mut failed = Vec::new();
        self.connection.apply(requests, |at, error| failed.push((at, error)))?;
        for (at, error) in failed {
            if !is_already_gone(&error) {
                tracing::warn!("cannot remove {}: {error}", keys[at]);
            }
        }
        // What was removed may have been in the way of the entry it stood for.
        for key in &keys {
            self.wanted.retry(key);
        }
        for key in &keys {
            if let Key::Link(name) = key
                && let Some(index) = self.links.index(*name)
            {
                self.links.remove(index);
                self.facts_changed = true;
            }
        }
        if keys.len() <= 3 {
            for key in keys {
                tracing::debug!("removed {key}");
            }
        } else {
            tracing::debug!("removed {} entries", keys.len());
        }
        Ok(())
    }

    fn note_failure(&mut self, key: &Key, error: String, now: Instant) {
        let entry = self.wanted.get(key).map(ToString::to_string);
        let retry = self.wanted.failed(key, error.clone(), now, &mut self.rng);
        if let (Some(entry), Some((pause, true))) = (entry, retry) {
            self.repairs.failed(&entry, &error, pause, now);
        }
    }
}

/// How an entry gets into the kernel.
enum Write {
    Request(Request),
    Done(Result<(), String>),
    Elsewhere,
}

fn write(entry: &Entry, indices: &BTreeMap<IfName, u32>) -> Write {
    let index = match entry.link().map(|name| indices.get(&name).ok_or(name)) {
        Some(Ok(index)) => *index,
        Some(Err(name)) if !matches!(entry, Entry::Link(_)) => {
            return Write::Done(Err(format!("device {name} is not there")));
        }
        _ => 0,
    };
    Write::Request(match entry {
        Entry::Link(_) => return Write::Elsewhere,
        Entry::Sysctl(sysctl) => {
            return Write::Done(settings::set_sysctl(sysctl).map_err(|e| e.to_string()));
        }
        Entry::Offload(offload) => {
            return Write::Done(settings::set_offload(offload).map_err(|e| e.to_string()));
        }
        Entry::Blackhole(e) => encode::put_blackhole(e.dst, e.metric),
        Entry::Address(e) => encode::put_address(index, e.addr),
        Entry::Neighbour(e) => encode::put_neighbour(index, e.ip, e.mac),
        Entry::Fdb(e) => encode::put_fdb(index, e.mac, e.dst),
        Entry::Route(e) => encode::put_route(e, index),
    })
}

fn is_already_gone(error: &NetlinkError) -> bool {
    matches!(error.errno, libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::EADDRNOTAVAIL)
}
