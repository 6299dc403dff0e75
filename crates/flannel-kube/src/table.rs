//! The Nodes of the cluster that are flannel's, and what a changed one means for the leases.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use flannel_common::shorten;
use flannel_lease::{Lease, LeaseAttrs, Subnet, Version};
use flannel_store::{AnnouncedSince, LeaseConflict, StoreFindings, StoredLease};

use crate::annotations::Key;
use crate::lease::{Families, NodeLease, Overwrites, attrs, in_families, lease_of, subnet};
use crate::node::NodeView;
use crate::packed::Packed;
use crate::patch::announcement;

/// How much is kept of why a Node cannot be sent to.
const LONGEST_REASON: usize = 300;

#[derive(Debug)]
pub struct NodeTable {
    nodes: BTreeMap<Box<str>, Known>,
    families: Families,
    own: OwnNode,
    /// Whether leases tell the name of their Node, for those who serve them to others.
    named: bool,
    /// Counts the whole lists that were begun.
    list: u32,
    /// Nodes that announce what cannot be used, and why.
    unusable: BTreeMap<Box<str>, Box<str>>,
}

/// Of thousands of Nodes, so it is small.
#[derive(Debug)]
struct Known {
    /// What it said last: most of what a Node says, again and again, is nothing new to us.
    says: Packed,
    /// The list that it was last in.
    list: u32,
    /// Of whatever families it has; `None` when it cannot be sent to.
    subnet: Option<Subnet>,
    /// When its Node came to be, which its kubelet cannot choose.
    since: Option<AnnouncedSince>,
}

impl Known {
    /// As a store has it: what Kubernetes has assigned stays assigned for as long as the Node lives.
    fn stored(&self, lease: Lease) -> StoredLease {
        StoredLease { lease, version: Version::UNKNOWN, since: self.since, reserved: true }
    }
}

/// The Node of this very node.
#[derive(Debug)]
struct OwnNode {
    name: Box<str>,
    seen: Option<NodeView<'static>>,
    listed: bool,
    /// What this node has announced itself as.
    announced: Option<LeaseAttrs>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum LeaseChange {
    Put(StoredLease),
    Gone(Subnet),
}

impl NodeTable {
    /// `own` is the name of this node's own Node.
    pub fn new(own: &str, families: Families) -> Self {
        let own = OwnNode { name: own.into(), seen: None, listed: false, announced: None };
        Self {
            nodes: BTreeMap::new(),
            families,
            own,
            named: false,
            list: 0,
            unusable: BTreeMap::new(),
        }
    }

    /// For clients that are not nodes: leases carry the name of their Node, and what an operator has written
    /// instead of a node's address counts before the node itself has taken it up.
    pub fn named(families: Families) -> Self {
        Self { named: true, ..Self::new("", families) }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// This node's own Node, as it was last seen.
    pub fn own(&self) -> Option<&NodeView<'static>> {
        self.own.seen.as_ref()
    }

    /// What this node announces itself as from now on. That is its lease, whatever its Node says: an operator
    /// may have put another address there, or somebody may have meddled with it.
    pub fn announce(&mut self, attrs: LeaseAttrs) {
        self.own.announced = Some(attrs);
    }

    /// What this node has announced, if its Node says something else.
    pub fn contradicted(&self) -> Option<&LeaseAttrs> {
        let (announced, seen) = (self.own.announced.as_ref()?, self.own.seen.as_ref()?);
        let overwrites = Overwrites::read(&seen.annotations).unwrap_or_default();
        let says =
            |(key, wanted): &(Key, Option<String>)| seen.annotations.get(*key) == wanted.as_deref();
        (!announcement(announced, &overwrites).iter().all(says)).then_some(announced)
    }

    /// Another Node that has this node's own subnet.
    pub fn twin(&self) -> Option<Box<str>> {
        let own = self.nodes.get(&*self.own.name)?.subnet?;
        self.twin_of(&self.own.name, own)
    }

    /// Another Node that has the subnet of the Node of this name.
    pub fn twin_of(&self, own: &str, subnet: Subnet) -> Option<Box<str>> {
        let same = |known: &Known| known.subnet.is_some_and(|it| it.overlaps(&subnet));
        let mut others = self.nodes.iter().filter(|(name, _)| ***name != *own);
        others.find(|(_, known)| same(known)).map(|(name, _)| name.clone())
    }

    /// Nodes that get no packets.
    pub fn findings(&self) -> StoreFindings {
        StoreFindings { conflicts: self.conflicts(), unusable: self.unusable.clone() }
    }

    /// Nodes that announce what cannot be used, and why.
    pub(crate) fn unusable(&self) -> &BTreeMap<Box<str>, Box<str>> {
        &self.unusable
    }

    /// Nodes that were given one subnet, by who gets its packets.
    fn conflicts(&self) -> Vec<LeaseConflict> {
        let mut conflicts: BTreeMap<Subnet, LeaseConflict> = BTreeMap::new();
        for (name, known) in &self.nodes {
            let Some(lease) = self.lease_of(name, known) else { continue };
            let others = Vec::new();
            let conflict = LeaseConflict { subnet: lease.subnet, holder: name.clone(), others };
            match conflicts.entry(lease.subnet) {
                Entry::Vacant(free) => _ = free.insert(conflict),
                Entry::Occupied(mut taken) => taken.get_mut().others.push(name.clone()),
            }
        }
        conflicts.into_values().filter(|conflict| !conflict.others.is_empty()).collect()
    }

    /// All Nodes on this subnet or part of it: more than one is a mistake of whoever made them.
    pub(crate) fn names_on(&self, subnet: Subnet) -> Vec<Box<str>> {
        let on = |known: &Known| known.subnet.is_some_and(|it| it.overlaps(&subnet));
        self.nodes.iter().filter(|(_, known)| on(known)).map(|(name, _)| name.clone()).collect()
    }

    /// What an operator has written into the Node of this name instead of its address.
    pub(crate) fn overwrites(&self, name: &str) -> Overwrites {
        let known = self.nodes.get(name).map(|known| known.says.node());
        let read = known.and_then(|node| Overwrites::read(&node.annotations).ok());
        read.unwrap_or_default()
    }

    pub fn families(&self) -> Families {
        self.families
    }

    /// Whether that is other than before, so that all leases are.
    pub fn set_families(&mut self, families: Families) -> bool {
        std::mem::replace(&mut self.families, families) != families
    }

    /// A whole list begins: what is not [`Self::listed`] before [`Self::end_list`] is gone.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.own.listed = false;
    }

    pub fn listed(&mut self, node: &NodeView<'_>) {
        if self.is_news(node) {
            self.take(node);
        }
    }

    /// Returns all leases.
    pub fn end_list(&mut self) -> Vec<StoredLease> {
        let list = self.list;
        // Made anew, the map is as small as it can be: that grown Node by Node is half empty.
        let all = std::mem::take(&mut self.nodes);
        self.nodes = all.into_iter().filter(|(_, known)| known.list == list).collect();
        if !self.own.listed {
            self.own.seen = None;
        }
        let nodes = &self.nodes;
        self.unusable.retain(|name, _| nodes.contains_key(name));
        self.leases()
    }

    /// All leases. Of two Nodes with one subnet the first by name has it, wherever that is asked.
    pub fn leases(&self) -> Vec<StoredLease> {
        let mut leases: BTreeMap<Subnet, StoredLease> = BTreeMap::new();
        for (name, known) in &self.nodes {
            let Some(lease) = self.lease_of(name, known) else { continue };
            match leases.entry(lease.subnet) {
                Entry::Vacant(free) => _ = free.insert(known.stored(lease)),
                Entry::Occupied(taken) => tracing::warn!(
                    "Node {name} has the podCIDR {}, and so has another one: it is not sent to; \
                     delete one of the two Nodes and let it be made anew",
                    taken.key()
                ),
            }
        }
        leases.into_values().collect()
    }

    /// A Node was made or written.
    pub fn put(&mut self, node: &NodeView<'_>) -> Vec<LeaseChange> {
        // Most often it is a heartbeat, which is to cost next to nothing.
        if !self.is_news(node) {
            return Vec::new();
        }
        let before = self.lease(&node.name).map(|lease| lease.subnet);
        if !self.take(node) {
            return Vec::new();
        }
        let now = self.lease(&node.name).map(|lease| lease.subnet);
        let left = before.filter(|before| Some(*before) != now).map(|before| self.left(before));
        let holder = now.and_then(|now| self.holder(now));
        let owner = holder.as_ref().and_then(|stored| stored.lease.attrs.owner.as_deref());
        if let Some(holder) = owner
            && before != now
            && *holder != *node.name
        {
            tracing::warn!(
                "Node {} has the podCIDR of Node {holder}: it is not sent to; delete one of the two Nodes and let it \
                 be made again",
                node.name
            );
        }
        let put = holder.map(LeaseChange::Put);
        left.into_iter().chain(put).collect()
    }

    /// A Node was deleted.
    pub fn deleted(&mut self, name: &str) -> Option<LeaseChange> {
        let before = self.lease(name);
        self.nodes.remove(name);
        self.unusable.remove(name);
        if *self.own.name == *name {
            self.own.seen = None;
        }
        before.map(|lease| self.left(lease.subnet))
    }

    /// Takes note that there is such a Node; whether it is other than it was.
    fn is_news(&mut self, node: &NodeView<'_>) -> bool {
        if *self.own.name == *node.name {
            self.own.listed = true;
            self.own.seen = Some(node.clone().into_owned());
        }
        match self.nodes.get_mut(&*node.name) {
            Some(known) if known.says.is_of(node) => {
                known.list = self.list;
                false
            }
            _ => true,
        }
    }

    /// Takes note of what has become of a Node; whether that is anything to flannel.
    fn take(&mut self, node: &NodeView<'_>) -> bool {
        self.unusable.remove(&*node.name);
        let subnet = match lease_of(node) {
            _ if self.announced(&node.name).is_some() => subnet(node).ok().flatten(),
            NodeLease::Lease(lease) => Some(lease.subnet),
            NodeLease::Unusable(why) => {
                tracing::warn!("Node {} runs flannel and cannot be sent to: {why}", node.name);
                self.unusable.insert((*node.name).into(), shorten(&why, LONGEST_REASON).into());
                None
            }
            NodeLease::NotOurs => return self.nodes.remove(&*node.name).is_some(),
        };
        let since = node.created.and_then(|at| AnnouncedSince::new(at.get()));
        let known = Known { says: Packed::of(node), list: self.list, subnet, since };
        match self.nodes.get_mut(&*node.name) {
            Some(before) => *before = known,
            None => _ = self.nodes.insert((*node.name).into(), known),
        }
        true
    }

    /// What this node has announced, if the Node of this name is its own.
    fn announced(&self, name: &str) -> Option<&LeaseAttrs> {
        self.own.announced.as_ref().filter(|_| *self.own.name == *name)
    }

    /// The lease of a Node, as this network sees it.
    fn lease(&self, name: &str) -> Option<Lease> {
        self.lease_of(name, self.nodes.get(name)?)
    }

    fn lease_of(&self, name: &str, known: &Known) -> Option<Lease> {
        let (subnet, node) = (known.subnet?, known.says.node());
        let attrs = match self.announced(name) {
            Some(attrs) => attrs.clone(),
            None => {
                let mut attrs = attrs(&node.annotations).ok()?;
                attrs.machine = node.machine;
                if self.named {
                    Overwrites::read(&node.annotations).unwrap_or_default().apply(&mut attrs);
                }
                attrs
            }
        };
        let mut lease = in_families(Lease { subnet, attrs }, self.families)?;
        // What this node announces of itself has no name.
        let own = self.announced(name).is_some();
        lease.attrs.owner = (self.named || !own).then(|| name.into());
        Some(lease)
    }

    /// The subnet that the Node of this name has.
    pub(crate) fn subnet_of(&self, name: &str) -> Option<Subnet> {
        self.nodes.get(name)?.subnet
    }

    /// The name of the Node that has this subnet.
    pub(crate) fn named_of(&self, subnet: Subnet) -> Option<Box<str>> {
        self.holder(subnet)?.lease.attrs.owner
    }

    /// The lease of whoever has this subnet.
    fn holder(&self, subnet: Subnet) -> Option<StoredLease> {
        let has = |known: &Known| known.subnet.is_some_and(|it| it.overlaps(&subnet));
        let mut likely = self.nodes.iter().filter(|(_, known)| has(known));
        likely.find_map(|(name, known)| {
            let lease = self.lease_of(name, known).filter(|lease| lease.subnet == subnet)?;
            Some(known.stored(lease))
        })
    }

    /// A Node no longer has this subnet; another Node may have it.
    fn left(&self, subnet: Subnet) -> LeaseChange {
        self.holder(subnet).map_or(LeaseChange::Gone(subnet), LeaseChange::Put)
    }
}
