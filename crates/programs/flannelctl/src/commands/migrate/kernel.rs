//! What there is in the kernel beside what flannel-rs would want there.

use std::collections::BTreeMap;

use flannel_common::IfName;
use flannel_entries::kernel::{Entry, Link, LinkKind, ROUTE_PROTOCOL, Route};
use flannel_kernel::look::{Device, FoundRoute, Kernel};
use ipnet::IpNet;

use super::Findings;
use super::MigrationVerdict::{Changes, InTheWay, Stays};
use crate::commands::check::few;

/// Of those by which a device leads to its own network.
const KERNEL: u8 = 2;

pub(super) fn look(
    findings: &mut Findings,
    wanted: &[Entry],
    networks: &[IpNet],
    ours: &[IfName],
) -> anyhow::Result<()> {
    let mut kernel = Kernel::open()?;
    for entry in wanted {
        if let Entry::Link(link) = entry {
            device(findings, link, kernel.device(link.name.as_str()));
        }
    }
    let routes = kernel.routes()?;
    let mut to: BTreeMap<IpNet, Vec<&FoundRoute>> = BTreeMap::new();
    routes.iter().for_each(|route| to.entry(route.dst).or_default().push(route));
    let mut changes = RouteChanges::default();
    let mut wished: Vec<IpNet> = Vec::new();
    for entry in wanted {
        if let Entry::Route(route) = entry {
            wished.push(route.dst);
            changes.compare(route, to.get(&route.dst).map_or(&[][..], Vec::as_slice));
        }
    }
    let is_ours = |link: &str| ours.iter().any(|name| name.as_str() == link);
    for route in &routes {
        let inside = networks.iter().any(|network| network.contains(&route.dst));
        let stale = inside && !wished.contains(&route.dst);
        if stale && is_ours(&route.link) && route.protocol != KERNEL {
            changes.stale.push(format!("{} dev {}", route.dst, route.link));
        }
    }
    changes.tell(findings);
    Ok(())
}

fn device(findings: &mut Findings, link: &Link, found: Option<&Device>) {
    let (name, kind) = (link.name, link.kind.kind());
    let Some(found) = found else {
        let text = format!("{name} is not there, and is made");
        return findings.add("devices", Changes, text);
    };
    let has = &found.kind;
    if has != kind {
        let text = format!(
            "{name} is wanted as a {kind} device, and is {}: flannel-rs would recreate it; rename or remove it, it is \
             not flannel's",
            if has.is_empty() { "no such device".to_owned() } else { format!("a {has}") }
        );
        return findings.add("devices", InTheWay, text);
    }
    if let LinkKind::Vxlan(vxlan) = &link.kind
        && found.vxlan.as_ref().is_some_and(|found| found.vni != vxlan.vni)
    {
        let text = format!("{name} has another VNI and is recreated, with the same address");
        return findings.add("devices", Changes, text);
    }
    match found.mtu {
        mtu if mtu != link.mtu => {
            let text = format!("{name} is kept, and its MTU becomes {} instead of {mtu}", link.mtu);
            findings.add("devices", Changes, text);
        }
        _ => findings.add("devices", Stays, format!("{name} is kept, with its address")),
    }
}

#[derive(Default)]
struct RouteChanges {
    kept: usize,
    marked: usize,
    metric: Vec<String>,
    added: Vec<String>,
    stale: Vec<String>,
    foreign: Vec<String>,
}

impl RouteChanges {
    fn compare(&mut self, wanted: &Route, found: &[&FoundRoute]) {
        let dst = wanted.dst;
        let same = found.iter().find(|it| it.link == wanted.link.as_str() && it.via == wanted.via);
        match same {
            Some(route) if route.metric != wanted.metric => {
                self.metric.push(format!("{dst} ({} → {})", route.metric, wanted.metric));
            }
            Some(route) if route.protocol == ROUTE_PROTOCOL => self.kept += 1,
            Some(_) => self.marked += 1,
            None => match found.iter().find(|it| it.protocol != KERNEL) {
                Some(other) => {
                    let via = other.via.map(|via| format!(" via {via}")).unwrap_or_default();
                    self.foreign.push(format!("{dst}{via} dev {}", other.link));
                }
                None => self.added.push(dst.to_string()),
            },
        }
    }

    fn tell(self, findings: &mut Findings) {
        let Self { kept, marked, metric, added, stale, foreign } = self;
        if kept > 0 {
            findings.add("routes", Stays, format!("{kept} are kept as they are"));
        }
        if marked > 0 {
            let text = format!(
                "{marked} are kept and get the protocol {ROUTE_PROTOCOL}, by which they are known"
            );
            findings.add("routes", Changes, text);
        }
        let mut tell = |verdict, what: &str, all: &[String]| {
            if !all.is_empty() {
                findings.add("routes", verdict, format!("{} {what}: {}", all.len(), few(all)));
            }
        };
        tell(Changes, "are kept with another metric", &metric);
        tell(Changes, "are missing and are made", &added);
        tell(Changes, "lead to no node and are removed", &stale);
        let why = "lead peers' packets elsewhere, and are not flannel's: remove them";
        tell(InTheWay, why, &foreign);
    }
}
