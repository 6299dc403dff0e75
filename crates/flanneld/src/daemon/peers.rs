//! Turns leases of other nodes into wishes. Unusable peers are reported once; vanished peers are kept for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use flannel_backend::{DesiredState, LinkIdentity, Meeting, PeerProblem, WantedBy, Wishes};
use flannel_common::OperatorCommands;
use flannel_lease::{Change, Lease, LeaseTable, Subnet};
use flannel_state::PeerCounts;
use flannel_store::AnnouncedSince;

use super::identity::address;
use super::link_holders::{HolderMap, LinkHolders, order_of_arrival};
use super::network::JoinedNetwork;
use super::timing::GRACE_FOR_THE_VANISHED;

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
                "Peer {subnet:#} has announced itself anew, at {}",
                address(attrs)
            ),
            Change::Gone(subnet) => {
                tracing::debug!(event = "peer-gone", "Peer {subnet:#} is gone");
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Peers {
    /// Peers without wishes, and why.
    unusable: BTreeMap<Subnet, PeerProblem>,
    /// Peers whose subnet meets a network that this node is connected to, and is used all the same.
    overlapping: BTreeMap<Subnet, (Meeting, String)>,
    /// Peers missing from a whole new list, and until when they are still sent to.
    vanished: BTreeMap<Subnet, Instant>,
    /// Who was first known by what.
    link_holders: LinkHolders,
}

impl Peers {
    pub(super) fn new(remembered: HolderMap) -> Self {
        Self { link_holders: LinkHolders::new(remembered), ..Self::default() }
    }

    /// At the start nobody is seen to come: of leases with one MAC or key that nothing is remembered of, the one that was
    /// first by the store's account was there first.
    pub(super) fn take_order(
        &mut self,
        network: &JoinedNetwork,
        own: &Lease,
        table: &LeaseTable,
        arrived: &[(Subnet, Option<AnnouncedSince>)],
    ) {
        let mut claims: Vec<(LinkIdentity, _)> = Vec::new();
        for (subnet, since) in arrived {
            let attrs = if *subnet == own.subnet { Some(&own.attrs) } else { table.get(subnet) };
            let identities = attrs.map(|attrs| network.link_identities(attrs)).unwrap_or_default();
            let order = order_of_arrival((*subnet, *since));
            claims.extend(identities.into_iter().map(|identity| (identity, order)));
        }
        claims.sort_unstable();
        let disputed = claims.chunk_by(|(one, _), (other, _)| one == other);
        for group in disputed.filter(|group| group.len() > 1) {
            for (identity, (.., subnet)) in group {
                self.claim(network, own, table, *subnet, &[*identity]);
            }
        }
    }

    /// Takes note of what a lease announces, or says who announced it before.
    fn claim(
        &mut self,
        network: &JoinedNetwork,
        own: &Lease,
        table: &LeaseTable,
        subnet: Subnet,
        identities: &[LinkIdentity],
    ) -> Option<PeerProblem> {
        let vanished = &self.vanished;
        let attrs_of = |holder: &Subnet| {
            if *holder == own.subnet { Some(&own.attrs) } else { table.get(holder) }
        };
        let announces = |holder: &Subnet, identity: &LinkIdentity| {
            let now = |attrs| network.link_identities(attrs).contains(identity);
            vanished.contains_key(holder) || attrs_of(holder).is_some_and(now)
        };
        self.link_holders.tidy(table.len(), &announces);
        let (identity, holder) = self.link_holders.claim(subnet, identities, &announces)?;
        let address = attrs_of(&holder).and_then(|it| flannel_backend::public_addresses(it).next());
        Some(PeerProblem::IdentityTaken { identity, holder, address })
    }

    /// Who holds which MAC or key, if that is to be kept now.
    pub(super) fn take_holder_changes(&mut self, now: Instant) -> Option<HolderMap> {
        self.link_holders.take_changes(now)
    }

    /// When holders are next to be kept.
    pub(super) fn next_holder_write(&self) -> Option<Instant> {
        self.link_holders.next_write()
    }

    /// Peers whose MAC or key another one has, to be thought over now that somebody has left.
    pub(super) fn waiting(&self, table: &LeaseTable) -> Vec<Change> {
        let waiting = self.unusable.iter().filter(|(_, it)| disputed_identity(it).is_some());
        let lease =
            |subnet: &Subnet| Some(Lease { subnet: *subnet, attrs: table.get(subnet)?.clone() });
        waiting.filter_map(|(subnet, _)| lease(subnet)).map(Change::Changed).collect()
    }

    /// What all peers make wanted.
    pub(super) fn all(
        &mut self,
        network: &JoinedNetwork,
        own: &Lease,
        table: &LeaseTable,
    ) -> DesiredState {
        self.unusable.clear();
        self.overlapping.clear();
        self.vanished.clear();
        // And the node itself.
        let mut desired = DesiredState::with_capacity(table.len() + 1);
        self.claim(network, own, table, own.subnet, &network.link_identities(&own.attrs));
        for (subnet, attrs) in table.iter() {
            let lease = Lease { subnet: *subnet, attrs: attrs.clone() };
            desired.want(WantedBy::Peer(*subnet), self.wishes(network, own, table, &lease));
        }
        desired
    }

    /// What those make wanted that changed.
    pub(super) fn changed(
        &mut self,
        network: &JoinedNetwork,
        own: &Lease,
        table: &LeaseTable,
        changes: Vec<Change>,
    ) -> DesiredState {
        let mut desired = DesiredState::with_capacity(changes.len());
        let concerned: BTreeSet<Subnet> = changes.iter().map(Change::subnet).collect();
        for change in changes {
            match change {
                Change::New(lease) | Change::Changed(lease) => {
                    self.vanished.remove(&lease.subnet);
                    self.make_room(&lease.subnet, &mut desired);
                    let wishes = self.wishes(network, own, table, &lease);
                    desired.change(WantedBy::Peer(lease.subnet), wishes);
                }
                Change::Gone(subnet) => self.forget(subnet, &mut desired),
            }
        }
        // Whoever had to stand back for one of these may have its turn now.
        let waiting = self.unusable.iter().filter(|(subnet, problem)| {
            let waits_for = disputed_identity(problem).map(|(_, holder)| holder);
            !concerned.contains(*subnet) && waits_for.is_some_and(|it| concerned.contains(&it))
        });
        for subnet in waiting.map(|(subnet, _)| *subnet).collect::<Vec<_>>() {
            let Some(attrs) = table.get(&subnet) else { continue };
            let lease = Lease { subnet, attrs: attrs.clone() };
            desired.change(WantedBy::Peer(subnet), self.wishes(network, own, table, &lease));
        }
        desired
    }

    /// Holds back the removals of a whole new list, which may come from an old backup.
    pub(super) fn spare_the_vanished(&mut self, changes: Vec<Change>, now: Instant) -> Vec<Change> {
        let (gone, changes): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| matches!(change, Change::Gone(_)));
        if !gone.is_empty() {
            tracing::warn!(
                "{} peers are missing from the store's new list: they are still sent to for {:.0?}, \
                 unless their subnets are given to others",
                gone.len(),
                GRACE_FOR_THE_VANISHED
            );
        }
        for change in gone {
            if let Change::Gone(subnet) = change {
                self.vanished.entry(subnet).or_insert(now + GRACE_FOR_THE_VANISHED);
            }
        }
        changes
    }

    /// Counts the known peers by state, without what only the appliers know.
    pub(super) fn counts(&self, known: usize) -> PeerCounts {
        let (unusable, vanished) = (self.unusable.len(), self.vanished.len());
        PeerCounts { known, unusable, vanished, incomplete: 0 }
    }

    /// How many peers cannot be used, by why.
    pub(super) fn unusable_by_kind(&self) -> BTreeMap<&'static str, usize> {
        let mut kinds = BTreeMap::new();
        for problem in self.unusable.values() {
            *kinds.entry(problem.kind()).or_default() += 1;
        }
        kinds
    }

    /// Peers missing from a whole new list that are still sent to.
    pub(super) fn vanished(&self) -> impl Iterator<Item = &Subnet> {
        self.vanished.keys()
    }

    /// Peers that nothing leads to, and why.
    pub(super) fn unusable(&self) -> impl Iterator<Item = (&Subnet, &PeerProblem)> {
        self.unusable.iter()
    }

    /// Why nothing leads to a peer.
    pub(super) fn why_unusable(&self, subnet: &Subnet) -> Option<String> {
        self.unusable.get(subnet).map(ToString::to_string)
    }

    /// Another node's lease that overlaps ours. It gets nothing here, and this node goes on: whoever wrote it may have been
    /// anybody.
    fn clash(&self, commands: OperatorCommands) -> Option<String> {
        let (subnet, problem) = self.unusable.iter().find(|(_, problem)| problem.is_clash())?;
        Some(format!("peer {subnet}: {problem}; {}", overlap_fix(subnet, commands)))
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
    pub(super) fn obstacle(&self, commands: OperatorCommands) -> Option<String> {
        let displaced = self.unusable.iter().filter_map(|(subnet, problem)| {
            let displaces = matches!(problem, PeerProblem::Displaces { .. });
            let release = || commands.release(subnet, None);
            displaces.then(|| format!("lease {subnet}: {problem}; to give it back: {}", release()))
        });
        let around = self.overlapping.values().filter(|(meeting, _)| *meeting == Meeting::Around);
        first_of(displaced.chain(around.map(|(_, said)| said.clone())))
    }

    /// What is worth knowing, and keeps no pod from another.
    pub(super) fn remark(&self, commands: OperatorCommands) -> Option<String> {
        let inside = self.overlapping.values().filter(|(meeting, _)| *meeting != Meeting::Around);
        let inside = first_of(inside.map(|(_, said)| said));
        self.strangers()
            .into_iter()
            .chain(self.clash(commands))
            .chain(inside)
            .reduce(|all, one| format!("{all}; {one}"))
    }

    /// Peers with another backend, while a network changes from one to the other node by node. Were this node not
    /// ready for it, whoever changes one node after the other would wait for ever at the first.
    fn strangers(&self) -> Option<String> {
        let strangers = self.unusable.iter().filter(|(_, problem)| is_stranger(problem));
        first_of(strangers.map(|(subnet, problem)| format!("peer {subnet}: {problem}")))
    }

    /// Thousands of peers may lie in one network: the first is said, the rest are like it.
    fn note_overlap(&mut self, lease: &Lease, found: Option<(Meeting, String)>) {
        let Some((meeting, said)) = found else {
            self.overlapping.remove(&lease.subnet);
            return;
        };
        let first = !self.overlapping.values().any(|(known, _)| *known == meeting);
        if first || meeting == Meeting::Around && !self.overlapping.contains_key(&lease.subnet) {
            tracing::warn!("{said}");
        }
        self.overlapping.insert(lease.subnet, (meeting, said));
    }

    fn wishes(
        &mut self,
        network: &JoinedNetwork,
        own: &Lease,
        table: &LeaseTable,
        lease: &Lease,
    ) -> Wishes {
        let wishes = network.peer(own, lease).and_then(|wishes| {
            let identities = network.link_identities(&lease.attrs);
            let taken = self.claim(network, own, table, lease.subnet, &identities);
            taken.map_or(Ok(wishes), Err)
        });
        match wishes {
            Ok(wishes) => {
                let former = self.unusable.remove(&lease.subnet);
                if former.as_ref().is_some_and(is_stranger) && self.strangers().is_none() {
                    tracing::info!("Every peer uses the same backend as this node now");
                }
                self.note_overlap(lease, network.overlap(lease).filter(|_| !wishes.is_empty()));
                wishes
            }
            Err(problem) => {
                self.overlapping.remove(&lease.subnet);
                if self.unusable.get(&lease.subnet) != Some(&problem) {
                    // Thousands of peers may have another backend: the first is said, the rest are like it.
                    let like_it = |other: &PeerProblem| is_stranger(other) && *other == problem;
                    say(lease, &problem, !self.unusable.values().any(like_it));
                    self.unusable.insert(lease.subnet, problem);
                }
                Wishes::default()
            }
        }
    }
}

/// What an operator does about a lease that overlaps this node's.
pub(super) fn overlap_fix(subnet: &Subnet, commands: OperatorCommands) -> String {
    let release = commands.release(subnet, None);
    format!("{release} if no node uses it, else give that node another subnet")
}

/// What a peer announces that another one had first, and which one.
fn disputed_identity(problem: &PeerProblem) -> Option<(LinkIdentity, Subnet)> {
    match problem {
        PeerProblem::IdentityTaken { identity, holder, .. } => Some((*identity, *holder)),
        _ => None,
    }
}

fn is_stranger(problem: &PeerProblem) -> bool {
    matches!(problem, PeerProblem::OtherBackend { .. })
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

/// The first of several, and how many there are.
fn first_of<T: AsRef<str>>(all: impl Iterator<Item = T>) -> Option<String> {
    let mut all = all.peekable();
    let first = all.next()?.as_ref().to_owned();
    match all.count() {
        0 => Some(first),
        more => Some(format!("{first} (and {more} more like it)")),
    }
}
