//! Turns leases of other nodes into wishes. Unusable peers are reported once; vanished peers are kept for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use flannel_backend::{
    DesiredState, LinkIdentity, OverlapKind, PeerProblem, WantedBy, Wishes, lease_name,
};
use flannel_common::OperatorCommands;
use flannel_lease::{Change, Lease, LeaseAttrs, LeaseTable, Subnet};
use flannel_state::{Finding, Layer, PeerCounts};
use flannel_store::AnnouncedSince;

use super::identity::address;
use super::link_holders::{HolderMap, IdentityClaim, LinkHolders};
use super::network::JoinedNetwork;
use super::unusable_peers::UnusablePeers;

/// How long a peer missing from a whole new list is still sent to: a store restored from a backup has forgotten nodes.
const MISSING_PEER_GRACE: Duration = Duration::from_secs(60);

/// Remembers what the store said of peers, for `flannelctl events`.
pub(super) fn tell(changes: &[Change]) {
    for change in changes {
        match change {
            Change::New(Lease { subnet, attrs }) => tracing::debug!(
                event = "peer-announced",
                "Peer {subnet:#} is at {}",
                address(attrs)
            ),
            Change::Changed(Lease { subnet, attrs }) => tracing::debug!(
                event = "peer-changed",
                "Peer {subnet:#} has announced itself again, at {}",
                address(attrs)
            ),
            Change::Gone(subnet) => {
                tracing::debug!(event = "peer-gone", "Peer {subnet:#} is gone");
            }
        }
    }
}

/// The network that peers are seen in: how this node takes part in it, its own lease, and those of all others.
#[derive(Clone, Copy)]
pub(super) struct PeerContext<'a> {
    pub(super) network: &'a JoinedNetwork,
    pub(super) own: &'a Lease,
    pub(super) table: &'a LeaseTable,
}

impl<'a> PeerContext<'a> {
    fn attrs_of(&self, subnet: &Subnet) -> Option<&'a LeaseAttrs> {
        if *subnet == self.own.subnet { Some(&self.own.attrs) } else { self.table.get(subnet) }
    }

    fn announces(&self, holder: &Subnet, identity: &LinkIdentity) -> bool {
        let attrs = self.attrs_of(holder);
        attrs.is_some_and(|attrs| self.network.link_identities(attrs).contains(identity))
    }
}

#[derive(Default)]
pub(super) struct Peers {
    pub(super) unusable: UnusablePeers,
    /// Peers whose subnet meets a network that this node is connected to, and is used all the same.
    overlapping: BTreeMap<Subnet, (OverlapKind, Finding)>,
    /// Peers missing from a whole new list, and until when they are still sent to.
    pub(super) vanished: BTreeMap<Subnet, Instant>,
    /// Who was first known by what.
    pub(super) link_holders: LinkHolders,
}

impl Peers {
    pub(super) fn new(remembered: HolderMap) -> Self {
        Self { link_holders: LinkHolders::new(remembered), ..Self::default() }
    }

    /// Of leases with one MAC or key that came while this node was away from the store, evidence tells which was first.
    pub(super) fn settle_disputes(
        &mut self,
        context: PeerContext<'_>,
        arrived: &[(Subnet, Option<AnnouncedSince>)],
    ) {
        let network = context.network;
        let mut claims: Vec<(LinkIdentity, Subnet, Option<AnnouncedSince>)> = Vec::new();
        for (subnet, since) in arrived {
            let identities = context.attrs_of(subnet).map(|attrs| network.link_identities(attrs));
            let claim = |identity| (identity, *subnet, *since);
            claims.extend(identities.into_iter().flatten().map(claim));
        }
        claims.sort_unstable();
        let announces = |holder: &Subnet, identity: &LinkIdentity| {
            self.vanished.contains_key(holder) || context.announces(holder, identity)
        };
        for group in claims.chunk_by(|one, other| one.0 == other.0).filter(|it| it.len() > 1) {
            let identity = group[0].0;
            let is_derived = |it: &LeaseAttrs| network.backend.is_derived(&identity, it);
            let claim = |(_, subnet, since): &(_, Subnet, _)| IdentityClaim {
                subnet: *subnet,
                is_derived: context.attrs_of(subnet).is_some_and(is_derived),
                since: *since,
            };
            let claims: Vec<IdentityClaim> = group.iter().map(claim).collect();
            self.link_holders.settle(identity, &claims, &announces);
        }
    }

    fn claim(
        &mut self,
        context: PeerContext<'_>,
        subnet: Subnet,
        identities: &[LinkIdentity],
    ) -> Option<PeerProblem> {
        let vanished = &self.vanished;
        let announces = |holder: &Subnet, identity: &LinkIdentity| {
            vanished.contains_key(holder) || context.announces(holder, identity)
        };
        self.link_holders.tidy(context.table.len(), &announces);
        let dispute = self.link_holders.claim(subnet, identities, &announces)?;
        let (identity, rival) = (dispute.identity, dispute.rival);
        let address = context.attrs_of(&rival).and_then(|it| it.public_addresses().next());
        Some(match dispute.is_rival_first {
            true => PeerProblem::IdentityTaken { identity, holder: rival, address },
            false => PeerProblem::IdentityDisputed { identity, rival, address },
        })
    }

    /// Peers whose MAC or key another one has, to be thought over now that somebody has left.
    pub(super) fn waiting(&self, table: &LeaseTable) -> Vec<Change> {
        let waiting = self.unusable.problems.iter().filter(|(_, it)| disputed_with(it).is_some());
        let lease =
            |subnet: &Subnet| Some(Lease { subnet: *subnet, attrs: table.get(subnet)?.clone() });
        waiting.filter_map(|(subnet, _)| lease(subnet)).map(Change::Changed).collect()
    }

    pub(super) fn all(&mut self, context: PeerContext<'_>) -> DesiredState {
        let PeerContext { network, own, table } = context;
        self.unusable.clear();
        self.overlapping.clear();
        self.vanished.clear();
        // And the node itself.
        let mut desired = DesiredState::with_capacity(table.len() + 1);
        self.claim(context, own.subnet, &network.link_identities(&own.attrs));
        for (subnet, attrs) in table.iter() {
            let lease = Lease { subnet: *subnet, attrs: attrs.clone() };
            desired.want(WantedBy::Peer(*subnet), self.wishes(context, &lease));
        }
        desired
    }

    pub(super) fn changed(
        &mut self,
        context: PeerContext<'_>,
        changes: Vec<Change>,
    ) -> DesiredState {
        let mut desired = DesiredState::with_capacity(changes.len());
        let concerned: BTreeSet<Subnet> = changes.iter().map(Change::subnet).collect();
        for change in changes {
            match change {
                Change::New(lease) | Change::Changed(lease) => {
                    self.vanished.remove(&lease.subnet);
                    self.make_room(&lease.subnet, &mut desired);
                    let wishes = self.wishes(context, &lease);
                    desired.change(WantedBy::Peer(lease.subnet), wishes);
                }
                Change::Gone(subnet) => self.forget(subnet, &mut desired),
            }
        }
        // Whoever had to stand back for one of these may have its turn now.
        let waiting = self.unusable.problems.iter().filter(|(subnet, problem)| {
            let waits_for = disputed_with(problem);
            !concerned.contains(*subnet) && waits_for.is_some_and(|it| concerned.contains(&it))
        });
        for subnet in waiting.map(|(subnet, _)| *subnet).collect::<Vec<_>>() {
            let Some(attrs) = context.table.get(&subnet) else { continue };
            let lease = Lease { subnet, attrs: attrs.clone() };
            desired.change(WantedBy::Peer(subnet), self.wishes(context, &lease));
        }
        desired
    }

    /// Defers the removals of a whole new list, which may come from an old backup.
    pub(super) fn defer_removals(&mut self, changes: Vec<Change>, now: Instant) -> Vec<Change> {
        let (gone, changes): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| matches!(change, Change::Gone(_)));
        if !gone.is_empty() {
            tracing::warn!(
                "{} peers are missing from the store's new list: they are still sent to for {:.0?}, \
                 unless their subnets are given to others",
                gone.len(),
                MISSING_PEER_GRACE
            );
        }
        for change in gone {
            self.vanished.entry(change.subnet()).or_insert(now + MISSING_PEER_GRACE);
        }
        changes
    }

    pub(super) fn counts(&self, known: usize) -> PeerCounts {
        let (unusable, vanished) = (self.unusable.problems.len(), self.vanished.len());
        PeerCounts { known, unusable, vanished, incomplete: 0 }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.vanished.values().min().copied()
    }

    /// The vanished whose time is up want nothing any more.
    pub(super) fn departed(&mut self, now: Instant) -> DesiredState {
        let departed: Vec<Subnet> =
            self.vanished.iter().filter(|(_, due)| **due <= now).map(|(s, _)| *s).collect();
        let mut desired = DesiredState::default();
        for subnet in departed {
            tell(&[Change::Gone(subnet)]);
            self.forget(subnet, &mut desired);
        }
        desired
    }

    /// A subnet given to somebody else cannot go on leading to the one who vanished.
    fn make_room(&mut self, taken: &Subnet, desired: &mut DesiredState) {
        let replaced: Vec<Subnet> =
            self.vanished.keys().filter(|subnet| subnet.overlaps(taken)).copied().collect();
        replaced.into_iter().for_each(|subnet| self.forget(subnet, desired));
    }

    fn forget(&mut self, subnet: Subnet, desired: &mut DesiredState) {
        self.vanished.remove(&subnet);
        self.unusable.remove(&subnet);
        self.overlapping.remove(&subnet);
        desired.change(WantedBy::Peer(subnet), Wishes::default());
    }

    /// What keeps this node from what it is directly connected to, or from pods of a peer.
    pub(super) fn obstacle(
        &self,
        table: &LeaseTable,
        commands: OperatorCommands,
    ) -> Option<Finding> {
        let displaces = |problem: &PeerProblem| matches!(problem, PeerProblem::Displaces { .. });
        self.first_unusable(displaces, table, commands).or_else(|| self.first_overlap(true))
    }

    /// What is worth knowing, and keeps no pod of a usable peer from another. Peers on another backend are so while a
    /// network changes node by node: were this node not ready for it, whoever changes one node after the other would
    /// wait for ever at the first. A lease that overlaps ours gets nothing here, whoever wrote it.
    pub(super) fn remarks(
        &self,
        table: &LeaseTable,
        commands: OperatorCommands,
    ) -> impl Iterator<Item = Finding> {
        let is_on_other =
            |problem: &PeerProblem| matches!(problem, PeerProblem::OtherBackend { .. });
        let on_other_backend = self.first_unusable(is_on_other, table, commands);
        let clash = self.first_unusable(PeerProblem::is_clash, table, commands);
        on_other_backend.into_iter().chain(clash).chain(self.first_overlap(false))
    }

    fn first_unusable(
        &self,
        is_meant: impl Fn(&PeerProblem) -> bool,
        table: &LeaseTable,
        commands: OperatorCommands,
    ) -> Option<Finding> {
        let (subnet, problem) =
            self.unusable.problems.iter().find(|(_, problem)| is_meant(problem))?;
        Some(unusable_finding(subnet, problem, table.get(subnet), commands))
    }

    /// The first peer whose subnet meets a network of this node, from around it or else.
    fn first_overlap(&self, is_around: bool) -> Option<Finding> {
        let mut met = self.overlapping.values();
        let first = met.find(|(overlap, _)| (*overlap == OverlapKind::Around) == is_around);
        first.map(|(_, finding)| finding.clone())
    }

    /// Thousands of peers may lie in one network: the first is said, the rest are like it.
    fn note_overlap(&mut self, lease: &Lease, found: Option<(OverlapKind, Finding)>) {
        let Some((overlap, finding)) = found else {
            self.overlapping.remove(&lease.subnet);
            return;
        };
        let first = !self.overlapping.values().any(|(known, _)| *known == overlap);
        if first || overlap == OverlapKind::Around && !self.overlapping.contains_key(&lease.subnet)
        {
            tracing::warn!("{finding}");
        }
        self.overlapping.insert(lease.subnet, (overlap, finding));
    }

    fn wishes(&mut self, context: PeerContext<'_>, lease: &Lease) -> Wishes {
        let network = context.network;
        let identities = network.link_identities(&lease.attrs);
        let taken = self.claim(context, lease.subnet, &identities);
        let wishes = network.peer(context.own, lease);
        let wishes = wishes.and_then(|wishes| taken.map_or(Ok(wishes), Err));
        match wishes {
            Ok(wishes) => {
                if self.unusable.remove(&lease.subnet) {
                    tracing::info!("Every peer uses the same backend as this node now");
                }
                self.note_overlap(lease, network.overlap(lease).filter(|_| !wishes.is_empty()));
                wishes
            }
            Err(problem) => {
                self.overlapping.remove(&lease.subnet);
                if self.unusable.problems.get(&lease.subnet) != Some(&problem) {
                    say(lease, &problem, self.unusable.is_news(&problem));
                    self.unusable.insert(lease.subnet, problem);
                }
                Wishes::default()
            }
        }
    }
}

pub(super) fn unusable_finding(
    subnet: &Subnet,
    problem: &PeerProblem,
    attrs: Option<&LeaseAttrs>,
    commands: OperatorCommands,
) -> Finding {
    let net = lease_name(subnet);
    let name = attrs.and_then(|attrs| attrs.owner.as_deref());
    let at = attrs.and_then(|attrs| attrs.public_addresses().next());
    let at = at.map(|ip| format!(" at {ip}")).unwrap_or_default();
    Finding::broken(
        Layer::Lease,
        format!("peer {net}{at}"),
        format!("nothing leads to it, because its lease cannot be used here: {problem}"),
        match problem.fix() {
            Some(fix) => fix.to_owned(),
            None if problem.is_clash() => {
                let release = commands.release(subnet, None);
                format!("{release} if no node uses it, else give that node another subnet")
            }
            None => format!(
                "look at it with `flannelctl leases`; if its node is gone, {}",
                commands.release(&net, name)
            ),
        },
    )
}

/// The lease whose departure may make a peer usable, of those that announce the same as it.
fn disputed_with(problem: &PeerProblem) -> Option<Subnet> {
    match problem {
        PeerProblem::IdentityTaken { holder: rival, .. }
        | PeerProblem::IdentityDisputed { rival, .. } => Some(*rival),
        _ => None,
    }
}

fn say(lease: &Lease, problem: &PeerProblem, is_news: bool) {
    let (subnet, address) = (lease.subnet, address(&lease.attrs));
    match problem {
        _ if !is_news => tracing::debug!("Peer {subnet:#} at {address}: {problem}"),
        PeerProblem::Displaces { .. } => tracing::error!("Peer {subnet:#} at {address}: {problem}"),
        _ if problem.is_expected() => tracing::debug!("Peer {subnet:#} at {address}: {problem}"),
        _ => {
            let fix = problem.fix().map(|fix| format!("; {fix}")).unwrap_or_default();
            tracing::warn!("Peer {subnet:#} at {address}: {problem}{fix}");
        }
    }
}
