//! What clients asked of the lease server and what they were told, as they saw it: the history that `linearizability`
//! checks.

use std::cell::RefCell;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use flannel_lease::{LeaseAttrs, Subnet};

use crate::clib;

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

#[derive(Default)]
struct Log {
    operations: Vec<Operation>,
    moments: u64,
    keeps_nothing: bool,
}

/// Something that was asked, and the answer if it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) client: String,
    /// Name of the flannel network.
    pub(crate) network: String,
    pub(crate) call: Call,
    pub(crate) called: Moment,
    /// `None` if the connection broke before, or the server could not say whether it is done: then it may be carried out at
    /// any later time, or never.
    pub(crate) answer: Option<(Moment, Answer)>,
}

/// Place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) order: u64,
    pub(crate) at: Duration,
}

/// Machine as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Machine {
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Acquire {
        machine: Machine,
    },
    Renew {
        subnet: Subnet,
        machine: Machine,
        version: Option<u64>,
    },
    Release {
        subnet: Subnet,
        version: Option<u64>,
    },
    Reserve {
        subnet: Subnet,
        machine: Machine,
    },
    Unreserve {
        subnet: Subnet,
    },
    Import {
        subnet: Subnet,
        machine: Machine,
    },
    ListLeases,
    SetConfig {
        text: String,
        /// What is stored may differ from the text.
        force: bool,
    },
    ReadConfig,
    /// The store was replaced: nothing that was known before holds.
    StoreReplaced,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done,
    Lease(Subnet, LeaseSeen),
    Leases(Vec<(Subnet, LeaseSeen)>),
    Config(Option<String>),
    /// There is no lease of this subnet.
    Gone,
    /// It is another's.
    Taken(LeaseSeen),
    /// It is reserved.
    Reserved,
    /// Refused for a reason that says nothing of the lease; nothing was changed.
    Refused(String),
}

/// A lease as an answer showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseSeen {
    pub(crate) machine: Machine,
    pub(crate) version: u64,
    pub(crate) reserved: bool,
}

impl Machine {
    pub(crate) fn of(attrs: &LeaseAttrs) -> Self {
        Self { v4: attrs.public_ip, v6: attrs.public_ipv6 }
    }

    /// Whether they have an address in common.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.v4.is_some() && self.v4 == other.v4 || self.v6.is_some() && self.v6 == other.v6
    }
}

/// Operations are not kept from now on.
pub(crate) fn keep_nothing() {
    LOG.with_borrow_mut(|log| log.keeps_nothing = true);
}

pub(crate) fn keeps_nothing() -> bool {
    LOG.with_borrow(|log| log.keeps_nothing)
}

/// The present, after everything that was noted before.
pub(crate) fn moment() -> Moment {
    LOG.with_borrow_mut(|log| {
        log.moments += 1;
        Moment { order: log.moments, at: clib::elapsed() }
    })
}

/// Notes that a client has asked for something; returns the number of the operation.
pub(crate) fn called(client: String, network: String, call: Call, called: Moment) -> usize {
    LOG.with_borrow_mut(|log| {
        log.operations.push(Operation { client, network, call, called, answer: None });
        log.operations.len() - 1
    })
}

/// What an operation asked for.
pub(crate) fn call_of(operation: usize) -> Call {
    LOG.with_borrow(|log| log.operations[operation].call.clone())
}

/// Notes that a client has its answer.
pub(crate) fn answered(operation: usize, answer: Answer) {
    let now = moment();
    LOG.with_borrow_mut(|log| log.operations[operation].answer = Some((now, answer)));
}

/// Notes that the store was replaced, as by an old backup: what was acknowledged before may be lost.
pub(crate) fn store_replaced() {
    let operation = called("operator".into(), "_".into(), Call::StoreReplaced, moment());
    answered(operation, Answer::Done);
}

/// Everything so far.
pub(crate) fn all() -> Vec<Operation> {
    LOG.with_borrow(|log| log.operations.clone())
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.v4, self.v6) {
            (Some(v4), None) => write!(f, "{v4}"),
            (None, Some(v6)) => write!(f, "{v6}"),
            (Some(v4), Some(v6)) => write!(f, "{v4} {v6}"),
            (None, None) => f.write_str("nobody"),
        }
    }
}

impl fmt::Display for LeaseSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, version, reserved } = self;
        write!(f, "{machine} version {version}{}", if *reserved { " reserved" } else { "" })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |version: &Option<u64>| match version {
            Some(version) => format!(" if its version is {version}"),
            None => String::new(),
        };
        match self {
            Self::Acquire { machine } => write!(f, "acquire a lease for {machine}"),
            Self::Renew { subnet, machine, version: of } => {
                write!(f, "renew {subnet} for {machine}{}", version(of))
            }
            Self::Release { subnet, version: of } => write!(f, "release {subnet}{}", version(of)),
            Self::Reserve { subnet, machine } => write!(f, "reserve {subnet} for {machine}"),
            Self::Unreserve { subnet } => write!(f, "end the reservation of {subnet}"),
            Self::Import { subnet, machine } => write!(f, "import {subnet} of {machine}"),
            Self::ListLeases => f.write_str("list the leases"),
            Self::SetConfig { text, .. } => write!(f, "write the config {text}"),
            Self::ReadConfig => f.write_str("read the config"),
            Self::StoreReplaced => f.write_str("the store is replaced"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Lease(subnet, lease) => write!(f, "{subnet} is {lease}"),
            Self::Leases(leases) if leases.is_empty() => f.write_str("nobody has it"),
            Self::Leases(leases) => {
                let all = leases.iter().map(|(subnet, lease)| format!("{subnet} is {lease}"));
                f.write_str(&all.collect::<Vec<_>>().join(", "))
            }
            Self::Config(Some(text)) => f.write_str(text),
            Self::Config(None) => f.write_str("there is none"),
            Self::Gone => f.write_str("there is no such lease"),
            Self::Taken(lease) => write!(f, "refused: it is {lease}"),
            Self::Reserved => f.write_str("refused: it is reserved"),
            Self::Refused(code) => write!(f, "refused: {code}"),
        }
    }
}
