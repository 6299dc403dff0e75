//! What must be true of a cluster: some of it always, the rest when nothing has happened for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use flannel_lease::Subnet;
use ipnet::IpNet;

use crate::clib;
use crate::cluster::{Acknowledged, Cluster};
use crate::host::SERVER;
use crate::kernel::{CARD, FlannelRoute, flannel_routes};

/// Changes of a kernel that a node may make in an hour, whatever happens.
const KERNEL_WRITES_PER_HOUR: u64 = 20_000;
/// Writes to connections that a node may make in an hour, whatever happens.
const MESSAGES_PER_HOUR: u64 = 20_000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("two living machines have {subnet}: {one} and {other}")]
    SharedSubnet { subnet: Subnet, one: String, other: String },
    #[error("the acknowledged lease of {0} is lost")]
    LostLease(Subnet),
    #[error("the acknowledged config is lost: {before:?} became {after:?}")]
    LostConfig { before: Option<String>, after: Option<String> },
    #[error("{by} removed its route to {dst}, where {holder} lives")]
    RouteRemoved { by: String, dst: IpNet, holder: String },
    #[error("{host} had {before} and now has {after}, which nobody told it to")]
    OtherSubnet { host: String, before: Subnet, after: Subnet },
    #[error("flanneld of {host} has ended by itself: {why}")]
    Ended { host: String, why: String },
    #[error("{0} has no lease after the quiet")]
    NoLease(String),
    #[error("the lease server does not run after the quiet")]
    NoServer,
    #[error("{host} has {subnet}, which the store does not have for it")]
    NotStored { host: String, subnet: Subnet },
    #[error("{host} is not as wanted after the quiet: it lacks {missing:?} and has {surplus:?}")]
    Kernel { host: String, missing: Vec<FlannelRoute>, surplus: Vec<FlannelRoute> },
    #[error("{host} lacks {what} for {subnet}")]
    Entry { host: String, what: &'static str, subnet: Subnet },
    #[error("{host} has made {count} {what} in {time:?}: a storm")]
    Storm { host: String, what: &'static str, count: u64, time: Duration },
}

/// What is known of a cluster so far.
#[derive(Default)]
pub(crate) struct Invariants {
    /// Subnets that may be held twice: an operator gave them away, or their holder was away for longer than a lease.
    pub(crate) given_away: BTreeSet<Subnet>,
    /// Subnets that an operator or time has freed since the lease server last ended.
    pub(crate) freed: BTreeSet<Subnet>,
    /// What is to be found when the lease server runs again.
    after_restart: Option<Acknowledged>,
    /// What the lease server that runs had when it was last looked at.
    last_stored: Option<Acknowledged>,
    subnets: BTreeMap<usize, Subnet>,
    /// Until then an operator's change moves routes.
    pub(crate) routes_move_until: Duration,
}

impl Invariants {
    pub(crate) fn check(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        self.check_programs(cluster)?;
        self.check_subnets(cluster)?;
        self.check_acknowledged(cluster)?;
        self.check_removals(cluster)?;
        check_storms(cluster)
    }

    fn check_programs(&self, cluster: &Cluster) -> Result<(), Violation> {
        for host in &cluster.hosts {
            if let Some(why) = host.program_ended.take() {
                return Err(Violation::Ended { host: host.name(), why });
            }
        }
        Ok(())
    }

    fn check_subnets(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        let mut holders: BTreeMap<Subnet, usize> = BTreeMap::new();
        for number in cluster.nodes() {
            let Some(subnet) = cluster.subnet_of(number) else { continue };
            if let Some(before) = self.subnets.insert(number, subnet)
                && before != subnet
                && !self.given_away.contains(&before)
            {
                let host = cluster.hosts[number].name();
                return Err(Violation::OtherSubnet { host, before, after: subnet });
            }
            if let Some(other) = holders.insert(subnet, number)
                && !self.given_away.contains(&subnet)
            {
                let name = |number: usize| cluster.hosts[number].name();
                let (one, other) = (name(other), name(number));
                return Err(Violation::SharedSubnet { subnet, one, other });
            }
        }
        Ok(())
    }

    /// What was acknowledged stays, and when the lease server ended, is there when it runs again.
    fn check_acknowledged(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        let Some(now) = cluster.stored() else {
            if self.last_stored.take().is_some() {
                self.after_restart = Some(cluster.acknowledged.borrow().clone());
            }
            return Ok(());
        };
        let restarted = self.after_restart.take();
        let is_restart = restarted.is_some();
        let before = restarted.or_else(|| self.last_stored.take());
        self.last_stored = Some(now.clone());
        let Some(before) = before else { return Ok(()) };
        if is_restart && before.config != now.config {
            return Err(Violation::LostConfig { before: before.config, after: now.config });
        }
        let is_kept =
            |subnet: &Subnet| now.leases.contains_key(subnet) || self.freed.contains(subnet);
        match before.leases.keys().find(|subnet| !is_kept(subnet)) {
            Some(lost) => Err(Violation::LostLease(*lost)),
            None => Ok(()),
        }
    }

    /// No node takes a route away that leads to where its peer lives.
    fn check_removals(&self, cluster: &Cluster) -> Result<(), Violation> {
        for number in cluster.nodes() {
            let host = &cluster.hosts[number];
            let removed = host.kernel.removed_routes.take();
            if clib::elapsed() < self.routes_move_until {
                continue;
            }
            let there = flannel_routes(&host.kernel.state.borrow());
            for route in removed {
                let is_back = there.iter().any(|it| it.dst == route.dst);
                // One that leads where the peer was before may go.
                let leads_to = |peer: usize| {
                    let ip = IpAddr::V4(cluster.hosts[peer].ip.get());
                    route.via == Some(ip) || route.via == Some(route.dst.network())
                };
                let holder = cluster.nodes().find(|peer| {
                    let subnet = cluster.subnet_of(*peer).and_then(|subnet| subnet.v4());
                    *peer != number && subnet.map(IpNet::V4) == Some(route.dst) && leads_to(*peer)
                });
                let Some(holder) = holder.filter(|_| !is_back) else { continue };
                let stored = cluster.stored().is_none_or(|stored| {
                    stored.leases.keys().any(|subnet| subnet.v4().map(IpNet::V4) == Some(route.dst))
                });
                if stored && cluster.runs(number) {
                    let (by, holder) = (host.name(), cluster.hosts[holder].name());
                    return Err(Violation::RouteRemoved { by, dst: route.dst, holder });
                }
            }
        }
        Ok(())
    }

    /// Every node has a lease, and every kernel is what store and config make of it.
    pub(crate) fn check_settled(&self, cluster: &Cluster) -> Result<(), Violation> {
        let stored = cluster.stored().ok_or(Violation::NoServer)?;
        let config = stored.config.as_deref().unwrap_or_default();
        let is_vxlan = config.contains("vxlan");
        for number in cluster.nodes() {
            let host = &cluster.hosts[number];
            if !host.is_up.get() {
                continue;
            }
            let Some(own) = cluster.subnet_of(number) else {
                return Err(Violation::NoLease(host.name()));
            };
            let lease = stored.leases.get(&own);
            if lease.and_then(|lease| lease.attrs.public_ip) != Some(host.ip.get()) {
                return Err(Violation::NotStored { host: host.name(), subnet: own });
            }
            let device = if is_vxlan { host.kernel.link_index("flannel.1") } else { Some(CARD) };
            let peers: Vec<_> = stored
                .leases
                .iter()
                .filter(|(subnet, lease)| **subnet != own && !lease.attrs.backend_type.is_empty())
                .filter_map(|(subnet, lease)| Some((*subnet, subnet.v4()?, lease.attrs.public_ip?)))
                .collect();
            let route =
                |(_, net, ip): &(Subnet, ipnet::Ipv4Net, std::net::Ipv4Addr)| FlannelRoute {
                    dst: IpNet::V4(*net),
                    via: Some(IpAddr::V4(if is_vxlan { net.network() } else { *ip })),
                    link: device,
                };
            let mut wanted: Vec<FlannelRoute> = peers.iter().map(route).collect();
            wanted.sort();
            let there = flannel_routes(&host.kernel.state.borrow());
            if wanted != there {
                let lacks = |all: &[FlannelRoute], some: &[FlannelRoute]| {
                    some.iter().filter(|it| !all.contains(it)).cloned().collect()
                };
                return Err(Violation::Kernel {
                    host: host.name(),
                    missing: lacks(&there, &wanted),
                    surplus: lacks(&wanted, &there),
                });
            }
            for (subnet, net, ip) in peers.iter().filter(|_| is_vxlan) {
                let has = |ip: IpAddr| host.kernel.has_neighbour_entry(ip);
                for (what, ip) in [("a neighbour", net.network()), ("a forwarding entry", *ip)] {
                    if !has(IpAddr::V4(ip)) {
                        return Err(Violation::Entry { host: host.name(), what, subnet: *subnet });
                    }
                }
            }
        }
        Ok(())
    }
}

/// No node writes without end.
fn check_storms(cluster: &Cluster) -> Result<(), Violation> {
    let time = clib::elapsed();
    let hours = 1 + time.as_secs() / 3_600;
    for number in cluster.nodes().filter(|number| *number != SERVER) {
        let host = &cluster.hosts[number];
        let counts = [
            ("changes of its kernel", host.kernel.writes.get(), KERNEL_WRITES_PER_HOUR),
            ("writes to its connections", cluster.network.sent(number), MESSAGES_PER_HOUR),
        ];
        for (what, count, most) in counts {
            if count > most * hours {
                return Err(Violation::Storm { host: host.name(), what, count, time });
            }
        }
    }
    Ok(())
}
