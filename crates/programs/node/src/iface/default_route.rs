//! The interface the default route leads through, when nobody wished for another.

use flannel_entries::facts::Interface;

use super::address::{usable_v4, usable_v6};
use super::{Chooser, Family, Found, SelectError, is_own};

/// IPv4 metric, then IPv6 metric (0 on a network of one family).
type Metrics = (u32, u32);

impl<'a> Chooser<'a> {
    /// The interface of the best default route; of equally good ones, the first that has the addresses needed. A dual-stack
    /// network needs one with a route of each family, and the IPv4 metric counts first.
    pub(super) fn default_route(&self) -> Result<Found<'a>, SelectError> {
        let v4 = self.default_links(Family::V4);
        let v6 = self.default_links(Family::V6);
        let mut ranked: Vec<(Metrics, &Interface)> = match (self.stack.v4, self.stack.v6) {
            (true, false) => v4.into_iter().map(|(metric, link)| ((metric, 0), link)).collect(),
            (false, _) => v6.into_iter().map(|(metric, link)| ((metric, 0), link)).collect(),
            (true, true) => {
                let (first4, first6) = match (v4.first(), v6.first()) {
                    (Some(first4), Some(first6)) => (first4.1.name, first6.1.name),
                    (None, _) => return Err(SelectError::no_default_route(Family::V4)),
                    (_, None) => return Err(SelectError::no_default_route(Family::V6)),
                };
                let both: Vec<(Metrics, &Interface)> = v4
                    .iter()
                    .filter_map(|(metric, link)| {
                        let (other, _) = v6.iter().find(|(_, other)| other.index == link.index)?;
                        Some(((*metric, *other), *link))
                    })
                    .collect();
                if both.is_empty() {
                    return Err(SelectError(format!(
                        "no interface has a default route of both families: IPv4 leads through {first4}, IPv6 \
                         through {first6}; name the interface with -iface"
                    )));
                }
                both
            }
        };
        ranked.sort_by_key(|(metrics, link)| (*metrics, link.index));
        let family = if self.stack.v4 { Family::V4 } else { Family::V6 };
        let missing = || SelectError::no_default_route(family);
        let (best, first) = ranked.first().copied().ok_or_else(missing)?;
        let equal =
            ranked.iter().take_while(|(metrics, _)| *metrics == best).map(|(_, link)| *link);
        let interface = equal.into_iter().find(|link| self.has_addresses(link)).unwrap_or(first);
        let metric = match (self.stack.v4, self.stack.v6) {
            (true, true) => format!("metric {}, IPv6 {}", best.0, best.1),
            _ => format!("metric {}", best.0),
        };
        Ok(Found::new(interface, format!("the default route leads through it ({metric})")))
    }

    /// The interfaces default routes lead to, best metric first, each once.
    fn default_links(&self, family: Family) -> Vec<(u32, &'a Interface)> {
        let mut links: Vec<(u32, &Interface)> = self
            .facts
            .default_routes
            .iter()
            .filter(|route| route.ipv6 == (family == Family::V6) && !is_own(route.link))
            .filter_map(|route| Some((route.metric, self.facts.interface(route.link)?)))
            .collect();
        links.sort_by_key(|(metric, link)| (*metric, link.index));
        let mut seen = Vec::new();
        links.retain(|(_, link)| {
            let new = !seen.contains(&link.index);
            seen.push(link.index);
            new
        });
        links
    }

    pub(super) fn has_addresses(&self, interface: &Interface) -> bool {
        (!self.stack.v4 || usable_v4(interface).next().is_some())
            && (!self.stack.v6 || usable_v6(interface).next().is_some())
    }
}
