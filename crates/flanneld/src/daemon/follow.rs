//! What is done when something has changed: the others are told, and kernel, traffic rules, subnet file
//! and readiness follow.

use std::time::Instant;

use flannel_backend::WantedBy;
use flannel_lease::{Change, SubnetFile};
use flannel_wanted::Status;

use super::Daemon;
use super::timing::SUBNET_FILE_RETRY;
use crate::readiness::Readiness;
use crate::{notify, subnet_file};

impl Daemon {
    /// Tells the others what changed about this node, then makes the kernel follow.
    pub(super) async fn announce(&mut self) -> anyhow::Result<()> {
        let facts = self.facts.borrow().clone();
        self.own.announce(&self.setup, &self.network, &facts).await;
        if self.own.is_in_question() {
            return self.reclaim().await;
        }
        self.settle().await
    }

    /// Gets our lease back, or another one, after it was lost or somebody else wrote it.
    pub(super) async fn reclaim(&mut self) -> anyhow::Result<()> {
        let facts = self.facts.borrow().clone();
        let before = self.own.subnet();
        let Some(snapshot) = self.own.reclaim(&self.setup, &self.network, &facts).await else {
            return Ok(());
        };
        let mut changes = self.table.set_own(Some(self.own.subnet()));
        changes.extend(self.table.snapshot(snapshot.leases));
        let changes = self.peers.spare_the_vanished(changes, Instant::now());
        if self.own.subnet() == before {
            return self.apply(changes).await;
        }
        tracing::error!(
            "This node's subnet is now {}, it was {before}: pods that are running have addresses of \
             the old one; restart them",
            self.own.subnet()
        );
        self.settle().await
    }

    /// Makes everything on this node follow the network as it is now.
    pub(super) async fn settle(&mut self) -> anyhow::Result<()> {
        self.program().await?;
        if let Err(error) = self.rules.follow(&self.network, self.own.subnet()).await {
            tracing::error!("{error:#}; trying again");
        }
        self.write_subnet_file();
        Ok(())
    }

    /// Declares the whole desired state to the kernel.
    pub(super) async fn program(&mut self) -> anyhow::Result<()> {
        let remarks = self.network.remarks();
        for remark in remarks.iter().filter(|remark| !self.remarks.contains(remark)) {
            tracing::warn!("{remark}");
        }
        self.remarks = remarks;
        self.network.find_paths(self.setup.appliers.kernel(), self.table.iter()).await?;
        let own = self.own.lease();
        let mut desired = self.peers.all(&self.network, own, &self.table);
        desired.want(WantedBy::Node, self.network.base(own, &self.setup.options));
        let ownership = self.network.ownership(self.earlier.as_slice());
        let status = self.setup.appliers.replace(ownership, desired).await?;
        tracing::info!(
            "Programmed {} entries for {} peers{}",
            status.wanted,
            self.table.len(),
            if status.is_settled() {
                String::new()
            } else {
                format!(", {} still to come", status.bad)
            }
        );
        Ok(())
    }

    /// Declares what changed about single peers.
    pub(super) async fn apply(&mut self, changes: Vec<Change>) -> anyhow::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let put = changes.iter().filter_map(|change| match change {
            Change::Put(lease) => Some((&lease.subnet, &lease.attrs)),
            Change::Gone(_) => None,
        });
        self.network.find_paths(self.setup.appliers.kernel(), put).await?;
        let changes = self.peers.changed(&self.network, self.own.lease(), changes);
        self.setup.appliers.update(changes).await?;
        Ok(())
    }

    pub(super) fn write_subnet_file(&mut self) {
        let (config, subnet) = (self.network.config(), self.own.subnet());
        let content = SubnetFile {
            network: config.v4.map(|source| source.network()),
            subnet: subnet.v4(),
            ipv6_network: config.v6.map(|source| source.network()),
            ipv6_subnet: subnet.v6(),
            mtu: self.network.mtu(),
            ip_masq: self.setup.options.traffic.ip_masq,
        };
        let path = &self.setup.subnet_file;
        self.subnet_file_due = None;
        match subnet_file::write(path, &content) {
            Ok(subnet_file::Written::New) => {
                tracing::info!("Wrote subnet file to {}", path.display());
            }
            Ok(subnet_file::Written::Unchanged) => {}
            Err(error) => {
                tracing::warn!("{error}; pods cannot be started before it is there, trying again");
                self.subnet_file_due = Some(Instant::now() + SUBNET_FILE_RETRY);
            }
        }
    }

    /// What others have written that does not go together with what this node has.
    fn clash(&self) -> Option<String> {
        let refused = self.refused.as_ref();
        let refused = refused.map(|(_, why)| format!("{why}; the node keeps its former network"));
        refused.or_else(|| self.own.contest(Instant::now())).or_else(|| self.peers.clash())
    }

    /// Whether pods of this node reach those of others, as far as this node can tell.
    pub(super) fn judge(&mut self, status: &Status) {
        let obstacle = self.network.obstacle(status).or_else(|| self.rules.obstacle());
        let obstacle = obstacle.or_else(|| self.peers.obstacle());
        let obstacle = obstacle.or_else(|| self.clash());
        let readiness = match obstacle {
            _ if self.subnet_file_due.is_some() => {
                Readiness::NotReady("the subnet file cannot be written".to_owned())
            }
            Some(obstacle) => Readiness::NotReady(obstacle),
            None if status.is_settled() || self.ready || Instant::now() >= self.patience => {
                match self.network.hindrance(status) {
                    Some(why) => Readiness::Hindered(why),
                    None => self.peers.remark().map_or(Readiness::Ready, Readiness::ReadyBut),
                }
            }
            None => Readiness::NotReady(format!(
                "{} of {} entries are not written yet",
                status.bad, status.wanted
            )),
        };
        if readiness.has_begun() && !self.ready {
            self.ready = true;
            tracing::info!("flannel is ready");
            notify::status(&format!("{} peers, subnet {}", self.table.len(), self.own.subnet()));
        }
        self.setup.report.say(readiness);
    }
}
