//! State of a network: its leases, and what each node has reported. Pure: time is an argument.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_lease::{NetworkConfig, Subnet, SubnetOrigin};
use flannel_state::{HistoryEvent, PeerState};

use crate::health::Health;
use crate::leases::{LeaseRow, LeaseTable};
use crate::node_client::Answer;
use crate::node_report::{NodeReport, brief};
use crate::pool::PoolView;

/// When a silent node is asked again, before its turn but at nobody's cost: those that waited longest go first.
const SILENT_RETRY: Duration = Duration::from_secs(10);

/// Number of nodes that left that are remembered for viewers; who missed more starts over.
const REMEMBERED_GONE: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(crate) version: u64,
    /// `None` until the store has been read.
    pub(crate) read: Option<Instant>,
    pub(crate) store_problem: Option<String>,
    pub(crate) config: Config,
    pub(crate) pools: Vec<PoolView>,
    pub(crate) nodes: BTreeMap<Subnet, NodeView>,
    gone: VecDeque<(u64, Subnet)>,
    /// Viewers of an earlier version have missed nodes that left.
    complete_since: u64,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Config {
    pub(crate) networks: Vec<String>,
    pub(crate) backend: String,
    /// There is no config, or nobody can use it.
    pub(crate) problem: Option<String>,
}

#[derive(Debug)]
pub(crate) struct NodeView {
    pub(crate) lease: LeaseRow,
    pub(crate) health: Health,
    pub(crate) why: Option<String>,
    pub(crate) report: Option<Box<NodeReport>>,
    pub(crate) events: Vec<HistoryEvent>,
    pub(crate) peers: Option<HashMap<String, PeerState>>,
    /// Version of the picture that changed it last.
    pub(crate) changed: u64,
    answered: Option<Instant>,
    asked: Option<Instant>,
    waiting: bool,
}

impl NodeView {
    fn new(lease: LeaseRow, changed: u64) -> Self {
        Self {
            lease,
            health: Health::Unasked,
            why: None,
            report: None,
            events: Vec::new(),
            peers: None,
            changed,
            answered: None,
            asked: None,
            waiting: false,
        }
    }

    /// Name in the store, else its host name, else its address.
    pub(crate) fn name(&self) -> String {
        let own = self.report.as_ref().map(|report| report.hostname.clone());
        let name = self.lease.name.clone().map(brief).or(own).filter(|name| !name.is_empty());
        name.unwrap_or_else(|| self.address())
    }

    pub(crate) fn address(&self) -> String {
        self.lease.address().map_or_else(|| "-".to_owned(), |ip| ip.to_string())
    }

    pub(crate) fn subnets(&self) -> String {
        shown(&self.lease.subnet)
    }

    pub(crate) fn seconds_since_answer(&self, now: Instant) -> Option<u64> {
        self.answered.map(|at| now.saturating_duration_since(at).as_secs())
    }
}

/// Peers by their first subnets.
pub(crate) fn by_subnet(peers: Vec<PeerState>) -> HashMap<String, PeerState> {
    let key = |seen: &PeerState| seen.subnets().next().map(str::to_owned);
    peers.into_iter().filter_map(|seen| Some((key(&seen)?, seen))).collect()
}

pub(crate) fn shown(subnet: &Subnet) -> String {
    subnet.nets().map(|net| net.to_string()).collect::<Vec<_>>().join(" ")
}

impl Picture {
    /// An empty picture, for viewers who know an earlier one.
    pub(crate) fn after(earlier: &Self) -> Self {
        let version = earlier.version + 1;
        Self { version, complete_since: version, ..Self::default() }
    }

    /// Whether every node has answered, or has had the time for it.
    pub(crate) fn is_complete(&self) -> bool {
        let is_heard = |node: &NodeView| node.health != Health::Unasked;
        self.store_problem.is_some() || self.read.is_some() && self.nodes.values().all(is_heard)
    }

    pub(crate) fn store_read(&mut self, table: LeaseTable, now: Instant) {
        self.read = Some(now);
        let mut is_changed = self.store_problem.take().is_some();
        let (config, pools) = read_config(&table);
        is_changed |= config != self.config || pools != self.pools;
        (self.config, self.pools) = (config, pools);

        let next = self.version + 1;
        let mut rows: BTreeMap<Subnet, LeaseRow> =
            table.leases.into_iter().map(|row| (row.subnet, row)).collect();
        let gone = &mut self.gone;
        self.nodes.retain(|subnet, node| match rows.remove(subnet) {
            Some(row) => {
                // Another node may have taken the subnet: the report of the former one is not about it.
                if row.address() != node.lease.address() {
                    *node = NodeView::new(row, next);
                    is_changed = true;
                } else if row != node.lease {
                    node.lease = row;
                    node.changed = next;
                    is_changed = true;
                }
                true
            }
            None => {
                gone.push_back((next, *subnet));
                is_changed = true;
                false
            }
        });
        is_changed |= !rows.is_empty();
        self.nodes.extend(rows.into_iter().map(|(subnet, row)| (subnet, NodeView::new(row, next))));
        while self.gone.len() > REMEMBERED_GONE {
            if let Some((version, _)) = self.gone.pop_front() {
                self.complete_since = version;
            }
        }
        if is_changed {
            self.version = next;
        }
    }

    pub(crate) fn store_failed(&mut self, why: String) {
        let why = Some(brief(why));
        if self.store_problem != why {
            self.store_problem = why;
            self.version += 1;
        }
    }

    /// Nodes whose turn it is: those that have waited longest, each not before `period` is over.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        period: Duration,
        most: usize,
    ) -> Vec<(IpAddr, LeaseRow)> {
        let is_due = |node: &NodeView| {
            let period =
                if node.health == Health::Silent { period.min(SILENT_RETRY) } else { period };
            !node.waiting && node.asked.is_none_or(|at| now.saturating_duration_since(at) >= period)
        };
        let mut due: Vec<(Option<Instant>, Subnet, IpAddr)> = self
            .nodes
            .iter()
            .filter(|(_, node)| is_due(node))
            .filter_map(|(subnet, node)| Some((node.asked, *subnet, node.lease.address()?)))
            .collect();
        due.sort_by_key(|(asked, ..)| *asked);
        due.truncate(most);
        let mut ask = |subnet: &Subnet| {
            let node = self.nodes.get_mut(subnet)?;
            node.waiting = true;
            node.asked = Some(now);
            Some(node.lease.clone())
        };
        due.iter().filter_map(|(_, subnet, address)| Some((*address, ask(subnet)?))).collect()
    }

    pub(crate) fn answered(
        &mut self,
        subnet: &Subnet,
        address: IpAddr,
        answer: Answer,
        peers: Option<Vec<PeerState>>,
        now: Instant,
    ) {
        let next = self.version + 1;
        let Some(node) = self.nodes.get_mut(subnet) else { return };
        if node.lease.address() != Some(address) {
            return;
        }
        node.waiting = false;
        let before = (node.health, node.why.clone(), node.name());
        match answer {
            Answer::Report(report, events) => {
                node.answered = Some(now);
                node.health = report.health();
                node.why = report.why();
                node.events = events;
                node.report = Some(report);
            }
            Answer::NoState(why) => {
                node.answered = Some(now);
                (node.health, node.why) = (Health::NoState, Some(why));
            }
            Answer::Silent(why) => (node.health, node.why) = (Health::Silent, Some(why)),
        }
        node.peers = peers.map(by_subnet);
        if before != (node.health, node.why.clone(), node.name()) {
            node.changed = next;
        }
        // Its page and the timeline may show more than its row.
        self.version = next;
    }

    /// Nodes that have changed since a version, and those that left; `None` if that is no longer known.
    pub(crate) fn since(&self, version: u64) -> Option<(Vec<&NodeView>, Vec<Subnet>)> {
        if version < self.complete_since {
            return None;
        }
        let changed = self.nodes.values().filter(|node| node.changed > version).collect();
        let gone = self.gone.iter().filter(|(at, _)| *at > version);
        let gone =
            gone.map(|(_, subnet)| *subnet).filter(|subnet| !self.nodes.contains_key(subnet));
        Some((changed, gone.collect()))
    }

    pub(crate) fn count(&self, health: Health) -> usize {
        self.nodes.values().filter(|node| node.health == health).count()
    }
}

fn read_config(table: &LeaseTable) -> (Config, Vec<PoolView>) {
    let Some(text) = &table.config else {
        let problem =
            "there is no network config yet; `flannelctl config set` writes one".to_owned();
        return (Config { problem: Some(problem), ..Config::default() }, Vec::new());
    };
    match NetworkConfig::read(text, table.subnets) {
        Ok(config) => {
            let networks = config.networks().map(|net| net.to_string()).collect();
            let backend = brief(config.backend.kind.clone());
            let pools = PoolView::of(&config, table.subnets == SubnetOrigin::Pool, &table.leases);
            (Config { networks, backend, problem: None }, pools)
        }
        Err(error) => {
            let problem = Some(brief(format!("no node can use the network config: {error}")));
            (Config { problem, ..Config::default() }, Vec::new())
        }
    }
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
