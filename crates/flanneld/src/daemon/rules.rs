//! The traffic rules that the network needs: what is masqueraded, and that it may be forwarded.

use anyhow::Context;
use flannel_kernel::{Facts, IfName};
use flannel_lease::Subnet;
use flannel_traffic::{Health, Traffic};
use ipnet::IpNet;
use tokio::sync::watch;

use super::network::JoinedNetwork;
use crate::options;
use crate::wanted_rules;

pub(super) struct TrafficRules {
    /// `None`: nobody wants any rules, and what a former run left of them is gone.
    traffic: Option<Traffic>,
    wishes: options::Traffic,
    /// Interfaces that pods were behind when the rules were made.
    pod_links: Vec<IfName>,
}

impl TrafficRules {
    /// `earlier`: the networks whose rules a former run may have left.
    pub(super) fn new(wishes: &options::Traffic, earlier: &[IpNet]) -> anyhow::Result<Self> {
        let traffic = Traffic::start(wishes.resync, earlier)?;
        Ok(Self { traffic: Some(traffic), wishes: wishes.clone(), pod_links: Vec::new() })
    }

    /// Makes the rules follow the network. They are tried again by themselves if that fails; but a
    /// node that cannot masquerade is not to begin its work as if it could.
    pub(super) async fn follow(
        &mut self,
        network: &JoinedNetwork,
        subnet: Subnet,
        facts: &Facts,
    ) -> anyhow::Result<()> {
        let Some(traffic) = &self.traffic else { return Ok(()) };
        self.pod_links = wanted_rules::pod_links(facts, &subnet, &network.devices());
        let rules = network.wanted_rules(&self.wishes, subnet, &self.pod_links);
        let outcome = traffic.set(rules).await;
        if !self.wishes.ip_masq && !self.wishes.forward_rules {
            // To want nothing needs no program, and nobody who listens for changes: flags do not change.
            self.traffic = None;
            if let Err(error) = outcome {
                tracing::warn!("Cannot look for traffic rules of a former run: {error}");
            }
            return Ok(());
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(error) if self.wishes.ip_masq => Err(error).context("the masquerade rules"),
            Err(error) => {
                tracing::error!("Cannot set up the forward rules: {error}; trying again");
                Ok(())
            }
        }
    }

    /// Whether pods are behind other interfaces than when the rules were made.
    pub(super) fn are_outdated(
        &self,
        network: &JoinedNetwork,
        subnet: Subnet,
        facts: &Facts,
    ) -> bool {
        self.traffic.is_some()
            && wanted_rules::pod_links(facts, &subnet, &network.devices()) != self.pod_links
    }

    /// What is wrong with rules that pods cannot do without.
    pub(super) fn obstacle(&self) -> Option<String> {
        let traffic = self.traffic.as_ref().filter(|_| self.wishes.ip_masq)?;
        match &*traffic.health().borrow() {
            Health::Ok => None,
            Health::Broken(why) => Some(format!("the traffic rules: {why}")),
        }
    }

    pub(super) fn health(&self) -> Option<watch::Receiver<Health>> {
        self.traffic.as_ref().map(Traffic::health)
    }

    /// Who keeps them, if anybody does.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        self.traffic.clone()
    }
}
