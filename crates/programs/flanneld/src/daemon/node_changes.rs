//! Changes of this node itself: of its interfaces and addresses, its lease, and what its other networks take.

use std::net::IpAddr;

use flannel_backend::Underlay;
use flannel_lease::{Change, Lease, LeaseAttrs, Subnet};

use super::Daemon;
use super::event::Action;
use super::key_rotation::KeyEvent;
use super::lease_task::{LeaseJob, LeaseOutcome};
use super::network::{HostFacts, JoinedNetwork, OnLan};
use super::now::Now;
use super::own_lease::LeaseNews;
use super::peers;

impl Daemon {
    pub(super) fn on_facts(&mut self, host: HostFacts, now: &Now) {
        self.host = host;
        let (config, answers) = (self.network.config().clone(), self.network.node.answers.clone());
        let network = JoinedNetwork::new(&self.setup, config, answers, &self.host, OnLan::Warn);
        let network = network.and_then(|network| {
            network.check_no_worse_than(self.network.underlay())?;
            Ok(network)
        });
        let network = match network {
            Ok(network) => network,
            Err(error) => return self.network.lost(&error, now),
        };
        if network.underlay() != self.network.underlay() {
            network.say_underlay();
            let (before, after) = (self.network.underlay(), network.underlay());
            if before.addresses() != after.addresses() {
                let words = |underlay: &Underlay| match underlay.addresses().as_slice() {
                    [] => "no address".to_owned(),
                    some => some.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" and "),
                };
                tracing::info!(
                    event = "address-changed",
                    "This node has {} on {} now; it had {} on {}",
                    words(after),
                    after.link,
                    words(before),
                    before.link
                );
            }
            self.network = network;
            self.act(Action::ReconnectStore);
            return self.announce(now);
        }
        self.network.found();
        let connected = self.network.reconnect(network);
        if self.current_pod_links() != self.pod_links {
            self.renew_rules();
        }
        let again = self.network.wants_paths_again(&self.host.facts);
        if connected.is_empty() && !again {
            return;
        }
        let concerned = |subnet: &Subnet| again || connected.iter().any(|c| c.overlaps(subnet));
        let peers = self.table.iter().filter(|(subnet, _)| concerned(subnet));
        let changes = peers.map(|(subnet, attrs)| {
            Change::Changed(Lease { subnet: *subnet, attrs: attrs.clone() })
        });
        let changes = changes.collect();
        self.apply(changes, now);
    }

    /// Another network has taken what we had before, so that its routes are not ours to remove, or what we have.
    pub(super) fn on_networks_changed(&mut self, now: &Now) {
        let (claims, name) = (&self.setup.claims, &self.setup.report.network);
        if let Err(conflict) = claims.check(name) {
            // The device may be another's by now; what leads to our peers is still ours.
            let (networks, rules) = (self.network.networks(), self.wanted_rules());
            return self.act(Action::GiveUp { networks, rules, conflict });
        }
        if self.earlier.forget_if(|net| claims.is_anothers(name, net)) {
            self.program(now);
        }
        self.reconsider_config(now);
    }

    /// Has the others told what changed about this node, and makes the kernel follow meanwhile.
    pub(super) fn announce(&mut self, now: &Now) {
        self.announce_as_it_is(now);
        self.ask_for_lease(now);
        self.settle(now);
    }

    fn announce_as_it_is(&mut self, now: &Now) {
        let attrs = self.attrs();
        self.own.announce(attrs, self.network.config(), now);
    }

    pub(super) fn attrs(&self) -> LeaseAttrs {
        let announced = &self.own.lease().attrs;
        self.network.attrs(Some(announced), &self.host.facts, &self.setup)
    }

    pub(super) fn ask_for_lease(&mut self, now: &Now) {
        if let Some(request) = self.own.next_request(self.network.config(), now) {
            let (network, facts) = (self.network.clone(), self.host.facts.clone());
            self.act(Action::AskStore(Box::new(LeaseJob { request, network, facts })));
        }
    }

    pub(super) fn on_lease_outcome(&mut self, outcome: LeaseOutcome, now: &Now) {
        match self.own.on_outcome(outcome, self.network.config(), now) {
            None => {}
            Some(LeaseNews::GivenToAnother) => self.act(Action::WithdrawSubnetFile),
            Some(LeaseNews::Tentative(result)) => {
                self.rotate_key(KeyEvent::Announced(result), now);
            }
            Some(LeaseNews::Reclaimed { before, is_outdated }) => {
                if is_outdated {
                    self.announce_as_it_is(now);
                }
                self.on_reclaimed(before, now);
            }
        }
    }

    fn on_reclaimed(&mut self, before: Lease, now: &Now) {
        let own = self.own.lease();
        let (subnet, is_same) = (own.subnet, *own == before);
        let changes = self.table.set_own(Some(subnet));
        peers::tell(&changes);
        if is_same {
            return self.apply(changes, now);
        }
        if subnet != before.subnet {
            tracing::error!(
                "This node's subnet is now {subnet}, it was {}: pods that are running have addresses of \
                 the old one; restart them",
                before.subnet
            );
        }
        self.settle(now);
    }
}
