//! From the network as it is now to what appliers, traffic rules and the subnet file are to hold.

use std::time::Instant;

use flannel_backend::WantedBy;
use flannel_lease::{Change, Subnet};

use super::Daemon;

impl Daemon {
    /// Makes everything on this node follow the network as it is now.
    pub(super) async fn settle(&mut self) -> anyhow::Result<()> {
        self.program().await?;
        self.renew_rules().await;
        self.write_subnet_file();
        Ok(())
    }

    /// Makes the traffic rules follow the network; they are tried again by themselves.
    pub(super) async fn renew_rules(&mut self) {
        let facts = self.facts.borrow().clone();
        if let Err(error) = self.rules.follow(&self.network, self.own.subnet(), &facts).await {
            tracing::error!("{error:#}; trying again");
        }
    }

    /// Declares all that is wanted.
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
        desired.want(WantedBy::Trial, self.tried.clone());
        let ownership = self.network.ownership(self.earlier.as_slice());
        let status = self.setup.appliers.replace(ownership, desired).await?;
        self.keep_holders();
        self.probe_all();
        tracing::info!("Programmed {} peers: {status}", self.table.len());
        Ok(())
    }

    /// Declares what changed about single peers.
    pub(super) async fn apply(&mut self, changes: Vec<Change>) -> anyhow::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let put = changes.iter().filter_map(|change| match change {
            Change::New(lease) | Change::Changed(lease) => Some((&lease.subnet, &lease.attrs)),
            Change::Gone(_) => None,
        });
        self.network.find_paths(self.setup.appliers.kernel(), put).await?;
        let concerned: Vec<Subnet> = changes.iter().map(Change::subnet).collect();
        let own = self.own.lease();
        let changes = self.peers.changed(&self.network, own, &self.table, changes);
        self.setup.appliers.update(changes).await?;
        self.keep_holders();
        self.probe_changed(&concerned);
        Ok(())
    }
}

impl Daemon {
    /// Keeps who had a MAC or key first over restarts, as soon as that is due.
    pub(super) fn keep_holders(&mut self) {
        if self.holders_writer.is_busy() {
            return;
        }
        if let Some(holders) = self.peers.take_holder_changes(Instant::now()) {
            self.holders_writer.start(holders);
        }
    }
}
