//! Reads everything in the kernel and compares it with the desired entries.

use std::io;
use std::time::Instant;

use flannel_entries::facts::DefaultRoute;
use netlink_packet_route::AddressFamily;

use super::compare::{FoundBy, found_by};
use super::{ROUTINE_RESYNC, Reconciler};
use crate::encode::dump;
use crate::links::Links;
use crate::observed::{Observed, ObservedLink, ObservedRoute, RouteKind, read_routes};

impl<S: Ord + Clone> Reconciler<S> {
    pub(super) fn read_links(&mut self) -> io::Result<()> {
        let before = self.links.interfaces();
        self.links = Links::default();
        for observed in self.connection.dump(&dump::links(), Observed::read)? {
            if let Observed::Link(link) = observed {
                self.links.put(link);
            }
        }
        for observed in self.connection.dump(&dump::addresses(), Observed::read)? {
            if let Observed::Address(link, address) = observed {
                self.links.put_address(link, address);
            }
        }
        self.facts_changed |= self.links.interfaces() != before;
        Ok(())
    }

    pub(super) fn read_routes(&mut self) -> io::Result<Vec<ObservedRoute>> {
        let routes = read_routes(&mut self.connection)?;
        let defaults = self.default_routes_of(&routes);
        if defaults != self.default_routes {
            self.default_routes = defaults;
            self.facts_changed = true;
        }
        Ok(routes)
    }

    pub(super) fn default_routes_of(&self, routes: &[ObservedRoute]) -> Vec<DefaultRoute> {
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

    /// Compares everything. With `taking_over`, unmarked routes of the Go flannel count as ours.
    pub(super) fn resync(&mut self, now: Instant, taking_over: bool) -> io::Result<()> {
        self.next_routine = Some(now + ROUTINE_RESYNC);
        self.resyncs += 1;
        self.wanted.begin_resync();
        self.read_links()?;
        self.compare_links(now);
        // Devices first: entries on them are then compared as they will be.
        let due = self.resync_due;
        self.flush_links(now)?;
        self.resync_due = due;
        let is_ours = |(link, _): &(&ObservedLink, _)| self.ownership.links.contains(&link.name);
        let addresses = self.links.iter().filter(is_ours);
        let addresses = addresses.flat_map(|(link, all)| all.iter().map(move |it| (link, it.addr)));
        let addresses: Vec<_> = addresses.map(|(link, it)| (link.index, link.name, it)).collect();
        for (link, name, addr) in addresses {
            self.compare_address(link, name, addr);
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
        self.watch.foreign.clear();
        for route in self.read_routes()? {
            if !self.compare_route(&route, taking_over, now) {
                self.note_foreign(&route, true);
            }
        }
        self.watch.look_at_everything();
        self.compare_wireguard(now)?;
        self.compare_policies(0, now)?;
        self.compare_settings(now);
        for key in self.wanted.unseen(|key| found_by(key) != FoundBy::Plan) {
            self.missing(&key, 0, now);
        }
        Ok(())
    }
}
