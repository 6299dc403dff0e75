//! Whether this node is ready, out of all that can be wrong with it.

use std::time::Instant;

use flannel_wanted::Status;

use super::Daemon;
use super::config_changes::RefusedConfig;
use crate::notify;
use crate::readiness::Readiness;

impl Daemon {
    /// What others have written that does not go together with what this node has.
    fn clash(&self) -> Option<String> {
        let refused = self.refused.as_ref().map(RefusedConfig::why);
        let refused = refused.map(|why| format!("{why}; the node keeps its former network"));
        refused.or_else(|| self.own.contest(Instant::now()))
    }

    /// Whether pods of this node reach those of others, as far as this node can tell.
    pub(super) fn judge(&mut self, status: &Status) {
        let obstacle = self.network.obstacle(status).or_else(|| self.rules.obstacle());
        let commands = self.setup.store.operator_commands();
        let obstacle = obstacle.or_else(|| self.peers.obstacle(commands));
        let obstacle = obstacle.or_else(|| self.clash());
        let readiness = match obstacle {
            _ if self.subnet_file_error.is_some() => {
                let why = self.subnet_file_error.as_deref().unwrap_or_default();
                Readiness::NotReady(format!("the subnet file cannot be written: {why}"))
            }
            Some(obstacle) => Readiness::NotReady(obstacle),
            None if status.is_settled() || self.ready || Instant::now() >= self.patience => {
                let bridge = self.stale_bridge().map(|bridge| bridge.to_string());
                let lost = self.network.lost_interface();
                let passed = lost.filter(|(_, since)| self.has_reached_peers_since(*since));
                match bridge.or_else(|| self.network.hindrance(status, passed.is_some())) {
                    Some(why) => Readiness::Hindered(why),
                    None => {
                        let passed = passed.map(|(why, _)| format!("{why}; peers are reached"));
                        let remarks = passed
                            .into_iter()
                            .chain(self.peers.remark(self.setup.store.operator_commands()));
                        let remark = remarks.reduce(|all, one| format!("{all}; {one}"));
                        remark.map_or(Readiness::Ready, Readiness::ReadyBut)
                    }
                }
            }
            None => Readiness::NotReady(format!(
                "{} of {} entries are not written yet",
                status.bad, status.wanted
            )),
        };
        if readiness.has_begun() && !self.ready {
            self.ready = true;
            tracing::info!(event = "ready", "flannel is ready");
            notify::status(&format!("{} peers, subnet {}", self.table.len(), self.own.subnet()));
        }
        self.setup.report.say(readiness);
    }
}
