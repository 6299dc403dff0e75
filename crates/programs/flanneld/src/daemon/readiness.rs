//! Whether this node is ready, out of all that can be wrong with it.

use std::time::{Duration, Instant};

use flannel_state::{Finding, Layer, Verdict};
use flannel_wanted::{Importance, Problem, Status};

use super::Daemon;
use super::network::LostInterface;
use super::now::Now;
use crate::notify;
use crate::readiness::Readiness;

/// A peer whose entries the kernel keeps refusing holds up readiness this long, no longer.
const REFUSED_PEER_GRACE: Duration = Duration::from_secs(30);

pub(super) struct StartupReadiness {
    has_begun: bool,
    /// Until when peers that cannot be programmed keep the node from being ready.
    grace_ends: Instant,
}

impl StartupReadiness {
    pub(super) fn new(now: &Now) -> Self {
        Self { has_begun: false, grace_ends: now.instant + REFUSED_PEER_GRACE }
    }

    pub(super) fn next_wake(&self, now: &Now) -> Option<Instant> {
        (!self.has_begun && self.grace_ends > now.instant).then_some(self.grace_ends)
    }

    /// Whether the node is ready with entries that are not written, or waits for them.
    fn tolerates_missing_entries(&self, now: &Now) -> bool {
        self.has_begun || now.instant >= self.grace_ends
    }
}

const IN_ONE_LINE: usize = 3;

fn in_one_line(findings: &[Finding]) -> String {
    let first = findings.iter().take(IN_ONE_LINE).map(ToString::to_string);
    let mut text = first.collect::<Vec<_>>().join("; ");
    if findings.len() > IN_ONE_LINE {
        text += &format!("; and {} more", findings.len() - IN_ONE_LINE);
    }
    text
}

impl Daemon {
    /// What others have written that does not go together with what this node has.
    fn clash(&self, now: &Now) -> Option<Finding> {
        let refused = self.config.refused.as_ref().map(|refused| {
            let (cause, fix) = (
                "the node keeps its former network",
                "correct it in a file, then `flannelctl config set FILE`",
            );
            Finding::broken(Layer::Config, &refused.why, cause, fix).with_traffic()
        });
        refused.or_else(|| {
            let cause = self.own.contest(now.instant)?;
            let fix = "`flannelctl leases` shows which node has it";
            Some(Finding::broken(Layer::Lease, "this node", cause, fix))
        })
    }

    fn obstacle(&self, status: &Status, now: &Now) -> Option<Finding> {
        let commands = self.setup.store.operator_commands();
        let mut needed = status.problems.iter().filter(|it| it.importance <= Importance::Required);
        self.subnet_file_issue()
            .or_else(|| needed.next().map(Problem::finding))
            .or_else(|| self.peers.obstacle(&self.table, commands))
            .or_else(|| self.clash(now))
    }

    /// Whether pods of this node reach those of others, as far as it can tell, and why, the first of each kind.
    pub(super) fn reasons(&self, status: &Status, now: &Now) -> (Verdict, Vec<Finding>) {
        if let Some(obstacle) = self.obstacle(status, now) {
            return (Verdict::NotReady, vec![obstacle]);
        }
        if !status.has_all_needed() && !self.readiness.tolerates_missing_entries(now) {
            let about = format!("{} of {} entries", status.bad, status.wanted);
            let fix = "wait; `flannelctl diff` shows what is missing";
            let pending = Finding::broken(Layer::Entries, about, "they are not written yet", fix);
            return (Verdict::NotReady, vec![pending]);
        }
        let lost = self.network.lost.as_ref().map(|LostInterface { why, since }| {
            let fix = "bring it back as it was, or name another one (`flanneld --iface`)";
            match self.has_reached_peers_since(*since) {
                true => {
                    Finding::warning(Layer::Underlay, why, "peers are reached all the same", fix)
                }
                false => Finding::broken(Layer::Underlay, why, "no peer is reached", fix),
            }
        });
        let bridge = self.stale_bridge().map(|bridge| bridge.finding());
        let hazards = status.hazards.iter().cloned();
        let (flows, cut): (Vec<_>, Vec<_>) =
            bridge.into_iter().chain(lost).chain(hazards).partition(|found| found.traffic_flows);
        if !cut.is_empty() {
            return (Verdict::CutOff, cut);
        }
        let remarks = self.peers.remarks(&self.table, self.setup.store.operator_commands());
        let findings: Vec<Finding> = flows.into_iter().chain(remarks).collect();
        let verdict = if findings.is_empty() { Verdict::Ready } else { Verdict::ReadyBut };
        (verdict, findings)
    }

    pub(super) fn judge(&mut self, status: &Status, now: &Now) {
        let (verdict, findings) = self.reasons(status, now);
        let readiness = Readiness::new(verdict, in_one_line(&findings));
        if readiness.has_begun() && !self.readiness.has_begun {
            self.readiness.has_begun = true;
            tracing::info!(event = "ready", "flannel is ready");
            notify::status(&format!("{} peers, subnet {}", self.table.len(), self.own.subnet()));
        }
        self.setup.report.say(readiness);
    }
}
