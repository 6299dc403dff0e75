//! What changes about this node itself: its interfaces and addresses, its lease, and what other networks of
//! this node take.

use std::net::IpAddr;
use std::time::Instant;

use flannel_backend::{DesiredState, Underlay};
use flannel_kernel::Ownership;
use flannel_lease::{Change, Lease, Subnet};

use super::Daemon;
use super::network::{JoinedNetwork, OnLan};
use super::peers;

impl Daemon {
    pub(super) async fn on_facts(&mut self) -> anyhow::Result<()> {
        let facts = self.facts.borrow_and_update().clone();
        let (config, answers) = (self.network.config().clone(), self.network.answers().clone());
        let network =
            match JoinedNetwork::new(&self.setup, config, answers, &facts, OnLan::Warn).await {
                Ok(network) => network,
                Err(error) => {
                    self.network.lost(&error);
                    return Ok(());
                }
            };
        if let Err(error) = network.is_no_worse_than(self.network.underlay()) {
            self.network.lost(&error);
            return Ok(());
        }
        if network.underlay() != self.network.underlay() {
            network.say_underlay();
            let (before, now) = (self.network.underlay(), network.underlay());
            if before.addresses() != now.addresses() {
                let words = |underlay: &Underlay| match underlay.addresses().as_slice() {
                    [] => "no address".to_owned(),
                    some => some.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" and "),
                };
                tracing::info!(
                    event = "address-changed",
                    "This node has {} on {} now; it had {} on {}",
                    words(now),
                    now.link,
                    words(before),
                    before.link
                );
            }
            self.network = network;
            self.setup.store.node_moved();
            // The store may take its time, or be away: the kernel follows first.
            self.settle().await?;
            return self.announce().await;
        }
        self.network.found();
        let connected = self.network.reconnect(network);
        if self.rules.are_outdated(&self.network, self.own.subnet(), &facts) {
            self.renew_rules().await;
        }
        let again = self.network.wants_paths_again(&facts);
        if connected.is_empty() && !again {
            return Ok(());
        }
        let concerned = |subnet: &Subnet| again || connected.iter().any(|c| c.overlaps(subnet));
        let peers = self.table.iter().filter(|(subnet, _)| concerned(subnet));
        let changes = peers.map(|(subnet, attrs)| {
            Change::Changed(Lease { subnet: *subnet, attrs: attrs.clone() })
        });
        let changes = changes.collect();
        self.apply(changes).await
    }

    /// Another network has taken something: what we had before, so that its routes are not ours to
    /// remove; or what we have.
    pub(super) async fn on_taken(&mut self) -> anyhow::Result<()> {
        let (taken, name) = (&self.setup.taken, self.setup.report.network());
        if let Err(conflict) = taken.check(name) {
            // The device may be another's by now; what leads to our peers is still ours.
            let ownership = Ownership { networks: self.network.networks(), ..Ownership::default() };
            self.setup.appliers.replace(ownership, DesiredState::default()).await?;
            self.setup.appliers.stop().await;
            return Err(conflict.into());
        }
        if self.earlier.forget_if(|net| taken.is_anothers(name, net)) {
            self.program().await?;
        }
        self.reconsider().await
    }

    /// Tells the others what changed about this node, then makes the kernel follow.
    pub(super) async fn announce(&mut self) -> anyhow::Result<()> {
        let facts = self.facts.borrow().clone();
        self.own.announce(&self.setup, &self.network, &facts).await;
        if self.own.is_in_question() {
            self.reclaim().await?;
        }
        // Whatever became of the lease: what has changed is to be in the kernel.
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
        changes.extend(self.table.snapshot(snapshot.leases.into_iter().map(|stored| stored.lease)));
        let changes = self.peers.spare_the_vanished(changes, Instant::now());
        peers::tell(&changes);
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
}
