//! Problems that neither readiness nor probing reports, each with its fix.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_state::IssueState;
use flannel_store::{LeaseConflict, StoreFindings};
use flannel_wanted::{FailureKind, Problem, Status};

use super::Daemon;
use super::peers::overlap_fix;

/// Of each kind; `flannelctl peers` and `entries` have the rest.
const LISTED: usize = 10;

/// Who announces an address that others announce, too.
pub(super) type SharedAddresses = BTreeMap<IpAddr, Vec<Subnet>>;

impl Daemon {
    pub(super) fn issues(&self, status: &Status, shared: &SharedAddresses) -> Vec<IssueState> {
        let mut issues: Vec<IssueState> =
            shared.iter().take(LISTED).map(|(ip, nets)| self.shared_address(*ip, nets)).collect();
        issues.extend(self.store_findings());
        issues.extend(self.unusable_peers(shared));
        issues.extend(missing_entries(status));
        issues.extend(contested(status));
        issues.extend(status.hazards.iter().take(LISTED).map(|hazard| of_the_host(hazard)));
        issues.extend(self.stale_bridge().map(|bridge| bridge.issue()));
        issues.extend(self.subnet_file_issue());
        issues.extend(self.store_away());
        issues
    }

    /// Nodes behind one NAT are told apart by their keys with WireGuard, and by nothing with others.
    pub(super) fn shared_addresses(&self) -> SharedAddresses {
        let mut shared = SharedAddresses::new();
        if self.network.config().backend.kind == "wireguard" {
            return shared;
        }
        let underlay = self.network.underlay();
        let own = [underlay.public_v4.map(IpAddr::V4), underlay.public_v6.map(IpAddr::V6)];
        let own_subnet = self.own.subnet();
        let own = own.into_iter().flatten().map(|ip| (ip, own_subnet));
        // A reservation is of nobody yet.
        let come = self.table.iter().filter(|(_, attrs)| !attrs.backend_type.is_empty());
        let announced =
            come.flat_map(|(subnet, attrs)| addresses(attrs).map(move |ip| (ip, *subnet)));
        let mut first: HashMap<IpAddr, Subnet> = HashMap::new();
        for (ip, subnet) in own.chain(announced) {
            match first.get(&ip) {
                None => {
                    first.insert(ip, subnet);
                }
                Some(one) => shared.entry(ip).or_insert_with(|| vec![*one]).push(subnet),
            }
        }
        shared
    }

    fn unusable_peers(&self, shared: &SharedAddresses) -> Vec<IssueState> {
        let mut issues = Vec::new();
        for (subnet, problem) in self.peers.unusable() {
            let attrs = self.table.get(subnet);
            let told =
                attrs.is_some_and(|attrs| addresses(attrs).any(|ip| shared.contains_key(&ip)));
            // What is expected is nothing to tell of.
            if problem.is_expected() || told {
                continue;
            }
            let name = attrs.and_then(|attrs| attrs.owner.as_deref());
            let commands = self.setup.store.operator_commands();
            let at = attrs.and_then(|attrs| addresses(attrs).next());
            let at = at.map(|ip| format!(" at {ip}")).unwrap_or_default();
            let net = named(subnet);
            issues.push(IssueState {
                about: format!("peer {net}{at}"),
                layer: "lease".to_owned(),
                why: format!("nothing leads to it, for its lease cannot be used here: {problem}"),
                fix: match problem.fix() {
                    Some(fix) => fix.to_owned(),
                    None if problem.is_clash() => overlap_fix(subnet, commands),
                    None => format!(
                        "look at it with `flannelctl leases`; if its node is gone, {}",
                        commands.release(&net, name)
                    ),
                },
                traffic: false,
            });
            if issues.len() == LISTED {
                break;
            }
        }
        issues
    }

    /// In words, for somebody who asks about one of them. Which of the nodes lives cannot be told from here, so none
    /// of the leases is the one to end.
    pub(super) fn why_shared(&self, ip: IpAddr, subnets: &[Subnet]) -> (String, String) {
        let commands = self.setup.store.operator_commands();
        let names: Vec<String> = subnets.iter().map(named).collect();
        let owner = |subnet: &Subnet| self.table.get(subnet).and_then(|it| it.owner.as_deref());
        let releases = subnets.iter().map(|subnet| commands.release(named(subnet), owner(subnet)));
        (
            format!(
                "the leases {} announce one public address, {ip}: packets for all of them go to one node",
                names.join(" and ")
            ),
            format!(
                "give each node its own address (`flanneld --public-ip`); if one of these nodes is gone for good, end \
                 its lease, and not that of a node that runs: {}",
                releases.take(LISTED).collect::<Vec<_>>().join(" or ")
            ),
        )
    }

    fn shared_address(&self, ip: IpAddr, subnets: &[Subnet]) -> IssueState {
        let (why, fix) = self.why_shared(ip, subnets);
        let (about, layer) = (ip.to_string(), "lease".to_owned());
        IssueState { about, layer, why, fix, traffic: false }
    }

    /// Nodes that get no packets by what the store knows: of two with one subnet, or with an announcement that nobody can
    /// use.
    fn store_findings(&self) -> Vec<IssueState> {
        let commands = self.setup.store.operator_commands();
        let StoreFindings { conflicts, unusable } = self.setup.store.findings();
        let of_conflict = |conflict: LeaseConflict| {
            let LeaseConflict { subnet, holder, others } = conflict;
            let (net, others) = (named(&subnet), others.join(" and "));
            IssueState {
                about: format!("the subnet {net}"),
                layer: "lease".to_owned(),
                why: format!(
                    "the Nodes {holder} and {others} have it: packets for it go to {holder}, and pods of {others} get \
                     nothing"
                ),
                fix: format!(
                    "delete one of them and let it be made again with a podCIDR of its own: {}",
                    commands.release(&net, Some(&others))
                ),
                traffic: false,
            }
        };
        let of_announcement = |(node, why): (Box<str>, Box<str>)| IssueState {
            about: format!("the Node {node}"),
            layer: "lease".to_owned(),
            why: format!("nothing leads to it: {why}"),
            fix: format!(
                "its flanneld announces it again when it runs ({}); if that does not last, `kubectl get node {node} \
                 -o yaml --show-managed-fields` names who writes it",
                commands.show_daemon(&node)
            ),
            traffic: false,
        };
        let conflicts = conflicts.into_iter().take(LISTED).map(of_conflict);
        conflicts.chain(unusable.into_iter().take(LISTED).map(of_announcement)).collect()
    }

    fn subnet_file_issue(&self) -> Option<IssueState> {
        let why = self.subnet_file_error.clone()?;
        let path = &self.setup.subnet_file;
        let directory = path.parent().unwrap_or(path);
        Some(IssueState {
            about: path.display().to_string(),
            layer: "files".to_owned(),
            why: format!("{why}; no pod is started before it is there"),
            fix: format!(
                "`df -h {0}` and `ls -ld {0}`: make room, and let root write there",
                directory.display()
            ),
            traffic: true,
        })
    }

    fn store_away(&self) -> Option<IssueState> {
        let why = self.contact.why_lost()?;
        Some(IssueState {
            about: self.setup.store.words(),
            layer: "store".to_owned(),
            why: format!(
                "it is away: {why}; traffic goes on, and no node hears of others that come, go or change"
            ),
            fix: "look whether it runs, and from this node whether it is reached: the flags of flanneld say where \
                  it is; `flannelctl check` asks it"
                .to_owned(),
            traffic: true,
        })
    }
}

/// Of the families that it announces.
pub(super) fn addresses(attrs: &LeaseAttrs) -> impl Iterator<Item = IpAddr> + use<> {
    [attrs.public_ip.map(IpAddr::V4), attrs.public_ipv6.map(IpAddr::V6)].into_iter().flatten()
}

/// As `flannelctl` takes it.
pub(super) fn named(subnet: &Subnet) -> String {
    let v4 = subnet.v4().map(|net| net.to_string());
    v4.or_else(|| subnet.v6().map(|net| net.to_string())).unwrap_or_default()
}

/// What all others stand on, if that is missing, and else the first.
fn missing_entries(status: &Status) -> Vec<IssueState> {
    let has_foundation = status.problems.iter().any(|problem| problem.is_foundation);
    let told = status.problems.iter().filter(|problem| problem.is_foundation == has_foundation);
    let issue = |problem: &Problem| {
        let fix = match problem.failure? {
            FailureKind::FoughtOver => {
                "stop whoever does that (`flannelctl events --follow` shows what is undone, and by which process where the \
                 kernel tells), then `flannelctl repair`"
            }
            FailureKind::Refused => {
                "mend what it says, then `flannelctl repair`; `flannelctl diff` shows what is there instead"
            }
        };
        Some(IssueState {
            about: problem.entry.clone(),
            layer: "entries".to_owned(),
            why: problem.reason.clone(),
            fix: fix.to_owned(),
            traffic: false,
        })
    };
    told.filter_map(issue).take(LISTED).collect()
}

/// What the host does to packets is told with its remedy, in one sentence.
fn of_the_host(hazard: &str) -> IssueState {
    let (why, fix) = hazard.split_once("; ").unwrap_or((hazard, "`flannelctl check`"));
    IssueState {
        about: "this host".to_owned(),
        layer: "host".to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
        traffic: false,
    }
}

fn contested(status: &Status) -> Option<IssueState> {
    (status.contested > 0).then(|| IssueState {
        about: format!("{} entries", status.contested),
        layer: "lease".to_owned(),
        why: "several leases want them otherwise, as leases of overlapping subnets do".to_owned(),
        fix: "`flannelctl peers` names those that go short (INCOMPLETE), `flannelctl check` what to do (twins)"
            .to_owned(),
        traffic: false,
    })
}
