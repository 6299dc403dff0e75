//! Whether nodes report what is wrong, and nothing that is not: after the quiet they have nothing to report, and a fault
//! that lasts is among what they report.

use std::collections::BTreeSet;
use std::time::Duration;

use flannel_state::{Finding, Layer, Severity};

use crate::cluster::Cluster;
use crate::history::note;
use crate::host::SERVER;
use crate::invariants::{Invariants, Violation};

/// A node knows of a fault that lasts for so long.
const FAULT_TIME: Duration = Duration::from_secs(150);
/// Everything is right again so long after it.
const REPAIR_TIME: Duration = Duration::from_secs(240);
/// Pause between two times that somebody undoes an entry.
const UNDO_PAUSE: Duration = Duration::from_millis(500);

/// A fault of one node that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastingFault {
    StoreAway,
    WritesRefused,
    EntryUndone,
}

impl LastingFault {
    fn describe(self) -> &'static str {
        match self {
            Self::StoreAway => "that its lease server is out of reach",
            Self::WritesRefused => "that its kernel refuses what it writes",
            Self::EntryUndone => "that somebody keeps deleting its entries",
        }
    }

    fn is_reported_by(self, finding: &Finding) -> bool {
        match self {
            Self::StoreAway => finding.layer == Layer::Store,
            Self::WritesRefused | Self::EntryUndone => finding.layer == Layer::Entries,
        }
    }
}

/// A cluster in which everything is as wanted has nothing to report.
pub(crate) async fn check_healthy(cluster: &Cluster) -> Result<(), Violation> {
    let stored = cluster.stored().ok_or(Violation::NoServer)?;
    let attrs = || stored.leases.values().map(|lease| &lease.attrs);
    let machine_is_shared = has_duplicates(attrs().filter_map(|attrs| attrs.machine));
    let address_is_shared = has_duplicates(attrs().flat_map(|attrs| attrs.public_addresses()));
    for number in cluster.nodes() {
        let host = cluster.hosts[number].name();
        let Some(state) = cluster.state_of(number).await else {
            return Err(Violation::Silent(host));
        };
        let is_true = |finding: &Finding| {
            finding.severity == Severity::Note
                || machine_is_shared && finding.about.contains("one machine id")
                || address_is_shared && finding.cause.contains("one public address")
        };
        if let Some(finding) = state.findings().into_iter().find(|finding| !is_true(finding)) {
            return Err(Violation::FalseFinding { host, finding });
        }
    }
    Ok(())
}

/// Breaks something of one node for a while, and looks whether the node reports it.
pub(crate) async fn check_lasting_fault(
    cluster: &Cluster,
    invariants: &mut Invariants,
    rng: &mut fastrand::Rng,
) -> Result<(), Violation> {
    let faults = [LastingFault::StoreAway, LastingFault::WritesRefused, LastingFault::EntryUndone];
    let fault = faults[rng.usize(..faults.len())];
    let node = rng.usize(cluster.nodes());
    let kernel = &cluster.hosts[node].kernel;
    note(format_args!("{} is to report {}", cluster.hosts[node].name(), fault.describe()));
    match fault {
        LastingFault::StoreAway => cluster.network.cut(SERVER, node),
        LastingFault::WritesRefused => {
            kernel.refusals.set(u32::MAX);
            kernel.delete_route(0);
        }
        LastingFault::EntryUndone => {}
    }
    let mut pauses = FAULT_TIME.as_millis() / UNDO_PAUSE.as_millis();
    while pauses > 0 {
        if fault == LastingFault::EntryUndone {
            kernel.delete_route(0);
        }
        tokio::time::sleep(UNDO_PAUSE).await;
        invariants.check(cluster)?;
        pauses -= 1;
    }
    let state = cluster.state_of(node).await;
    let host = cluster.hosts[node].name();
    let findings = state.ok_or(Violation::Silent(host.clone()))?.findings();
    // Whoever is alone has no entries that could be missing.
    let is_alone = cluster.nodes().len() < 2 && fault != LastingFault::StoreAway;
    if !is_alone && !findings.iter().any(|finding| fault.is_reported_by(finding)) {
        let found = findings.iter().map(ToString::to_string).collect();
        return Err(Violation::Unreported { host, fault: fault.describe(), found });
    }
    note(format_args!("{host} reports it, and the fault ends"));
    kernel.refusals.set(0);
    cluster.network.heal();
    tokio::time::sleep(REPAIR_TIME).await;
    invariants.check(cluster)?;
    invariants.check_settled(cluster)?;
    check_healthy(cluster).await
}

fn has_duplicates<T: Ord>(values: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    { values }.any(|value| !seen.insert(value))
}
