//! Comparison with the kernel: what is as wanted, what must be written, what must go.

use std::time::Instant;

use flannel_common::IfName;
use flannel_entries::kernel::{Entry, Key, Link, ROUTE_PROTOCOL, Route};
use flannel_netlink::Request;
use flannel_wanted::Repair;
use ipnet::IpNet;

use super::Reconciler;
use crate::encode;
use crate::link_plan::{LinkContext, LinkPlan, plan_link};
use crate::observed::{
    Event, Hop, Observed, ObservedFdb, ObservedLink, ObservedNeighbour, ObservedRoute, RouteKind,
};
use crate::ownership::{self, PROTOCOL_KERNEL};
use crate::settings;
use crate::wanted;

impl<S: Ord + Clone> Reconciler<S> {
    pub(super) fn hear(&mut self, event: Event, by: u32, now: Instant) {
        match event {
            Event::New(Observed::Link(link)) => self.hear_link(link),
            Event::Gone(Observed::Link(link)) => {
                let concerned = self.concerns_pods(link.index);
                if self.links.remove(link.index) {
                    self.node_changed(concerned);
                    self.resync_due |= self.is_referenced(link.name);
                    self.forget_routes_over(link.index, true);
                }
            }
            Event::New(Observed::Address(link, address)) => {
                let addr = address.addr;
                if self.links.put_address(link, address) {
                    self.node_changed(self.concerns_pods(link));
                }
                if let Some(name) = self.links.name(link)
                    && self.ownership.links.contains(&name)
                {
                    self.compare_address(link, name, addr);
                }
            }
            Event::Gone(Observed::Address(link, address)) => {
                let concerned = self.concerns_pods(link);
                if self.links.remove_address(link, address.addr) {
                    self.node_changed(concerned);
                    self.forget_routes_over(link, false);
                }
                // Routes that needed this address have vanished without a notification. It may be one
                // that we wrote and did not hear of.
                let name = self.links.name(link);
                self.resync_due |= name.is_some_and(|name| self.is_referenced(name));
            }
            Event::New(Observed::Route(route)) => {
                let known = self.compare_route(&route, false, now);
                self.note_foreign_route(&route, known, true);
            }
            Event::Gone(Observed::Route(route)) => {
                let key = Key::Route(route.dst, route.metric);
                let wanted = self.route_matches(&key, &route);
                if wanted == Some(true) {
                    self.missing(&key, by, now);
                }
                self.note_foreign_route(&route, wanted.is_some(), false);
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

    pub(super) fn hear_link(&mut self, link: ObservedLink) {
        let (name, index, former) = (link.name, link.index, self.links.name(link.index));
        let up = link.up;
        if !self.links.put(link) {
            return;
        }
        if !up {
            self.forget_routes_over(index, false);
        }
        let referenced =
            self.is_referenced(name) || former.is_some_and(|former| self.is_referenced(former));
        self.node_changed(referenced || self.concerns_pods(index));
        self.resync_due |= referenced;
    }

    /// Notes a changed device or address: refused writes may succeed now, and it may decide about packets of pods.
    fn node_changed(&mut self, concerns_pods: bool) {
        self.facts_changed = true;
        if concerns_pods {
            self.watch.look_at_everything();
        }
        self.wanted.retry_failed();
    }

    pub(super) fn is_referenced(&self, name: IfName) -> bool {
        self.ownership.links.contains(&name) || wanted::refers_to(&self.wanted, name)
    }

    /// Notes that a route that is not ours has changed: paths to peers may have changed too.
    pub(super) fn note_foreign_route(&mut self, route: &ObservedRoute, wanted: bool, come: bool) {
        if wanted || route.protocol == ROUTE_PROTOCOL {
            return;
        }
        self.note_foreign(route, come);
        // Every device has one of its own; no peer is behind it.
        if !is_link_local(route.dst) {
            self.routing_version += 1;
            self.facts_changed = true;
        }
        // The list of default routes is read again with everything else: this is rare.
        self.resync_due |= route.dst.prefix_len() == 0;
    }

    pub(super) fn link_context(&self) -> LinkContext<'_> {
        LinkContext {
            links: &self.links,
            ownership: &self.ownership,
            default_port: settings::default_vxlan_port(),
        }
    }

    pub(super) fn compare_links(&mut self, now: Instant) {
        let links: Vec<Link> = wanted::links(&self.wanted).cloned().collect();
        for link in links {
            let key = Key::Link(link.name);
            let is_as_wanted = matches!(plan_link(&link, self.link_context()), LinkPlan::Keep);
            self.note_found(&key, is_as_wanted, 0, now);
        }
        let orphans: Vec<(IfName, u32)> = self
            .links
            .iter()
            .filter(|(link, addresses)| {
                self.wanted.get(&Key::Link(link.name)).is_none()
                    && ownership::owns_orphan(&self.ownership, link, addresses)
            })
            .map(|(link, _)| (link.name, link.index))
            .collect();
        for (name, index) in orphans {
            self.removals.push((Key::Link(name), Request::delete_link(index)));
        }
    }

    pub(super) fn compare_address(&mut self, link: u32, name: IfName, addr: IpNet) {
        let key = Key::Address(name, addr);
        if self.wanted.get(&key).is_some() {
            self.wanted.seen(&key);
        } else if self.ownership.is_within(addr) {
            self.removals.push((key, Request::delete_address(link, addr)));
        }
    }

    pub(super) fn compare_neighbour(&mut self, neighbour: &ObservedNeighbour, now: Instant) {
        let Some(name) = self.links.name(neighbour.link) else { return };
        let key = Key::Neighbour(name, neighbour.ip);
        match self.wanted.get(&key) {
            Some(Entry::Neighbour(wanted)) => {
                let is_as_wanted = neighbour.permanent && neighbour.mac == Some(wanted.mac);
                self.note_found(&key, is_as_wanted, 0, now);
            }
            _ if ownership::owns_neighbour(&self.ownership, name, neighbour.permanent) => {
                self.removals.push((key, encode::delete_neighbour(neighbour.link, neighbour.ip)));
            }
            _ => {}
        }
    }

    pub(super) fn compare_fdb(&mut self, fdb: &ObservedFdb, now: Instant) {
        let Some(name) = self.links.name(fdb.link) else { return };
        let key = Key::Fdb(name, fdb.mac);
        let odd = match self.wanted.get(&key) {
            Some(Entry::Fdb(wanted)) if wanted.dst == fdb.dst => {
                self.note_found(&key, fdb.permanent, 0, now);
                false
            }
            Some(_) => {
                // A forwarding entry may have several destinations: ours is written, this one goes.
                self.missing(&key, 0, now);
                true
            }
            None => ownership::owns_neighbour(&self.ownership, name, fdb.permanent),
        };
        if odd {
            self.removals.push((key, encode::delete_fdb(fdb.link, fdb.mac, Some(fdb.dst))));
        }
    }

    /// Compares a route. Returns whether it is one of ours.
    pub(super) fn compare_route(
        &mut self,
        route: &ObservedRoute,
        taking_over: bool,
        now: Instant,
    ) -> bool {
        let key = Key::Route(route.dst, route.metric);
        match self.route_matches(&key, route) {
            Some(true) => {
                self.wanted.seen(&key);
                true
            }
            Some(false) if self.is_connected(route) => {
                // The connected route came later; ours would win over it, so ours is removed and not rewritten.
                self.missing(&key, 0, now);
                self.removals.push((key, encode::delete_our_route(route.dst, route.metric)));
                false
            }
            Some(false) => {
                self.missing(&key, 0, now);
                // Ours replaces it in place, unless both coexist. The removal of one that leads where
                // ours does would find ours.
                let plain = ObservedRoute { has_extras: false, ..route.clone() };
                if route.hops.len() == 1 && self.route_matches(&key, &plain) != Some(true) {
                    self.removals.push((key, encode::delete_route(route)));
                }
                true
            }
            None => {
                let ours = ownership::owns_route(&self.ownership, route, &self.links, taking_over)
                    || route.protocol == ROUTE_PROTOCOL && self.released.contains(&key);
                if ours {
                    self.removals.push((key, encode::delete_route(route)));
                }
                ours
            }
        }
    }

    /// Whether the kernel made the route for an address of a device that is not ours.
    fn is_connected(&self, route: &ObservedRoute) -> bool {
        route.protocol == PROTOCOL_KERNEL
            && self.links.connected(&self.ownership.links).contains_key(&route.dst)
    }

    /// Whether the route is as wanted; `None` if no route of this key is wanted.
    pub(super) fn route_matches(&self, key: &Key, route: &ObservedRoute) -> Option<bool> {
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
        let bare = route.tos == 0 && !route.has_extras;
        Some(as_wanted && bare && route.protocol == ROUTE_PROTOCOL)
    }

    pub(super) fn compare_settings(&mut self, now: Instant) {
        let keys = self.wanted.unseen(|key| found_by(key) == FoundBy::Reading);
        for key in keys {
            let set = match self.wanted.get(&key) {
                Some(Entry::Sysctl(sysctl)) => settings::sysctl_is_set(sysctl),
                Some(Entry::Offload(offload)) => settings::offload_is_set(offload),
                // `found_by` names all that are read.
                _ => continue,
            };
            self.note_found(&key, set, 0, now);
        }
    }

    pub(super) fn note_found(&mut self, key: &Key, is_as_wanted: bool, by: u32, now: Instant) {
        if is_as_wanted { self.wanted.seen(key) } else { self.missing(key, by, now) }
    }

    pub(super) fn missing(&mut self, key: &Key, by: u32, now: Instant) {
        if self.wanted.get(key).is_none() {
            return;
        }
        let repair = self.wanted.disturbed(key, now, &mut self.rng);
        if repair == Repair::AlreadyDue {
            return;
        }
        let who = self.repairs.culprit(by);
        if let Some(who) = &who {
            self.wanted.undone_by(key, who.clone());
        }
        match repair {
            Repair::Now => self.repairs.undone(key, who, now),
            Repair::Later(pause) => self.repairs.leave_alone(key, who.as_deref(), pause, now),
            Repair::AlreadyDue => {}
        }
    }
}

fn is_link_local(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    }
}

/// How a comparison with the kernel comes across an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundBy {
    Plan,
    Listing,
    Reading,
}

pub(super) fn found_by(key: &Key) -> FoundBy {
    match key {
        Key::Link(_) => FoundBy::Plan,
        Key::Offload(_) | Key::Sysctl(_) => FoundBy::Reading,
        Key::Wireguard(_)
        | Key::WireguardPeer(..)
        | Key::Policy(..)
        | Key::Address(..)
        | Key::Neighbour(..)
        | Key::Fdb(..)
        | Key::Route(..) => FoundBy::Listing,
    }
}
