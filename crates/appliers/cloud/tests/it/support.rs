//! A machine in a cloud, with the applier under test.

use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_cloud::testing::Cloud;
use flannel_cloud::{CloudApplier, query_node};
use flannel_common::Secret;
use flannel_entries::cloud::{Access, CloudEntry, CloudRoute, Keys, NodeQuery, Provider, Table};
use flannel_wanted::{Applier as _, Status};
use tokio::runtime::Runtime;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const NETWORK: &str = "10.244.0.0/16";

pub(crate) struct Place {
    pub(crate) cloud: Cloud,
    pub(crate) runtime: Runtime,
    pub(crate) applier: CloudApplier<u32>,
    pub(crate) access: Access,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) next_hop: String,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl Place {
    /// Machine 1 of two, looking every second.
    pub(crate) fn new(provider: Provider) -> Self {
        Self::with(provider, |_| {})
    }

    pub(crate) fn with(provider: Provider, prepare: impl FnOnce(&Cloud)) -> Self {
        let cloud = Cloud::new(provider);
        prepare(&cloud);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let address: IpAddr = "192.168.100.1".parse().unwrap();
        cloud.add_machine(1, &[address, "fd00:100::1".parse().unwrap()], listener);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        cloud.add_machine(2, &["192.168.100.2".parse().unwrap()], other);
        let runtime = runtime();
        let query = NodeQuery { provider, metadata: Some(url.clone()) };
        let node = runtime.block_on(query_node(&query)).unwrap();
        let interface = node.interface_with(&[address]).unwrap().clone();
        let next_hop = match provider {
            Provider::AwsVpc => interface.id.clone(),
            Provider::AliVpc => node.instance.clone(),
            Provider::Gce => {
                format!("projects/{}/zones/{}/instances/{}", node.project, node.zone, node.instance)
            }
            Provider::TencentVpc => address.to_string(),
        };
        let access = Access {
            node,
            interface,
            keys: None,
            endpoint: Some(url.clone()),
            metadata: Some(url),
            check_every: Duration::from_secs(1),
        };
        let directory = tempfile::tempdir().unwrap();
        let applier = CloudApplier::new(1, directory.path().to_owned());
        Self { cloud, runtime, applier, access, directory, next_hop }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub(crate) fn route(&self, table: Table, destination: &str) -> CloudEntry {
        CloudEntry::Route(CloudRoute {
            access: Arc::new(self.access.clone()),
            table,
            destination: destination.parse().unwrap(),
            next_hop: self.next_hop.clone(),
        })
    }

    pub(crate) fn forwarding(&self) -> CloudEntry {
        CloudEntry::Forwarding(Arc::new(self.access.clone()))
    }

    pub(crate) fn declare(&self, entries: Vec<CloudEntry>) {
        let networks = vec![NETWORK.parse().unwrap(), "fd00:244::/48".parse().unwrap()];
        let desired = if entries.is_empty() { Vec::new() } else { vec![(1, entries)] };
        self.runtime.block_on(self.applier.replace(networks, desired)).unwrap();
    }

    pub(crate) fn want(&self, destination: &str) {
        self.declare(vec![self.route(Table::Detected, destination)]);
    }

    pub(crate) fn status(&self) -> Status {
        self.applier.watch_status().borrow().clone()
    }

    pub(crate) fn wait(&self, what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !is() {
            assert!(
                Instant::now() < end,
                "{what}: {:?} {:?} {:?}",
                self.cloud.state().tables,
                self.status(),
                self.cloud.state().calls
            );
            self.pass(Duration::from_millis(20));
        }
    }

    /// The applier goes on meanwhile.
    pub(crate) fn pass(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    pub(crate) fn wait_for_routes(&self, table: &str, routes: &[&str]) {
        self.wait(&format!("{routes:?}"), || self.cloud.shown(table) == routes);
    }

    /// What it says is wrong.
    pub(crate) fn wait_for_problem(&self, part: &str) -> String {
        let find = || {
            let problems = self.status().problems;
            problems.iter().map(ToString::to_string).find(|text| text.contains(part))
        };
        self.wait(part, || find().is_some());
        find().unwrap()
    }

    pub(crate) fn wait_for_peace(&self) {
        self.wait("all is as wanted", || {
            let status = self.status();
            status.wanted > 0 && status.is_settled()
        });
    }

    pub(crate) fn static_keys(&mut self) {
        let (id, secret, _) = self.cloud.state().keys[0].clone();
        self.access.keys = Some(Keys { id, secret: Secret::new(secret), token: None });
    }

    /// How the provider shows a next hop in its tables.
    pub(crate) fn hop(&self, number: u16) -> String {
        self.cloud.hop(number)
    }
}
