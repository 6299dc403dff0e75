//! Problems that neither readiness nor probing reports, each with its fix.

use std::collections::BTreeMap;
use std::net::IpAddr;

use flannel_backend::{LinkIdentity, PeerProblem, SharedIdentity, lease_name, shared_values};
use flannel_lease::Subnet;
use flannel_state::{Finding, Layer};
use flannel_store::{LeaseConflict, StoreFindings};
use flannel_wanted::{Importance, Problem, Status};

use super::Daemon;
use super::now::Now;
use super::peers::unusable_finding;

/// Of each kind; `flannelctl peers` and `entries` have the rest.
const LISTED: usize = 10;

/// Who announces an address that others announce, too.
pub(super) type SharedAddresses = BTreeMap<IpAddr, Vec<Subnet>>;

impl Daemon {
    /// All that is wrong or worth knowing, the worst first, without what probing found.
    pub(super) fn issues(
        &self,
        status: &Status,
        shared: &SharedAddresses,
        now: &Now,
    ) -> Vec<Finding> {
        let (_, mut issues) = self.reasons(status, now);
        let others = self
            .duplicates(shared)
            .into_iter()
            .chain(self.store_findings())
            .chain(self.unusable_peers(shared))
            .chain(missing_entries(status))
            .chain(contested(status))
            .chain(status.hazards.iter().take(LISTED).cloned())
            .chain(self.stale_bridge().map(|bridge| bridge.finding()))
            .chain(self.subnet_file_issue())
            .chain(self.store_away());
        for finding in others {
            if !issues.contains(&finding) {
                issues.push(finding);
            }
        }
        Finding::sort(&mut issues);
        issues
    }

    /// Public addresses that several nodes announce, where the tunnel does not tell nodes behind one apart.
    pub(super) fn shared_addresses(&self) -> SharedAddresses {
        if self.network.encapsulation().tells_nodes_apart() {
            return SharedAddresses::new();
        }
        let underlay = self.network.underlay();
        let own = [underlay.public_v4.map(IpAddr::V4), underlay.public_v6.map(IpAddr::V6)];
        let own_subnet = self.own.subnet();
        let own = own.into_iter().flatten().map(|ip| (ip, own_subnet));
        // A reservation is of nobody yet.
        let come = self.table.iter().filter(|(_, attrs)| !attrs.backend_type.is_empty());
        let announced =
            come.flat_map(|(subnet, attrs)| attrs.public_addresses().map(move |ip| (ip, *subnet)));
        shared_values(own.chain(announced))
    }

    pub(super) fn shared_address(&self, ip: IpAddr, subnets: &[Subnet]) -> Finding {
        self.duplicate(SharedIdentity::Address(ip), subnets)
    }

    fn duplicate(&self, shared: SharedIdentity, subnets: &[Subnet]) -> Finding {
        let owner = |subnet: &Subnet| self.table.get(subnet).and_then(|it| it.owner.as_deref());
        shared.finding(subnets, owner, self.setup.store.operator_commands())
    }

    fn duplicates(&self, shared: &SharedAddresses) -> Vec<Finding> {
        let addresses = shared.iter().map(|(ip, subnets)| self.shared_address(*ip, subnets));
        let mut links: BTreeMap<LinkIdentity, Vec<Subnet>> = BTreeMap::new();
        for (subnet, problem) in self.peers.unusable.problems.iter() {
            if let PeerProblem::IdentityTaken { identity, holder, .. } = problem {
                links.entry(*identity).or_insert_with(|| vec![*holder]).push(*subnet);
            }
        }
        // A MAC may be derived from the address: who shares the one shares the other.
        links.retain(|_, subnets| {
            !shared.values().any(|with_address| subnets.iter().all(|it| with_address.contains(it)))
        });
        let links = links
            .iter()
            .map(|(identity, subnets)| self.duplicate(SharedIdentity::Link(*identity), subnets));
        let own = self.setup.machine_hash.map(|machine| (machine, self.own.subnet()));
        let others = self.table.iter().filter_map(|(it, attrs)| Some((attrs.machine?, *it)));
        let machines = shared_values(own.into_iter().chain(others));
        let machines =
            machines.values().map(|subnets| self.duplicate(SharedIdentity::Machine, subnets));
        let listed = addresses.take(LISTED).chain(links.take(LISTED));
        listed.chain(machines.take(LISTED)).collect()
    }

    fn unusable_peers(&self, shared: &SharedAddresses) -> Vec<Finding> {
        let mut issues = Vec::new();
        for (subnet, problem) in self.peers.unusable.problems.iter() {
            let attrs = self.table.get(subnet);
            let told = attrs
                .is_some_and(|attrs| attrs.public_addresses().any(|ip| shared.contains_key(&ip)));
            let is_duplicate = matches!(problem, PeerProblem::IdentityTaken { .. });
            // What is expected is nothing to tell of.
            if problem.is_expected() || is_duplicate || told {
                continue;
            }
            let commands = self.setup.store.operator_commands();
            issues.push(unusable_finding(subnet, problem, attrs, commands));
            if issues.len() == LISTED {
                break;
            }
        }
        issues
    }

    /// Nodes that get no packets by what the store knows: two have one subnet, or an announcement is unusable.
    fn store_findings(&self) -> Vec<Finding> {
        let commands = self.setup.store.operator_commands();
        let StoreFindings { conflicts, unusable } = self.setup.store.findings();
        let of_conflict = |conflict: LeaseConflict| {
            let LeaseConflict { subnet, holder, others } = conflict;
            let (net, others) = (lease_name(&subnet), others.join(" and "));
            Finding::broken(
                Layer::Lease,
                format!("the subnet {net}"),
                format!(
                    "the Nodes {holder} and {others} have it: packets for it go to {holder}, and pods of {others} get \
                     nothing"
                ),
                format!(
                    "delete one of them and let it be made again with a podCIDR of its own: {}",
                    commands.release(&net, Some(&others))
                ),
            )
        };
        let of_announcement = |(node, why): (Box<str>, Box<str>)| {
            Finding::broken(
                Layer::Lease,
                format!("the Node {node}"),
                format!("nothing leads to it: {why}"),
                format!(
                    "its flanneld announces it again when it runs ({}); if that does not last, `kubectl get node {node} \
                     -o yaml --show-managed-fields` names who writes it",
                    commands.show_daemon(&node)
                ),
            )
        };
        let conflicts = conflicts.into_iter().take(LISTED).map(of_conflict);
        conflicts.chain(unusable.into_iter().take(LISTED).map(of_announcement)).collect()
    }

    pub(super) fn subnet_file_issue(&self) -> Option<Finding> {
        let why = self.subnet_file.error.clone()?;
        let path = &self.setup.subnet_file;
        let directory = path.parent().unwrap_or(path);
        let finding = Finding::broken(
            Layer::Files,
            path.display().to_string(),
            format!("{why}; no pod starts until it is there"),
            format!(
                "`df -h {0}` and `ls -ld {0}`: make room, and let root write there",
                directory.display()
            ),
        );
        Some(finding.with_traffic())
    }

    fn store_away(&self) -> Option<Finding> {
        let why = self.store_contact.lost.as_deref()?;
        let finding = Finding::broken(
            Layer::Store,
            self.setup.store.description(),
            format!(
                "it is unreachable: {why}; traffic continues, and no node hears of others that come, go or change"
            ),
            "check that it runs and that this node reaches it: the flags of flanneld say where it is; `flannelctl \
             check` asks it",
        );
        Some(finding.with_traffic())
    }
}

/// What all others stand on, if that is missing, and else the first.
fn missing_entries(status: &Status) -> Vec<Finding> {
    let is_foundation = |problem: &Problem| problem.importance == Importance::Foundation;
    let has_foundation = status.problems.iter().any(is_foundation);
    let told = status.problems.iter().filter(|problem| is_foundation(problem) == has_foundation);
    told.filter(|problem| problem.failure.is_some()).map(Problem::finding).take(LISTED).collect()
}

fn contested(status: &Status) -> Option<Finding> {
    (status.contested > 0).then(|| {
        Finding::broken(
            Layer::Lease,
            format!("{} entries", status.contested),
            "several leases want them differently, as leases of overlapping subnets do",
            "`flannelctl peers` names those that get nothing (INCOMPLETE)",
        )
    })
}
