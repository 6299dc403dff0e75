//! What must be true of a cluster: some of it always, the rest when nothing has happened for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_state::Finding;
use ipnet::IpNet;

use crate::clib;
use crate::cluster::{Acknowledged, Cluster};
use crate::host::{Host, SERVER};
use crate::kernel::{CARD, FLANNEL_DEVICES, FlannelRoute, flannel_routes};

/// Changes of a kernel that a node may make in an hour, whatever happens.
const KERNEL_WRITES_PER_HOUR: u64 = 20_000;
/// Writes to connections that a node may make in an hour, whatever happens.
const MESSAGES_PER_HOUR: u64 = 20_000;
/// Leases that a network of so few machines has at most, beside one for each machine.
const SPARE_LEASES: usize = 16;
/// Bytes that the files of a machine may have.
const FILES_BYTES: u64 = 1 << 20;
/// Tasks that a machine may run.
const TASKS_PER_HOST: usize = 100;
/// Connections that a machine may have.
const CONNECTIONS_PER_HOST: usize = 50;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("two living machines have {subnet}: {one} and {other}")]
    SharedSubnet { subnet: Subnet, one: String, other: String },
    #[error("the acknowledged lease of {0} is lost")]
    LostLease(Subnet),
    #[error("the acknowledged reservation of {0} is lost")]
    LostReservation(Subnet),
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
    #[error("{host} lacks {what} for {net}")]
    Entry { host: String, what: &'static str, net: IpNet },
    #[error("{host} has made {count} {what} in {time:?}: a storm")]
    Storm { host: String, what: &'static str, count: u64, time: Duration },
    #[error("{host} has {count} {what}, and {most} are enough: it grows")]
    Growth { host: String, what: &'static str, count: u64, most: u64 },
    #[error("{0} does not say how it is")]
    Silent(String),
    #[error("{host} reports what is not so: {finding}")]
    FalseFinding { host: String, finding: Finding },
    #[error("{host} does not report {fault}; it reports {found:?}")]
    Unreported { host: String, fault: &'static str, found: Vec<String> },
}

/// What is known of a cluster so far.
#[derive(Default)]
pub(crate) struct Invariants {
    /// Subnets that may be held twice: an operator gave them away, or their holder was away for longer than a lease.
    pub(crate) given_away: BTreeSet<Subnet>,
    /// Subnets that an operator or time has freed since the lease server last ended.
    pub(crate) freed: BTreeSet<Subnet>,
    /// Subnets that an operator reserved once and freed.
    pub(crate) unreserved: BTreeSet<Subnet>,
    /// What is to be found when the lease server runs again.
    after_restart: Option<Rc<Acknowledged>>,
    /// What the lease server that runs had when it was last looked at.
    last_stored: Option<Rc<Acknowledged>>,
    was_restored: bool,
    /// What the operator last asked for.
    pub(crate) wanted_config: Option<String>,
    subnets: BTreeMap<usize, Subnet>,
    /// Machines that are on and have a subnet, when they were last looked at.
    last_holders: Vec<(usize, Subnet)>,
    /// Until then an operator's change moves routes.
    pub(crate) routes_move_until: Duration,
}

impl Invariants {
    /// The lease server has files of an earlier time: what it had told its clients since is lost.
    pub(crate) fn restored(&mut self) {
        self.last_stored = None;
        self.after_restart = None;
        self.was_restored = true;
    }

    pub(crate) fn check(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        self.check_programs(cluster)?;
        self.check_subnets(cluster)?;
        self.check_acknowledged(cluster)?;
        self.check_removals(cluster)?;
        check_storms(cluster)?;
        check_growth(cluster)
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
        let live = cluster.nodes().filter_map(|it| Some((it, cluster.subnet_of(it)?)));
        let live: Vec<(usize, Subnet)> = live.collect();
        if live == self.last_holders {
            return Ok(());
        }
        self.last_holders.clone_from(&live);
        let mut holders: BTreeMap<IpNet, (usize, Subnet)> = BTreeMap::new();
        for (number, subnet) in live {
            if let Some(before) = self.subnets.insert(number, subnet)
                && before != subnet
                && !self.given_away.contains(&before)
            {
                let host = cluster.hosts[number].name();
                return Err(Violation::OtherSubnet { host, before, after: subnet });
            }
            for net in subnet.nets() {
                if let Some((other, others)) = holders.insert(net, (number, subnet))
                    && !self.given_away.contains(&subnet)
                    && !self.given_away.contains(&others)
                {
                    let name = |number: usize| cluster.hosts[number].name();
                    let (one, other) = (name(other), name(number));
                    return Err(Violation::SharedSubnet { subnet, one, other });
                }
            }
        }
        Ok(())
    }

    /// What was acknowledged stays, and when the lease server ended, is there when it runs again.
    fn check_acknowledged(&mut self, cluster: &Cluster) -> Result<(), Violation> {
        let Some(now) = cluster.stored() else {
            let was_restored = std::mem::take(&mut self.was_restored);
            if self.last_stored.take().is_some() || was_restored {
                self.after_restart = Some(cluster.acknowledged.borrow().clone());
            }
            return Ok(());
        };
        if self.last_stored.as_ref().is_some_and(|last| Rc::ptr_eq(last, &now)) {
            return Ok(());
        }
        let restarted = self.after_restart.take();
        let is_restart = restarted.is_some();
        let before = restarted.or_else(|| self.last_stored.take());
        self.last_stored = Some(now.clone());
        let Some(before) = before else { return Ok(()) };
        // A config that the operator asked for may be there though nobody was told so.
        let is_known = before.config == now.config || self.wanted_config == now.config;
        if is_restart && !is_known {
            let (before, after) = (before.config.clone(), now.config.clone());
            return Err(Violation::LostConfig { before, after });
        }
        let is_kept =
            |subnet: &Subnet| now.leases.contains_key(subnet) || self.freed.contains(subnet);
        if let Some(lost) = before.leases.keys().find(|subnet| !is_kept(subnet)) {
            return Err(Violation::LostLease(*lost));
        }
        let reserved = before.leases.iter().filter(|(_, lease)| lease.expires.is_none());
        for (subnet, _) in reserved {
            let ends = now.leases.get(subnet).is_some_and(|now| now.expires.is_some());
            if ends && !self.unreserved.contains(subnet) && !self.freed.contains(subnet) {
                return Err(Violation::LostReservation(*subnet));
            }
        }
        Ok(())
    }

    /// No node takes a route away that leads to where its peer lives.
    fn check_removals(&self, cluster: &Cluster) -> Result<(), Violation> {
        for number in cluster.nodes() {
            let host = &cluster.hosts[number];
            let removed = host.kernel.removed_routes.take();
            if removed.is_empty() || clib::elapsed() < self.routes_move_until {
                continue;
            }
            let there = flannel_routes(&host.kernel.state.borrow());
            for route in removed {
                let is_back = there.iter().any(|it| it.dst == route.dst);
                // One that leads where the peer was before may go.
                let leads_to = |peer: usize| {
                    route.via.is_some_and(|via| {
                        cluster.hosts[peer].has_address(via) || via == route.dst.network()
                    })
                };
                let has = |subnet: &Subnet| subnet.nets().any(|net| net == route.dst);
                let holder = cluster.nodes().find(|peer| {
                    let holds = cluster.subnet_of(*peer).is_some_and(|subnet| has(&subnet));
                    *peer != number && holds && leads_to(*peer)
                });
                let Some(holder) = holder.filter(|_| !is_back) else { continue };
                let stored = cluster.stored().is_none_or(|stored| stored.leases.keys().any(has));
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
            if !lease.is_some_and(|lease| is_at(&lease.attrs, host)) {
                return Err(Violation::NotStored { host: host.name(), subnet: own });
            }
            let devices = FLANNEL_DEVICES.map(|name| host.kernel.link_index(name));
            let link = |is_v4: bool| match is_vxlan {
                true => devices[usize::from(!is_v4)],
                false => Some(CARD),
            };
            let leases = stored.leases.iter();
            let used =
                leases.filter(|(subnet, it)| **subnet != own && !it.attrs.backend_type.is_empty());
            let peers: Vec<(IpNet, IpAddr)> =
                used.flat_map(|(subnet, lease)| ways(subnet, &lease.attrs)).collect();
            let route = |(net, ip): &(IpNet, IpAddr)| FlannelRoute {
                dst: *net,
                via: Some(if is_vxlan { net.network() } else { *ip }),
                link: link(ip.is_ipv4()),
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
            for (net, ip) in peers.iter().filter(|_| is_vxlan) {
                let has = |ip: IpAddr| host.kernel.has_neighbour_entry(ip);
                for (what, ip) in [("a neighbour", net.network()), ("a forwarding entry", *ip)] {
                    if !has(ip) {
                        return Err(Violation::Entry { host: host.name(), what, net: *net });
                    }
                }
            }
        }
        Ok(())
    }
}

/// A subnet's networks, each with the address at which its packets go.
fn ways(subnet: &Subnet, attrs: &LeaseAttrs) -> Vec<(IpNet, IpAddr)> {
    let v4 = subnet.v4().map(IpNet::V4).zip(attrs.public_ip.map(IpAddr::V4));
    let v6 = subnet.v6().map(IpNet::V6).zip(attrs.public_ipv6.map(IpAddr::V6));
    v4.into_iter().chain(v6).collect()
}

/// Whether a lease announces the addresses that a machine has.
fn is_at(attrs: &LeaseAttrs, host: &Host) -> bool {
    let v4 = attrs.public_ip.filter(|ip| !ip.is_unspecified());
    let v6 = attrs.public_ipv6.filter(|ip| !ip.is_unspecified());
    (v4, v6) == (host.v4(), host.v6())
}

/// Nothing that a machine keeps grows without end.
fn check_growth(cluster: &Cluster) -> Result<(), Violation> {
    let leases = cluster.stored().map_or(0, |stored| stored.leases.len());
    let most_leases = cluster.hosts.len() + SPARE_LEASES;
    let (hosts, server) = (cluster.hosts.len(), cluster.hosts[SERVER].name());
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let of_all = [
        ("leases", leases, most_leases),
        ("tasks", tasks, hosts * TASKS_PER_HOST),
        ("connections", cluster.network.connections(), hosts * CONNECTIONS_PER_HOST),
    ];
    for (what, count, most) in of_all {
        if count > most {
            let (count, most) = (count as u64, most as u64);
            return Err(Violation::Growth { host: server, what, count, most });
        }
    }
    for number in cluster.nodes() {
        let host = &cluster.hosts[number];
        let state = host.kernel.state.borrow();
        // A route of each family, a neighbour and a forwarding entry for each lease, and what a device needs.
        let entries = (state.routes.len() + state.neighbours.len(), 6 * most_leases + 30);
        let links = (state.links.len(), 4);
        for (what, (count, most)) in [("entries in its kernel", entries), ("devices", links)] {
            if count > most {
                let (count, most) = (count as u64, most as u64);
                return Err(Violation::Growth { host: host.name(), what, count, most });
            }
        }
    }
    Ok(())
}

/// No files grow without end. Asked seldom: it reads directories.
pub(crate) fn check_files(cluster: &Cluster) -> Result<(), Violation> {
    for host in &cluster.hosts {
        let count = host.file_bytes();
        if count > FILES_BYTES {
            let (host, what, most) = (host.name(), "bytes of files", FILES_BYTES);
            return Err(Violation::Growth { host, what, count, most });
        }
    }
    Ok(())
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
