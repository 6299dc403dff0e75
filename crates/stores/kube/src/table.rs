//! Table of the Nodes that run flannel, and of the leases that they mean.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use flannel_backend::Stack;
use flannel_common::shorten;
use flannel_lease::{Lease, LeaseAttrs, Subnet, Version};
use flannel_store::{
    AnnouncedSince, LeaseConflict, PublicAddresses, StoreEvent, StoreFindings, StoredLease,
};

use crate::annotations::Key;
use crate::lease::{attrs, in_families, lease_of, overwrite, overwrites, subnet};
use crate::node::NodeView;
use crate::packed::PackedNode;
use crate::patch::announcement;

const MAX_REASON_BYTES: usize = 300;

#[derive(Debug, Default)]
pub struct NodeTable {
    nodes: BTreeMap<Box<str>, KnownNode>,
    pub(crate) families: Stack,
    /// Name of this node's own Node, what was last seen of it, and whether it is in the present list.
    own_name: Box<str>,
    pub(crate) own_node: Option<NodeView<'static>>,
    own_listed: bool,
    /// What this node has announced.
    own_attrs: Option<LeaseAttrs>,
    list: u32,
    /// Nodes whose announcement cannot be used, and why.
    pub(crate) unusable: BTreeMap<Box<str>, Box<str>>,
}

/// State of one of thousands of Nodes, so it is small.
#[derive(Debug)]
struct KnownNode {
    /// What it had last: most changes of a Node are nothing new to us.
    packed: PackedNode,
    /// Number of the list that it was last in.
    list: u32,
    /// Its subnet, of any family; `None` when it is unusable.
    subnet: Option<Subnet>,
    /// Creation of its Node, which its kubelet cannot choose.
    since: Option<AnnouncedSince>,
}

impl KnownNode {
    /// The lease of a store: what Kubernetes has assigned stays assigned for as long as the Node lives.
    fn stored(&self, lease: Lease) -> StoredLease {
        StoredLease { lease, version: Version::UNKNOWN, since: self.since, reserved: true }
    }
}

impl NodeTable {
    /// `own` is the name of this node's own Node. Without one, what an operator has written instead of a node's address
    /// counts before the node itself has taken it up.
    pub fn new(own: &str, families: Stack) -> Self {
        Self { own_name: own.into(), families, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Sets what this node announces. That is its lease, whatever is in its Node: an operator may have written another
    /// address there, or another writer something else.
    pub fn announce(&mut self, attrs: LeaseAttrs) {
        self.own_attrs = Some(attrs);
    }

    /// Attributes that this node has announced, if its Node has others.
    pub fn overwritten_attrs(&self) -> Option<&LeaseAttrs> {
        let (announced, seen) = (self.own_attrs.as_ref()?, self.own_node.as_ref()?);
        let overwrites = overwrites(&seen.annotations).unwrap_or_default();
        let packed =
            |(key, wanted): &(Key, Option<String>)| seen.annotations.get(*key) == wanted.as_deref();
        (!announcement(announced, &overwrites).iter().all(packed)).then_some(announced)
    }

    pub fn same_subnet(&self) -> Option<Box<str>> {
        let own = self.nodes.get(&*self.own_name)?.subnet?;
        self.other_on_subnet(&self.own_name, own)
    }

    pub fn other_on_subnet(&self, own: &str, subnet: Subnet) -> Option<Box<str>> {
        self.on(subnet).map(|(name, _)| name).find(|name| ***name != *own).cloned()
    }

    /// Nodes that get no packets.
    pub fn findings(&self) -> StoreFindings {
        StoreFindings { conflicts: self.conflicts(), unusable: self.unusable.clone() }
    }

    /// Nodes with the same subnet, by the one that gets its packets.
    fn conflicts(&self) -> Vec<LeaseConflict> {
        let mut conflicts: BTreeMap<Subnet, LeaseConflict> = BTreeMap::new();
        for (name, known) in &self.nodes {
            let Some(Lease { subnet, .. }) = self.lease_of(name, known) else { continue };
            let (holder, others) = (name.clone(), Vec::new());
            let conflict = conflicts.entry(subnet);
            let conflict = conflict.or_insert(LeaseConflict { subnet, holder, others });
            if conflict.holder != *name {
                conflict.others.push(name.clone());
            }
        }
        conflicts.into_values().filter(|conflict| !conflict.others.is_empty()).collect()
    }

    /// Names of all Nodes on this subnet or part of it: more than one is a mistake.
    pub(crate) fn names_on(&self, subnet: Subnet) -> Vec<Box<str>> {
        self.on(subnet).map(|(name, _)| name.clone()).collect()
    }

    fn on(&self, subnet: Subnet) -> impl Iterator<Item = (&Box<str>, &KnownNode)> {
        let is_on = move |known: &KnownNode| known.subnet.is_some_and(|it| it.overlaps(&subnet));
        self.nodes.iter().filter(move |(_, known)| is_on(known))
    }

    /// Addresses that an operator has written into the Node of this name.
    pub(crate) fn overwrites(&self, name: &str) -> PublicAddresses {
        let known = self.nodes.get(name).map(|known| known.packed.node());
        let read = known.and_then(|node| overwrites(&node.annotations).ok());
        read.unwrap_or_default()
    }

    /// Sets the families; whether they have changed, and with them all leases.
    pub fn set_families(&mut self, families: Stack) -> bool {
        std::mem::replace(&mut self.families, families) != families
    }

    /// Begins a list: what is not [`Self::listed`] before [`Self::end_list`] is gone.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.own_listed = false;
    }

    pub fn listed(&mut self, node: &NodeView<'_>) {
        if self.is_news(node) {
            self.apply(node);
        }
    }

    pub fn end_list(&mut self) {
        let list = self.list;
        // A map that is built at once is as small as can be: one that grew Node by Node is half empty.
        let all = std::mem::take(&mut self.nodes);
        self.nodes = all.into_iter().filter(|(_, known)| known.list == list).collect();
        if !self.own_listed {
            self.own_node = None;
        }
        let nodes = &self.nodes;
        self.unusable.retain(|name, _| nodes.contains_key(name));
    }

    /// All leases. Of two Nodes with one subnet the first by name has it, on every node.
    pub fn leases(&self) -> Vec<StoredLease> {
        let mut leases: BTreeMap<Subnet, StoredLease> = BTreeMap::new();
        for (name, known) in &self.nodes {
            let Some(lease) = self.lease_of(name, known) else { continue };
            match leases.entry(lease.subnet) {
                Entry::Vacant(free) => _ = free.insert(known.stored(lease)),
                Entry::Occupied(taken) => tracing::warn!(
                    "Node {name} has the same podCIDR {} as another one and gets no packets; delete one of the two Nodes and \
                     let it be created again",
                    taken.key()
                ),
            }
        }
        leases.into_values().collect()
    }

    pub fn put(&mut self, node: &NodeView<'_>) -> Vec<StoreEvent> {
        // Most often it is a heartbeat, which must cost next to nothing.
        if !self.is_news(node) {
            return Vec::new();
        }
        let before = self.lease(&node.name).map(|lease| lease.subnet);
        if !self.apply(node) {
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
                "Node {} has the podCIDR of Node {holder} and gets no packets; delete one of the two Nodes and let it \
                 be created again",
                node.name
            );
        }
        let put = holder.map(StoreEvent::Put);
        left.into_iter().chain(put).collect()
    }

    pub fn deleted(&mut self, name: &str) -> Option<StoreEvent> {
        let before = self.lease(name);
        self.nodes.remove(name);
        self.unusable.remove(name);
        if *self.own_name == *name {
            self.own_node = None;
        }
        before.map(|lease| self.left(lease.subnet))
    }

    /// Notes that there is such a Node; whether it has changed for us.
    fn is_news(&mut self, node: &NodeView<'_>) -> bool {
        if *self.own_name == *node.name {
            self.own_listed = true;
            self.own_node = Some(node.clone().into_owned());
        }
        match self.nodes.get_mut(&*node.name) {
            Some(known) if known.packed.matches(node) => {
                known.list = self.list;
                false
            }
            _ => true,
        }
    }

    /// Applies a changed Node; whether it is flannel's.
    fn apply(&mut self, node: &NodeView<'_>) -> bool {
        self.unusable.remove(&*node.name);
        let subnet = match lease_of(node) {
            _ if self.announced(&node.name).is_some() => subnet(node).ok().flatten(),
            Ok(Some(lease)) => Some(lease.subnet),
            Err(why) => {
                tracing::warn!("Node {} runs flannel and gets no packets: {why}", node.name);
                self.unusable.insert((*node.name).into(), shorten(&why, MAX_REASON_BYTES).into());
                None
            }
            Ok(None) => return self.nodes.remove(&*node.name).is_some(),
        };
        let since = node.created.and_then(|at| AnnouncedSince::about(at.get()));
        let known = KnownNode { packed: PackedNode::of(node), list: self.list, subnet, since };
        match self.nodes.get_mut(&*node.name) {
            Some(before) => *before = known,
            None => _ = self.nodes.insert((*node.name).into(), known),
        }
        true
    }

    /// Attributes that this node has announced, if the Node of this name is its own.
    fn announced(&self, name: &str) -> Option<&LeaseAttrs> {
        self.own_attrs.as_ref().filter(|_| *self.own_name == *name)
    }

    fn lease(&self, name: &str) -> Option<Lease> {
        self.lease_of(name, self.nodes.get(name)?)
    }

    fn lease_of(&self, name: &str, known: &KnownNode) -> Option<Lease> {
        let (subnet, node) = (known.subnet?, known.packed.node());
        let attrs = match self.announced(name) {
            Some(attrs) => attrs.clone(),
            None => {
                let mut attrs = attrs(&node.annotations).ok()?;
                attrs.machine = node.machine;
                if self.own_name.is_empty() {
                    overwrite(&mut attrs, &overwrites(&node.annotations).unwrap_or_default());
                }
                attrs
            }
        };
        let mut lease = in_families(Lease { subnet, attrs }, self.families)?;
        // This node's own announcement has no name.
        lease.attrs.owner = self.announced(name).is_none().then(|| name.into());
        Some(lease)
    }

    pub(crate) fn subnet_of(&self, name: &str) -> Option<Subnet> {
        self.nodes.get(name)?.subnet
    }

    pub(crate) fn named_of(&self, subnet: Subnet) -> Option<Box<str>> {
        self.holder(subnet)?.lease.attrs.owner
    }

    fn holder(&self, subnet: Subnet) -> Option<StoredLease> {
        self.on(subnet).find_map(|(name, known)| {
            let lease = self.lease_of(name, known).filter(|lease| lease.subnet == subnet)?;
            Some(known.stored(lease))
        })
    }

    /// Change of a subnet that a Node no longer has; another Node may have it.
    fn left(&self, subnet: Subnet) -> StoreEvent {
        self.holder(subnet).map_or(StoreEvent::Gone(subnet), StoreEvent::Put)
    }
}
