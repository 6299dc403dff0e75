//! What happens to a node, and what it does about it: plain data, so that a node can be driven by any loop.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use flannel_backend::{Answers, DesiredState, Need, WantedBy, Wishes};
use flannel_entries::facts::Path;
use flannel_entries::kernel::Ownership;
use flannel_entries::rules::TrafficRules;
use flannel_lease::{Change, SubnetFile};
use flannel_store::StoreEvent;
use flannel_wanted::{Desired, Status};
use ipnet::IpNet;

use super::config_check::ConfigCheck;
use super::key_rotation::KeyEvent;
use super::lease_task::{LeaseJob, LeaseOutcome};
use super::link_holders::HolderMap;
use super::network::HostFacts;
use super::network_conflicts::Conflict;
use super::probing::ProbeChange;
use super::requests::NodeNow;
use crate::state_file::Written;

/// What a node waits for, and the answers to what it asked for.
pub(super) enum Event {
    /// The node has a lease: everything is to be programmed for the first time.
    Joined,
    /// The store has said this, all that was there at once.
    Store(Vec<StoreEvent>),
    Lease(LeaseOutcome),
    Facts(HostFacts),
    /// Status of all appliers, after everything that earlier events asked for has been done.
    Status(Status),
    ConfigCheck(ConfigCheck),
    TrialEnded(Result<(), String>),
    NeedsResolved(Result<Answers, String>),
    /// Another network of this node has taken or given up addresses or devices.
    NetworksChanged,
    /// Probes have shown that checksums which the card or its driver makes are wrong.
    ChecksumsBroken,
    Timer,

    Paths(Vec<(IpAddr, Option<Path>)>, Declaration),
    IncompletePeers(BTreeSet<WantedBy>),
    SubnetFileWritten(Result<Written, String>),
    Key(KeyEvent),
    /// Answer to [`Action::ResolveHarmlessNeeds`]; no answers where nothing can be known without harm.
    HarmlessNeeds(ConfigCheck, Result<Option<Answers>, String>),
}

/// What a node wants done. Actions of one event are carried out in order, each before the next.
pub(super) enum Action {
    LookUpPaths {
        addresses: Vec<IpAddr>,
        then: Declaration,
    },
    /// Declares everything that is wanted for this number of peers.
    Replace {
        ownership: Box<Ownership>,
        desired: DesiredState,
        peers: usize,
    },
    Update(DesiredState),
    /// Ends the daemon if required traffic rules are not in force: a node that cannot masquerade is not to begin.
    RequireRules,
    /// Makes entries beside those in use; [`Event::TrialEnded`] says whether that worked.
    BeginTrial {
        networks: Vec<IpNet>,
        wishes: Wishes,
    },
    CancelTrial,
    /// Takes back what was tried and is not `kept`.
    EndTrial {
        networks: Vec<IpNet>,
        tried: Wishes,
        kept: Wishes,
        in_use: Box<Wishes>,
    },
    /// Finds out what a backend needs to know; [`Event::NeedsResolved`] has the answers.
    ResolveNeeds(Vec<Need>),
    CancelNeeds,
    /// Finds out what can be known without running or changing anything.
    ResolveHarmlessNeeds(Vec<Need>, ConfigCheck),
    /// Asks the store for this node's lease; [`Event::Lease`] has the outcome.
    AskStore(Box<LeaseJob>),
    /// Connections from the node's former addresses are dead.
    ReconnectStore,
    /// `is_expected`: the file was there, and it is worth a word if it is not.
    WriteSubnetFile {
        content: SubnetFile,
        is_expected: bool,
    },
    WithdrawSubnetFile,
    KeepHolders(HolderMap),
    KeepConfig(String),
    ReadNextKey,
    AdoptNextKey,
    FindIncompletePeers,
    Probe(ProbeChange),
    ShowNode(Box<NodeNow>),
    /// Changes that were heard of at this instant have been written by now.
    NoteLatency(Instant),
    TrimHeap,
    /// Another network has this one's addresses or device: removes what leads to peers of these networks, and ends.
    GiveUp {
        networks: Vec<IpNet>,
        /// They stay: the other's may stand in the same chains.
        rules: Desired<WantedBy, TrafficRules>,
        conflict: Conflict,
    },
}

/// What is declared once the paths to peers are known.
pub(super) enum Declaration {
    All { trial: Wishes },
    Changes(Vec<Change>),
}
