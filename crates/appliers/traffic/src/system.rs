//! The node as `rule_reconciler` sees it: a trait, so that it can be simulated, and the real one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use flannel_common::{Family, SearchPath};
use flannel_entries::rules::{Mode, Purpose};
use flannel_nft::{Event, EventObject, Monitor, Nft, NftError};
use ipnet::IpNet;

use crate::TrafficError;
use crate::firewall::{Firewall, Kind};
use crate::iptables::Iptables;
use crate::iptables::text::Place;
use crate::iptables::tool::{Signs, Variant};
use crate::legacy_tables::{self, LegacyTable};
use crate::nftables::{self, Nftables};
use crate::process::Machine;
use crate::served_networks::{self, ServedNetworks};
use crate::sweep::{self, Leftover};

/// Somebody has changed something where our rules are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disturbance {
    pub(crate) family: Family,
    pub(crate) by: Option<String>,
}

pub(crate) trait System: Send {
    /// The packet filter to keep rules in, the first of them of this family.
    fn open(&mut self, mode: Mode, family: Family) -> Result<Box<dyn Firewall>, TrafficError>;

    /// Nothing is kept any more: no change is of interest.
    fn close(&mut self) {}

    /// Whether changes to this kind of packet filter are announced.
    fn announces(&self, kind: Kind) -> bool;

    /// What has been announced since the last time, as far as it concerns this kind of packet filter.
    fn disturbances(&mut self, kind: Option<Kind>) -> Vec<Disturbance>;

    /// Readable when changes have been announced.
    fn announcements(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Says that these networks are kept here; returns those that other daemons on this node keep.
    fn serve_networks(&mut self, networks: &[IpNet]) -> Vec<IpNet>;

    /// While this is held, nobody else on this node changes rules of flannel.
    fn lock_rules(&mut self) -> Option<OwnedFd> {
        None
    }

    /// Returns what was removed, and what went wrong.
    fn sweep(&mut self, leftovers: &[Leftover]) -> (Vec<String>, Vec<TrafficError>);
}

/// This machine, in the network namespace of the thread that uses it.
pub(crate) struct Node {
    path: SearchPath,
    monitor: Option<Monitor>,
    served: ServedNetworks,
}

impl Node {
    pub(crate) fn new(path: SearchPath, served: ServedNetworks) -> Self {
        Self { path, monitor: None, served }
    }
}

impl System for Node {
    fn open(&mut self, mode: Mode, family: Family) -> Result<Box<dyn Firewall>, TrafficError> {
        if self.monitor.is_none() {
            let monitor = Monitor::open().inspect_err(|error| {
                tracing::warn!("the kernel announces no changes of traffic rules: {error}");
            });
            self.monitor = monitor.ok();
        }
        Ok(match mode {
            Mode::Nftables => Box::new(Nftables::open()?),
            Mode::Iptables => {
                let runner = Box::new(Machine);
                Box::new(Iptables::open(&self.path, runner, family, preferred_variant())?)
            }
        })
    }

    fn close(&mut self) {
        self.monitor = None;
    }

    fn announces(&self, kind: Kind) -> bool {
        self.monitor.is_some() && kind != Kind::IptablesLegacy
    }

    fn disturbances(&mut self, kind: Option<Kind>) -> Vec<Disturbance> {
        let Some(monitor) = &mut self.monitor else { return Vec::new() };
        match monitor.heard(|event| kind.is_some_and(|kind| concerns(kind, event))) {
            Ok(heard) if heard.missed => {
                Family::BOTH.map(|family| Disturbance { family, by: None }).into()
            }
            Ok(heard) => heard
                .changes
                .into_iter()
                .filter_map(|change| {
                    let mut families = Family::BOTH.into_iter();
                    let family = families
                        .find(|family| nftables::table_family(*family) as u8 == change.family)?;
                    Some(Disturbance { family, by: change.by })
                })
                .collect(),
            Err(error) => {
                tracing::warn!("the kernel no longer announces changes of traffic rules: {error}");
                self.monitor = None;
                Family::BOTH.map(|family| Disturbance { family, by: None }).into()
            }
        }
    }

    fn announcements(&self) -> Option<BorrowedFd<'_>> {
        self.monitor.as_ref().map(AsFd::as_fd)
    }

    fn serve_networks(&mut self, networks: &[IpNet]) -> Vec<IpNet> {
        self.served.set(networks);
        self.served.of_others()
    }

    fn lock_rules(&mut self) -> Option<OwnedFd> {
        served_networks::lock()
    }

    fn sweep(&mut self, leftovers: &[Leftover]) -> (Vec<String>, Vec<TrafficError>) {
        sweep::sweep(&self.path, leftovers)
    }
}

/// Whether a change may be one of our rules, or of the way to them.
fn concerns(kind: Kind, event: &Event<'_>) -> bool {
    match kind {
        Kind::Nftables => {
            Family::BOTH.into_iter().any(|family| nftables::table(family) == event.table)
        }
        Kind::IptablesNft => Purpose::ALL.into_iter().any(|purpose| {
            let place = Place::of(purpose);
            event.table == place.table
                && match event.object {
                    EventObject::Table => true,
                    // Somebody else's, however often it changes.
                    EventObject::Other => false,
                    EventObject::Chain(name) => name == place.chain || name == place.base,
                    EventObject::Rule(chain, _) if chain == place.chain => true,
                    EventObject::Rule(chain, body) => {
                        chain == place.base && body.may_jump_to(place.chain)
                    }
                }
        }),
        Kind::IptablesLegacy => false,
    }
}

/// Chains by which kubelet and kube-proxy can be known, and their tables.
const KUBE_CHAINS: [(&str, &str); 3] = [
    ("mangle", "KUBE-IPTABLES-HINT"),
    ("mangle", "KUBE-KUBELET-CANARY"),
    ("nat", "KUBE-POSTROUTING"),
];

fn flannel_chains() -> [(&'static str, &'static str); 4] {
    Purpose::ALL.map(|purpose| (Place::of(purpose).table, Place::of(purpose).chain))
}

fn preferred_variant() -> Option<Variant> {
    let nft = nft_signs().unwrap_or_default();
    Variant::preferred(nft, legacy_signs())
}

fn nft_signs() -> Result<Signs, NftError> {
    let mut nft = Nft::open()?;
    let mut any = |chains: &[(&str, &str)]| -> Result<bool, NftError> {
        for family in Family::BOTH {
            for (table, chain) in chains {
                if nft.has_chain(nftables::table_family(family), table, chain)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    Ok(Signs { kube: any(&KUBE_CHAINS)?, flannel: any(&flannel_chains())? })
}

fn legacy_signs() -> Signs {
    let any = |chains: &[(&str, &str)]| {
        Family::BOTH.into_iter().any(|family| {
            !legacy_tables::names(family).is_empty()
                && chains.iter().any(|(table, chain)| {
                    let table = LegacyTable::read(family, table).ok().flatten();
                    table.is_some_and(|table| table.mentions(chain))
                })
        })
    };
    Signs { kube: any(&KUBE_CHAINS), flannel: any(&flannel_chains()) }
}
