//! From the network as it is now to what appliers and the subnet file are to hold.

use std::net::IpAddr;

use flannel_backend::{DesiredState, WantedBy};
use flannel_common::IfName;
use flannel_entries::facts::Path;
use flannel_entries::rules::TrafficRules;
use flannel_lease::{Change, Subnet, SubnetFile};
use flannel_node::wanted_rules;
use flannel_probe::marked::Devices;
use flannel_trace::NodeInNetwork;
use flannel_wanted::Desired;

use super::Daemon;
use super::event::{Action, Declaration};
use super::network::JoinedNetwork;
use super::now::Now;
use super::peers::PeerContext;
use super::requests::NodeNow;

impl Daemon {
    pub(super) fn settle(&mut self, now: &Now) {
        self.program(now);
        self.write_subnet_file(now);
    }

    pub(super) fn program(&mut self, now: &Now) {
        let remarks = self.network.remarks();
        for remark in remarks.iter().filter(|remark| !self.remarks.contains(remark)) {
            tracing::warn!("{remark}");
        }
        self.remarks = remarks;
        let addresses = self.network.addresses_to_look_up(self.table.iter());
        self.declare(addresses, Declaration::All { trial: self.config.tried.clone() }, now);
    }

    pub(super) fn apply(&mut self, changes: Vec<Change>, now: &Now) {
        if changes.is_empty() {
            return;
        }
        let put = changes.iter().filter_map(|change| match change {
            Change::New(lease) | Change::Changed(lease) => Some((&lease.subnet, &lease.attrs)),
            Change::Gone(_) => None,
        });
        let addresses = self.network.addresses_to_look_up(put);
        self.declare(addresses, Declaration::Changes(changes), now);
    }

    fn declare(&mut self, addresses: Vec<IpAddr>, declaration: Declaration, now: &Now) {
        match addresses.is_empty() {
            true => self.on_paths(Vec::new(), declaration, now),
            false => self.act(Action::LookUpPaths { addresses, then: declaration }),
        }
    }

    pub(super) fn on_paths(
        &mut self,
        paths: Vec<(IpAddr, Option<Path>)>,
        declaration: Declaration,
        now: &Now,
    ) {
        self.network.set_paths(paths);
        let own = self.own.lease();
        let context = PeerContext { network: &self.network, own, table: &self.table };
        match declaration {
            Declaration::All { trial } => {
                let mut desired = self.peers.all(context);
                desired.want(WantedBy::Node, self.network.base(own, &self.setup.options));
                desired.want(WantedBy::Trial, trial);
                self.pod_links = self.current_pod_links();
                desired.rules = self.wanted_rules();
                let JoinedNetwork { backend, node, .. } = &self.network;
                let earlier = &self.earlier.networks;
                let ownership = flannel_backend::ownership(&**backend, node, earlier).into();
                let peers = self.table.len();
                self.act(Action::Replace { ownership, desired, peers });
                self.probe_all();
            }
            Declaration::Changes(changes) => {
                let concerned: Vec<Subnet> = changes.iter().map(Change::subnet).collect();
                let changes = self.peers.changed(context, changes);
                self.act(Action::Update(changes));
                self.probe_changed(&concerned);
            }
        }
        self.keep_holders(now);
    }

    pub(super) fn keep_holders(&mut self, now: &Now) {
        if let Some(holders) = self.peers.link_holders.take_changes(now.instant) {
            self.act(Action::KeepHolders(holders));
        }
    }

    pub(super) fn renew_rules(&mut self) {
        self.pod_links = self.current_pod_links();
        let changes = DesiredState { rules: self.wanted_rules(), ..DesiredState::default() };
        self.act(Action::Update(changes));
    }

    pub(super) fn wanted_rules(&self) -> Desired<WantedBy, TrafficRules> {
        let (options, subnet) = (&self.setup.options.traffic, self.own.subnet());
        let JoinedNetwork { backend, node, .. } = &self.network;
        let rules = wanted_rules::wanted_rules(options, &**backend, node, subnet, &self.pod_links);
        vec![(WantedBy::Node, rules.entries())]
    }

    pub(super) fn current_pod_links(&self) -> Vec<IfName> {
        let (subnet, devices) = (self.own.subnet(), self.network.devices());
        wanted_rules::pod_links(&self.host.facts, &subnet, &devices)
    }

    pub(super) fn write_subnet_file(&mut self, now: &Now) {
        self.subnet_file.begin(now);
        if let Some(content) = self.subnet_file_content() {
            self.act(Action::WriteSubnetFile { content, is_expected: false });
        }
    }

    /// A program that cleans up below `/run` may have removed it, and without it no pod is started.
    pub(super) fn check_subnet_file(&mut self, now: &Now) {
        if self.subnet_file.due > now.instant {
            return;
        }
        self.subnet_file.begin(now);
        if let Some(content) = self.subnet_file_content() {
            let is_expected = self.subnet_file.error.is_none();
            self.act(Action::WriteSubnetFile { content, is_expected });
        }
    }

    /// `None` while a subnet of the new network is waited for: pods are better told the old one.
    fn subnet_file_content(&self) -> Option<SubnetFile> {
        let (config, subnet) = (self.network.config(), self.own.subnet());
        (config.accepts(&subnet) && !self.own.is_anothers).then(|| SubnetFile {
            networks: config.v4.iter().map(|source| source.network()).collect(),
            subnet: subnet.v4(),
            ipv6_networks: config.v6.iter().map(|source| source.network()).collect(),
            ipv6_subnet: subnet.v6(),
            mtu: Some(self.network.mtu()),
            ip_masq: Some(self.setup.options.traffic.ip_masq),
        })
    }

    pub(super) fn show_node(&mut self) {
        let (underlay, mtu) = (self.network.underlay(), self.network.mtu());
        let (subnet, encapsulation) = (self.own.subnet(), self.network.encapsulation());
        let devices: Vec<String> = self.network.devices().iter().map(ToString::to_string).collect();
        let node = NodeNow {
            subnet,
            mtu,
            underlay: [underlay.v4.map(IpAddr::V4), underlay.v6.map(IpAddr::V6)],
            devices: Devices {
                tunnels: devices.clone(),
                underlay: Some(underlay.link.to_string()),
            },
            in_network: NodeInNetwork {
                encapsulation,
                underlay: Some(underlay.clone()),
                mtu: Some(mtu),
                devices,
                own: subnet.nets().collect(),
            },
            masquerades: self.setup.options.traffic.ip_masq,
        };
        self.act(Action::ShowNode(node.into()));
    }
}
