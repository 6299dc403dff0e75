//! What backends want, one list per applier.
//!
//! One list for each applier. A new applier is one more list in both types below; the compiler then names
//! every place that must know it, the last of which is the daemon's `Appliers`.

use std::fmt;

use flannel_entries::cloud::CloudEntry;
use flannel_entries::commands::Hook;
use flannel_entries::ipsec::IpsecEntry;
use flannel_entries::kernel::Entry;
use flannel_entries::rules::TrafficRules;
use flannel_entries::tunnel::TunnelEntry;
use flannel_lease::Subnet;
use flannel_wanted::{Desired, KeyedEntry};

/// Who wants an entry. If the node and a peer want the same one, the node's version is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WantedBy {
    Node,
    Peer(Subnet),
    /// A backend that is tried beside the one in use: see [`crate::trial_wishes`].
    Trial,
}

impl fmt::Display for WantedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("this node"),
            Self::Peer(subnet) => write!(f, "the peer {subnet:#}"),
            Self::Trial => f.write_str("a backend that is tried"),
        }
    }
}

/// What the node itself, or one peer, makes wanted. Lists that a backend does not use cost nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub kernel: Vec<Entry>,
    pub commands: Vec<Hook>,
    pub tunnel: Vec<TunnelEntry>,
    pub cloud: Vec<CloudEntry>,
    pub ipsec: Vec<IpsecEntry>,
}

impl Wishes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn descriptions(&self) -> impl Iterator<Item = String> + '_ {
        let Self { kernel, commands, tunnel, cloud, ipsec } = self;
        let kernel = kernel.iter().map(KeyedEntry::describe);
        let commands = commands.iter().map(KeyedEntry::describe);
        let tunnel = tunnel.iter().map(KeyedEntry::describe);
        let cloud = cloud.iter().map(KeyedEntry::describe);
        let ipsec = ipsec.iter().map(KeyedEntry::describe);
        kernel.chain(commands).chain(tunnel).chain(cloud).chain(ipsec)
    }
}

/// Those of a backend that needs nobody but the kernel.
impl From<Vec<Entry>> for Wishes {
    fn from(kernel: Vec<Entry>) -> Self {
        Self { kernel, ..Self::default() }
    }
}

/// The wishes of many, as appliers take them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredState {
    pub kernel: Desired<WantedBy, Entry>,
    pub commands: Desired<WantedBy, Hook>,
    pub tunnel: Desired<WantedBy, TunnelEntry>,
    pub cloud: Desired<WantedBy, CloudEntry>,
    pub ipsec: Desired<WantedBy, IpsecEntry>,
    /// What flags and config ask for: no backend wants any.
    pub rules: Desired<WantedBy, TrafficRules>,
}

impl DesiredState {
    /// With room for so many in the kernel's list, which grows with the peers of most backends.
    pub fn with_capacity(requesters: usize) -> Self {
        Self { kernel: Vec::with_capacity(requesters), ..Self::default() }
    }

    /// Adds to a complete state: a requester without wishes need not be named.
    pub fn want(&mut self, who: WantedBy, wishes: Wishes) {
        let Wishes { kernel, commands, tunnel, cloud, ipsec } = wishes;
        want(&mut self.kernel, who, kernel);
        want(&mut self.commands, who, commands);
        want(&mut self.tunnel, who, tunnel);
        want(&mut self.cloud, who, cloud);
        want(&mut self.ipsec, who, ipsec);
    }

    /// Adds to a change: a requester without wishes wants nothing any more.
    pub fn change(&mut self, who: WantedBy, wishes: Wishes) {
        let Wishes { kernel, commands, tunnel, cloud, ipsec } = wishes;
        self.kernel.push((who, kernel));
        self.commands.push((who, commands));
        self.tunnel.push((who, tunnel));
        self.cloud.push((who, cloud));
        self.ipsec.push((who, ipsec));
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn want<E>(list: &mut Desired<WantedBy, E>, who: WantedBy, entries: Vec<E>) {
    if !entries.is_empty() {
        list.push((who, entries));
    }
}
