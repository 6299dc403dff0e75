//! Looks for hazards with every comparison and relevant change. Only paths that may have changed are looked up.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_common::{Family, IfName};
use flannel_entries::devices::is_test_pod_name;
use flannel_entries::kernel::{Entry, Key, Route};
use ipnet::IpNet;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Reconciler;
use crate::encode::{self, dump};
use crate::hazards::{Hazard, describe, first_host};
use crate::observed::{ObservedRoute, RouteKind, destination};
use crate::{settings, wanted};

/// Pause between two looks: if something changes all the time, looking takes a twentieth of a processor at most.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_PER_WORK: u32 = 20;
/// Number of hazards in the log, and in the status: an operator reads the first few.
const MAX_LOGGED: usize = 5;
const MAX_HAZARDS: usize = 100;
/// Number of peers whose paths are sampled where nothing but the main table decides.
const SAMPLE: usize = 64;

const TABLE_DEFAULT: u32 = 253;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;

#[derive(Default)]
pub(super) struct HazardWatch {
    /// Routes into our networks that are not ours.
    pub(super) foreign: Vec<ObservedRoute>,
    pub(super) hazards: BTreeSet<Hazard>,
    /// Found once. A diversion that is about to be repaired is not found a second time.
    suspects: BTreeSet<Hazard>,
    due: HazardScope,
    not_before: Option<Instant>,
}

#[derive(Default)]
struct HazardScope {
    everything: bool,
    /// Else the paths to these peers, perhaps none.
    peers: BTreeSet<IpNet>,
}

impl HazardWatch {
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.has_due())
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.has_due() && self.not_before.is_none_or(|at| at <= now)
    }

    fn has_due(&self) -> bool {
        self.due.everything || !self.due.peers.is_empty()
    }

    pub(super) fn look_at_everything(&mut self) {
        self.due.everything = true;
    }

    pub(super) fn look_at<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        for key in keys {
            match key {
                Key::Route(dst, _) if !self.due.everything => drop(self.due.peers.insert(*dst)),
                // Routes on it, and packets that come in by it, may be diverted.
                Key::Address(..) | Key::Link(_) => self.look_at_everything(),
                _ => {}
            }
        }
    }
}

impl<S: Ord + Clone> Reconciler<S> {
    pub(super) fn note_foreign(&mut self, route: &ObservedRoute, come: bool) {
        if !self.ownership.is_within(route.dst) {
            return;
        }
        let same = |other: &ObservedRoute| {
            (other.dst, other.metric, other.tos) == (route.dst, route.metric, route.tos)
        };
        self.watch.foreign.retain(|other| !same(other));
        if come {
            self.watch.foreign.push(route.clone());
        } else {
            // There may have been another of the kind.
            let is_to_peer = self.peers_around(route.dst).next().is_some();
            self.resync_due |= is_to_peer;
        }
        self.watch.look_at_everything();
    }

    /// Notes that a device is gone, down or without an address: Linux does not tell of IPv4 routes that go with it.
    pub(super) fn forget_routes_over(&mut self, link: u32, device_gone: bool) {
        let foreign = &mut self.watch.foreign;
        let leads_over = |route: &ObservedRoute| route.hops.iter().any(|hop| hop.link == link);
        if !foreign.iter().any(leads_over) && self.watch.hazards.is_empty() {
            return;
        }
        if device_gone {
            for route in foreign.iter_mut().filter(|route| leads_over(route)) {
                route.hops.retain(|hop| hop.link != link);
            }
            // Routes that never had a hop, such as blackholes, stay.
            foreign.retain(|route| !route.hops.is_empty() || route.kind != RouteKind::Unicast);
        } else {
            // It depends on the route. One inside this node's own subnet does not affect a peer.
            let over: Vec<IpNet> =
                foreign.iter().filter(|r| leads_over(r)).map(|r| r.dst).collect();
            let leads_there = |dst| self.peers_around(dst).next().is_some();
            let is_to_peer = over.into_iter().any(leads_there);
            self.resync_due |= is_to_peer;
        }
        self.watch.look_at_everything();
    }

    /// Whether this device decides about packets of pods: entries are on it, or it has an address of our networks.
    pub(super) fn concerns_pods(&self, link: u32) -> bool {
        let addresses = self.links.addresses(link).iter();
        self.links.name(link).is_some_and(|name| self.is_referenced(name))
            || addresses.into_iter().any(|address| self.ownership.is_within(address.addr))
    }

    pub(super) fn decides(&self, message: &RouteNetlinkMessage) -> bool {
        use RouteNetlinkMessage as M;
        match message {
            M::NewRoute(route) | M::DelRoute(route) => {
                destination(route).is_some_and(|dst| self.ownership.overlaps(dst))
            }
            M::NewRule(_) | M::DelRule(_) => true,
            _ => false,
        }
    }

    pub(super) fn look_for_hazards(&mut self) -> io::Result<()> {
        let mut due = std::mem::take(&mut self.watch.due);
        let begin = Instant::now();
        let mut hazards = self.settings_off();
        hazards.extend(self.hazards_in_main_table());
        if hazards.is_empty() {
            if self.watch.hazards.iter().any(|hazard| hazard.diverted_peer().is_none()) {
                // While there were others, diverted peers were not looked for.
                due.everything = true;
            }
            hazards = self.confirmed(&due)?;
        }
        hazards.truncate(MAX_HAZARDS);
        let hazards: BTreeSet<Hazard> = hazards.into_iter().collect();
        let new: Vec<&Hazard> = hazards.difference(&self.watch.hazards).collect();
        for hazard in new.iter().take(MAX_LOGGED) {
            tracing::warn!("{}", hazard.finding());
        }
        if new.len() > MAX_LOGGED {
            tracing::warn!("and {} more of the kind", new.len() - MAX_LOGGED);
        }
        for over in self.watch.hazards.difference(&hazards).take(MAX_LOGGED) {
            tracing::info!("no longer so: {}", over.finding());
        }
        self.watch.hazards = hazards;
        let pause = (begin.elapsed() * PAUSE_PER_WORK).max(LOOK_PAUSE);
        self.watch.not_before = Some(Instant::now() + pause);
        Ok(())
    }

    fn hazards_in_main_table(&self) -> Vec<Hazard> {
        let (ownership, links, mut hazards) = (&self.ownership, &self.links, Vec::new());
        let others = links.iter().filter(|(link, _)| !ownership.links.contains(&link.name));
        for (link, addresses) in others {
            for address in addresses.iter().filter(|address| ownership.is_within(address.addr)) {
                let peer = self.peers_around(IpNet::from(address.addr.addr())).next();
                hazards.extend(peer.map(|route| Hazard::Address {
                    addr: address.addr,
                    link: link.name,
                    subnet: route.dst,
                }));
            }
        }
        for route in &self.watch.foreign {
            let before = self.peers_around(route.dst).find(|peer| {
                let narrower = route.dst.prefix_len() > peer.dst.prefix_len();
                let leads_there = route.kind == RouteKind::Unicast
                    && matches!(route.hops.as_slice(), [hop]
                        if links.name(hop.link) == Some(peer.link) && hop.via == peer.via);
                (narrower || route.metric < peer.metric) && !leads_there
            });
            hazards.extend(
                before
                    .map(|peer| Hazard::Route { route: describe(route, links), subnet: peer.dst }),
            );
        }
        hazards
    }

    /// Wanted routes of peers that lead to all of this network. A route to a whole pod network does not belong to a peer:
    /// it leads into a tunnel that knows the peers.
    fn peers_around(&self, net: IpNet) -> impl Iterator<Item = &Route> {
        (0..=net.prefix_len())
            .filter_map(move |length| IpNet::new(net.addr(), length).ok())
            .flat_map(move |around| wanted::routes_to(&self.wanted, around.trunc()))
            .filter_map(move |entry| match entry {
                Entry::Route(route) if self.ownership.leads_to_a_peer(route) => Some(route),
                _ => None,
            })
    }

    /// Settings that must not be 0 for packets to be forwarded between pods and peers.
    fn forwarding_settings(&self) -> Vec<String> {
        let mut settings = Vec::new();
        let mut devices: Vec<IfName> = wanted::carriers(&self.wanted, Family::V4).collect();
        if !devices.is_empty() {
            devices.extend(self.pods_devices().map(|(link, _)| link));
            settings.push("net/ipv4/ip_forward".to_owned());
            // The device that a packet comes in by decides whether it is forwarded.
            settings.extend(devices.iter().map(|name| format!("net/ipv4/conf/{name}/forwarding")));
        }
        if wanted::carriers(&self.wanted, Family::V6).next().is_some() {
            settings.push("net/ipv6/conf/all/forwarding".to_owned());
        }
        settings
    }

    /// Devices of others with an address of our network that does not belong to a peer: this node's pods are there.
    fn pods_devices(&self) -> impl Iterator<Item = (IfName, IpNet)> {
        self.links
            .iter()
            .filter(move |(link, _)| {
                link.up && link.carrier && !self.ownership.links.contains(&link.name)
            })
            .flat_map(|(link, addresses)| addresses.iter().map(|address| (link.name, address.addr)))
            .filter(move |(_, addr)| {
                addr.addr().is_ipv4()
                    && self.ownership.is_within(*addr)
                    && self.peers_around(IpNet::from(addr.addr())).next().is_none()
            })
    }

    fn settings_off(&self) -> Vec<Hazard> {
        let is_off = |sysctl: &String| settings::read_sysctl(sysctl).as_deref() == Some("0");
        let settings = self.forwarding_settings();
        // The setting of all devices covers each of them, so it is the one to name.
        let all = |sysctl: &String| !sysctl.contains("/conf/") && is_off(sysctl);
        let named = settings.iter().any(all);
        settings
            .into_iter()
            .filter(|sysctl| !(named && sysctl.starts_with("net/ipv4/conf/")) && is_off(sysctl))
            .map(|sysctl| Hazard::ForwardingOff { sysctl })
            .collect()
    }

    /// Diverted peers for which the previous look found the same.
    fn confirmed(&mut self, due: &HazardScope) -> io::Result<Vec<Hazard>> {
        let found: BTreeSet<Hazard> = self.diverted(due)?.into_iter().collect();
        let before = std::mem::replace(&mut self.watch.suspects, found.clone());
        let (mut sure, new): (Vec<Hazard>, Vec<Hazard>) = found
            .into_iter()
            .partition(|hazard| before.contains(hazard) || self.watch.hazards.contains(hazard));
        if due.everything {
            self.watch.due.everything |= !new.is_empty();
        } else {
            self.watch.due.peers = new.iter().filter_map(Hazard::diverted_peer).collect();
            // Nothing new is known of the others.
            let looked_at =
                |it: &&Hazard| it.diverted_peer().is_some_and(|peer| due.peers.contains(&peer));
            sure.extend(self.watch.hazards.iter().filter(|it| !looked_at(it)).cloned());
        }
        Ok(sure)
    }

    /// Peers whose packets are diverted by routing rules or by routes of other tables.
    fn diverted(&mut self, due: &HazardScope) -> io::Result<Vec<Hazard>> {
        let mut hazards = Vec::new();
        for family in Family::BOTH {
            let most = if self.rules_are_plain(family)? { SAMPLE } else { usize::MAX };
            let routes: Vec<Route> = self.routes_due(due, family).take(most).cloned().collect();
            // As this host sends, and as it forwards what pods send and get: rules may make a difference.
            let pods = self
                .pods_devices()
                .find_map(|(name, addr)| Some((self.a_pod(addr)?, name)))
                .filter(|_| family == Family::V4);
            for Route { dst, via, link, .. } in routes {
                if hazards.len() >= MAX_HAZARDS {
                    return Ok(hazards);
                }
                let peer = first_host(dst);
                let mut outward = self.other_way(peer, None, link, via)?;
                let mut inward = None;
                if let Some((pod, bridge)) = pods
                    && outward.is_none()
                {
                    outward = self.other_way(peer, Some((pod, bridge)), link, via)?;
                    inward = self.other_way(pod, Some((peer, link)), bridge, None)?;
                }
                hazards.extend(outward.map(|to| Hazard::Rule { subnet: dst, to }));
                hazards.extend(inward.map(|to| Hazard::RuleInward { subnet: dst, to }));
            }
        }
        Ok(hazards)
    }

    /// Routes to peers that are to be looked up. A missing one is another matter.
    fn routes_due<'a>(
        &'a self,
        due: &'a HazardScope,
        family: Family,
    ) -> impl Iterator<Item = &'a Route> {
        let entries: Box<dyn Iterator<Item = &'a Entry>> = if due.everything {
            Box::new(wanted::routes(&self.wanted, family))
        } else {
            let peers = due.peers.iter().filter(move |peer| Family::of(peer.addr()) == family);
            Box::new(peers.flat_map(|peer| wanted::routes_to(&self.wanted, *peer)))
        };
        entries.filter_map(|entry| match entry {
            Entry::Route(route) if self.ownership.leads_to_a_peer(route) => {
                (self.wanted.is_good(&entry.key()) == Some(true)).then_some(route)
            }
            _ => None,
        })
    }

    /// An address that a pod of this device may have: not the host's own, nor one with a route, such as a test pod's.
    fn a_pod(&self, addr: IpNet) -> Option<IpAddr> {
        let own = self.links.iter().flat_map(|(_, all)| all).map(|address| address.addr.addr());
        let routed = self.watch.foreign.iter().map(|route| route.dst);
        let routed = routed.filter(|dst| dst.prefix_len() == dst.max_prefix_len());
        let taken: BTreeSet<IpAddr> = own.chain(routed.map(|dst| dst.addr())).collect();
        addr.hosts().rev().take(taken.len() + 1).find(|ip| !taken.contains(ip))
    }

    /// Where packets go instead, if they do.
    fn other_way(
        &mut self,
        dst: IpAddr,
        from: Option<(IpAddr, IfName)>,
        link: IfName,
        via: Option<IpAddr>,
    ) -> io::Result<Option<String>> {
        let from = match from {
            Some((source, device)) => match self.links.index(device) {
                Some(index) => Some((source, index)),
                None => return Ok(None),
            },
            None => None,
        };
        Ok(match self.path(&encode::lookup_route(dst, from))? {
            Ok(path) if path.link == link && path.gateway == via => None,
            // It leads to a test pod of this node.
            Ok(path) if is_test_pod_name(path.link.as_str()) => None,
            Ok(path) => Some(match path.gateway {
                Some(gateway) => format!("via {gateway} dev {}", path.link),
                None => format!("to {}", path.link),
            }),
            Err(error) => Some(format!("nowhere ({error})")),
        })
    }

    /// Whether nothing but the main table decides.
    fn rules_are_plain(&mut self, family: Family) -> io::Result<bool> {
        let family = match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        };
        let read = |message| match message {
            RouteNetlinkMessage::NewRule(rule) => Some(rule_kind(&rule)),
            _ => None,
        };
        let kinds = match self.connection.dump(&dump::rules(family), read) {
            Ok(kinds) => kinds,
            // A kernel without rules, or without IPv6.
            Err(_) => return Ok(true),
        };
        Ok(kinds.contains(&RuleKind::Main) && !kinds.contains(&RuleKind::Other))
    }
}

#[derive(PartialEq)]
enum RuleKind {
    /// Looks everything up in the main table.
    Main,
    /// Leads to one of the three tables that always exist.
    Harmless,
    Other,
}

fn rule_kind(rule: &RuleMessage) -> RuleKind {
    let header = &rule.header;
    let mut table = u32::from(header.table);
    let mut selective = header.dst_len > 0 || header.src_len > 0 || header.tos > 0;
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Table(id) => table = *id,
            RuleAttribute::Priority(_) | RuleAttribute::Protocol(_) => {}
            // "None" is written as the largest number.
            RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            _ => selective = true,
        }
    }
    match (header.action, table) {
        (RuleAction::ToTable, TABLE_MAIN) if !selective => RuleKind::Main,
        (RuleAction::ToTable, TABLE_LOCAL | TABLE_MAIN | TABLE_DEFAULT) => RuleKind::Harmless,
        _ => RuleKind::Other,
    }
}
