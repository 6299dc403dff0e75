//! The traffic rules that the network needs: what is masqueraded, and that it may be forwarded.

use anyhow::bail;
use flannel_backend::{DesiredState, WantedBy};
use flannel_common::IfName;
use flannel_entries::rules::TrafficRules;
use flannel_node::wanted_rules;
use flannel_wanted::{Desired, Importance};

use super::Daemon;
use super::event::Action;
use crate::appliers::Appliers;

impl Daemon {
    /// Makes the traffic rules follow the network, and nothing else.
    pub(super) fn renew_rules(&mut self) {
        self.pod_links = self.current_pod_links();
        let changes = DesiredState { rules: self.wanted_rules(), ..DesiredState::default() };
        self.act(Action::Update(changes));
    }

    /// The rules, with pods behind the interfaces that are known.
    pub(super) fn wanted_rules(&self) -> Desired<WantedBy, TrafficRules> {
        let (options, subnet) = (&self.setup.options.traffic, self.own.subnet());
        vec![(WantedBy::Node, self.network.wanted_rules(options, subnet, &self.pod_links))]
    }

    /// Whether pods are behind other interfaces than when the rules were made.
    pub(super) fn are_rules_outdated(&self) -> bool {
        self.current_pod_links() != self.pod_links
    }

    pub(super) fn current_pod_links(&self) -> Vec<IfName> {
        let (subnet, devices) = (self.own.subnet(), self.network.devices());
        wanted_rules::pod_links(&self.host.facts, &subnet, &devices)
    }
}

/// Fails unless the rules that pods cannot do without are in force.
pub(super) fn require_rules(appliers: &Appliers) -> anyhow::Result<()> {
    let status = appliers.rules_status();
    match status.problems.iter().find(|it| it.importance == Importance::Required) {
        Some(problem) => bail!("{problem}"),
        None => Ok(()),
    }
}
