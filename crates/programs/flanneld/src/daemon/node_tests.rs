//! A whole node, driven by a clock, a store and appliers of the test: no namespace, no thread, no wait.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flannel_backend::{Answers, ConfigOrigin, PrivilegePolicy, WireguardBy};
use flannel_common::{Mac, PrivateKey};
use flannel_entries::facts::{Facts, Interface, InterfaceAddress};
use flannel_lease::{
    Claimant, Expiry, LEASE_TTL, Lease, LeaseAttrs, NetworkConfig, NetworkName, Version,
};
use flannel_node::options::{self, Parsed};
use flannel_state::Verdict;
use flannel_store::{
    Cursor, Held, NodeAnswer, NodeStore, Recalled, RequestChange, RequestId, RequestStore,
    Requests, Store, StoreError, StoreEvent, StoredLease,
};
use flannel_wanted::Status;
use tokio::sync::{mpsc, watch};

use super::event::{Action, Event};
use super::key_rotation::KeyEvent;
use super::lease_task::{ClaimRetry, LeaseOutcome, LeaseRequest, RenewError};
use super::network::{HostFacts, JoinedNetwork, OnLan};
use super::now::Now;
use super::own_lease::OwnLease;
use super::{Daemon, Joined, NetworkClaims, Setup};
use crate::readiness::{Readiness, reports};
use crate::state_file::Written;

const SECOND: Duration = Duration::from_secs(1);
const VXLAN: &str = r#"{"Network":"10.1.0.0/16","Backend":{"Type":"vxlan"}}"#;
const WIREGUARD: &str = r#"{"Network":"10.1.0.0/16","Backend":{"Type":"wireguard"}}"#;
const VXLAN_2: &str = r#"{"Network":"10.1.0.0/16","Backend":{"Type":"vxlan","VNI":2}}"#;
const HOST_GW: &str = r#"{"Network":"10.1.0.0/16","Backend":{"Type":"host-gw"}}"#;

/// Nobody asks it: what comes from it, and what it answers, is said by the test.
struct SilentStore;

#[async_trait]
impl Store for SilentStore {
    fn name(&self) -> String {
        "a store".to_owned()
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    fn how_to_write_config(&self) -> String {
        "a pen".to_owned()
    }

    fn watch(&self, _: Cursor) -> mpsc::Receiver<StoreEvent> {
        mpsc::channel(1).1
    }

    fn requests(&self) -> &dyn RequestStore {
        self
    }
}

#[async_trait]
impl NodeStore for SilentStore {
    async fn recall(&self, _: &NetworkConfig, _: &Claimant) -> Result<Recalled, StoreError> {
        std::future::pending().await
    }

    async fn renew(&self, _: &Held, _: &LeaseAttrs) -> Result<Held, StoreError> {
        std::future::pending().await
    }
}

#[async_trait]
impl RequestStore for SilentStore {
    fn follow(&self) -> watch::Receiver<Requests> {
        watch::channel(Requests::default()).1
    }

    async fn write(&self, _: RequestChange<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn answers(&self, _: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        Ok(Vec::new())
    }
}

/// A node, and a loop around it whose world is a few fields.
struct TestNode {
    daemon: Daemon,
    now: Now,
    readiness: watch::Receiver<Readiness>,
    status: Status,
    store_answers: bool,
    /// When a request for the node's lease came, since the beginning, and how it announced the node.
    renewals: Vec<(Duration, LeaseAttrs)>,
    /// The key that an operator has put beside the one in use.
    next_key: Option<PrivateKey>,
    /// What comes of making another backend's entries beside those in use, and how often that was tried.
    trial_outcome: Result<(), String>,
    trials: usize,
    replaced: usize,
    trims: usize,
    begin: Now,
}

fn host(address: [u8; 4]) -> HostFacts {
    host_of([card(address)])
}

fn host_of<const N: usize>(interfaces: [Interface; N]) -> HostFacts {
    let facts = Facts { interfaces: interfaces.into(), ..Facts::default() };
    HostFacts { facts: Arc::new(facts), path: None }
}

fn card(address: [u8; 4]) -> Interface {
    let addr = ipnet::Ipv4Net::new(Ipv4Addr::from(address), 24).expect("a network").into();
    Interface {
        index: 2,
        name: "eth0".parse().expect("a name"),
        mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        mtu: 1500,
        up: true,
        loopback: false,
        master: None,
        addresses: vec![InterfaceAddress {
            addr,
            permanent: true,
            temporary: false,
            deprecated: false,
            duplicate: false,
        }],
    }
}

/// The node's card, and a device of this name.
fn host_with_device(name: &str) -> HostFacts {
    let card = card([192, 168, 0, 1]);
    let name = name.parse().expect("a name");
    let device = Interface { index: 7, name, addresses: Vec::new(), ..card.clone() };
    host_of([card, device])
}

impl TestNode {
    /// A node that has just got its lease for a day.
    fn join() -> Self {
        Self::join_with(VXLAN, Status::default())
    }

    /// The same with this config, and appliers of this status.
    fn join_with(text: &str, status: Status) -> Self {
        let words = ["flanneld", "--iface=eth0", "--data-dir=/nonexistent"];
        let parsed = options::parse(words.map(Into::into), []).expect("flags");
        let Parsed::Run { options, .. } = parsed else { panic!("{parsed:?}") };
        let (mut reports, readiness) = reports(std::iter::once(NetworkName::default()));
        let setup = Setup {
            prober: None,
            options: *options,
            store: Arc::new(SilentStore),
            report: reports.remove(0),
            privileges: PrivilegePolicy::new(false, ConfigOrigin::Cluster),
            claims: Arc::new(NetworkClaims::new(vec![NetworkName::default()])),
            subnet_file: Path::new("/nonexistent/subnet.env").to_owned(),
            machine_hash: None,
            previous: Default::default(),
            seed: 1,
        };
        let (now, host) = (Now::for_test(), host([192, 168, 0, 1]));
        let config = NetworkConfig::parse(text).expect("a config");
        let mut answers = Answers::default();
        if text == WIREGUARD {
            answers.private_key = Some(key(1));
            answers.wireguard_by = Some(WireguardBy::Kernel);
        }
        let network = JoinedNetwork::new(&setup, config, answers, &host, OnLan::Refuse);
        let network = network.expect("it can be used");
        let attrs = network.attrs(None, &host.facts, &setup);
        let subnet = "10.1.1.0-24".parse().expect("a subnet");
        let held = held(Lease { subnet, attrs }, 1, &now);
        let rng = || fastrand::Rng::with_seed(1);
        let (margin, retry) = (setup.options.renew_margin, ClaimRetry::new(rng()));
        let own = OwnLease::new(held, None, margin, retry, rng(), &now);
        let joined = Joined {
            text: text.to_owned(),
            host,
            network,
            own,
            others: vec![peer()],
            holders: Default::default(),
        };
        let daemon = Daemon::new(Arc::new(setup), joined, || 50_000, &now);
        let mut node = Self {
            daemon,
            now,
            readiness,
            status,
            store_answers: true,
            renewals: Vec::new(),
            next_key: None,
            trial_outcome: Ok(()),
            trials: 0,
            replaced: 0,
            trims: 0,
            begin: now,
        };
        node.handle(Event::Joined);
        node
    }

    fn handle(&mut self, event: Event) {
        let status = Event::Status(self.status.clone());
        let mut events = vec![status, event];
        while let Some(event) = events.pop() {
            for action in self.daemon.step(event, &self.now) {
                events.extend(self.carry_out(action));
            }
        }
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::LookUpPaths { addresses, then } => {
                Some(Event::Paths(addresses.into_iter().map(|it| (it, None)).collect(), then))
            }
            Action::WriteSubnetFile { .. } => Some(Event::SubnetFileWritten(Ok(Written::New))),
            Action::BeginTrial { .. } => {
                self.trials += 1;
                Some(Event::TrialEnded(self.trial_outcome.clone()))
            }
            Action::AskStore(job) => {
                let LeaseRequest::Renew { held: before, attrs, .. } = job.request else {
                    return None;
                };
                let since = self.now.instant - self.begin.instant;
                self.renewals.push((since, (*attrs).clone()));
                let lease = Lease { subnet: before.lease.subnet, attrs: *attrs };
                let renewed = match self.store_answers {
                    true => Ok(held(lease, 2, &self.now)),
                    false => Err(RenewError::Timeout(15 * SECOND)),
                };
                Some(Event::Lease(LeaseOutcome::Renewed(renewed)))
            }
            Action::ReadNextKey => Some(Event::Key(KeyEvent::Next(Ok(self.next_key.clone())))),
            Action::AdoptNextKey => {
                self.next_key = None;
                Some(Event::Key(KeyEvent::Adopted(Ok(()))))
            }
            Action::Replace { .. } => {
                self.replaced += 1;
                None
            }
            Action::TrimHeap => {
                self.trims += 1;
                None
            }
            _ => None,
        }
    }

    /// Lets time pass, with a timer whenever the node wants one. Returns how many there were.
    fn run_for(&mut self, time: Duration) -> usize {
        let (end, mut timers) = (self.now.later(time), 0);
        loop {
            match self.daemon.next_wake(&self.now).filter(|wake| *wake < end.instant) {
                Some(wake) => {
                    self.now = self.now.later(wake.saturating_duration_since(self.now.instant));
                    timers += 1;
                    self.handle(Event::Timer);
                }
                None => {
                    self.now = end;
                    return timers;
                }
            }
        }
    }

    fn write_config(&mut self, text: &str) {
        self.handle(Event::Store(vec![StoreEvent::Config(text.to_owned())]));
    }

    fn key(&self) -> Option<&PrivateKey> {
        self.daemon.network.node.answers.private_key.as_ref()
    }

    fn backend(&self) -> &str {
        &self.daemon.network.config().backend.kind
    }

    /// Number of the vxlan in use.
    fn vni(&self) -> u32 {
        let [device] = self.daemon.network.devices()[..] else { panic!("one device") };
        let number = device.as_str().strip_prefix("flannel.").expect("a vxlan");
        number.parse().expect("a number")
    }

    fn why_not_ready(&self) -> Option<String> {
        let readiness = self.readiness.borrow();
        (readiness.verdict == Verdict::NotReady).then(|| readiness.why.clone())
    }
}

fn key(byte: u8) -> PrivateKey {
    PrivateKey::from_random([byte; 32])
}

fn held(lease: Lease, version: u64, now: &Now) -> Held {
    let expiry = Expiry::At(now.time + LEASE_TTL);
    Held { lease, expiry, version: Version::new(version) }
}

fn peer() -> StoredLease {
    let attrs = LeaseAttrs {
        public_ip: Some([192, 168, 0, 2].into()),
        backend_type: "host-gw".into(),
        ..LeaseAttrs::default()
    };
    let lease = Lease { subnet: "10.1.2.0-24".parse().expect("a subnet"), attrs };
    StoredLease { lease, version: Version::new(1), since: None, reserved: false }
}

#[test]
fn a_node_renews_its_lease_once_in_a_day_by_the_clock_it_is_handed() {
    let mut node = TestNode::join();
    let timers = node.run_for(LEASE_TTL);
    let times: Vec<Duration> = node.renewals.iter().map(|(at, _)| *at).collect();
    let [once] = times.as_slice() else { panic!("{times:?}") };
    let margin = node.daemon.setup.options.renew_margin;
    assert!(*once <= LEASE_TTL - margin && *once > LEASE_TTL / 2, "{once:?}");
    assert_eq!((node.replaced, node.trims), (1, 2), "nothing else happens but at the start");
    // The subnet file is looked at every two seconds, and the clock every minute.
    assert!((43_000..46_000).contains(&timers), "{timers}");
}

#[test]
fn a_node_whose_store_is_away_tries_to_renew_again_and_keeps_its_network() {
    let mut node = TestNode::join();
    node.store_answers = false;
    node.run_for(LEASE_TTL);
    assert!((5..200).contains(&node.renewals.len()), "{}", node.renewals.len());
    assert_eq!((node.replaced, node.why_not_ready()), (1, None));
    node.store_answers = true;
    let tries = node.renewals.len();
    node.run_for(600 * SECOND);
    assert_eq!(node.renewals.len(), tries + 1);
}

#[test]
fn a_refused_config_makes_a_node_not_ready_until_one_comes_that_it_can_use() {
    let mut node = TestNode::join();
    assert_eq!((node.why_not_ready(), node.replaced), (None, 1));
    node.write_config(r#"{"Network":"10.1.0.0/16","Backend":{"Type":"carrier-pigeon"}}"#);
    let why = node.why_not_ready().expect("it is refused");
    assert!(why.contains("carrier-pigeon"), "{why}");
    assert_eq!((node.backend(), node.replaced), ("vxlan", 1));
    node.write_config(HOST_GW);
    assert_eq!((node.backend(), node.why_not_ready()), ("host-gw", None));
    assert!(node.replaced > 1);
    let announced = node.renewals.last().map(|(_, attrs)| attrs.backend_type.to_string());
    assert_eq!(announced.as_deref(), Some("host-gw"));
}

/// What a trial has made is removed with it, and the kernel tells of that a moment later.
#[test]
fn a_device_of_a_former_trial_that_is_still_known_is_not_taken_for_a_strangers() {
    let mut node = TestNode::join();
    node.trial_outcome = Err("the kernel is out of memory".to_owned());
    node.write_config(VXLAN_2);
    assert_eq!((node.trials, node.vni()), (1, 1));
    node.handle(Event::Facts(host_with_device("flannel.2")));
    node.run_for(3 * SECOND);
    assert_eq!((node.trials, node.vni()), (2, 1), "it is tried again, and not taken over untried");
    assert!(node.why_not_ready().is_some_and(|why| why.contains("out of memory")));
    node.trial_outcome = Ok(());
    node.run_for(10 * SECOND);
    assert_eq!((node.trials, node.vni(), node.why_not_ready()), (3, 2, None));
}

#[test]
fn a_device_that_was_there_before_any_trial_is_left_alone_until_the_node_changes_over() {
    let mut node = TestNode::join();
    node.handle(Event::Facts(host_with_device("flannel.2")));
    node.write_config(VXLAN_2);
    assert_eq!((node.trials, node.vni()), (0, 2));
}

#[test]
fn a_node_is_ready_with_entries_that_are_refused_after_thirty_seconds_and_no_sooner() {
    let mut node = TestNode::join_with(VXLAN, Status { wanted: 3, bad: 1, ..Status::default() });
    node.run_for(29 * SECOND);
    assert!(node.why_not_ready().is_some_and(|why| why.contains("1 of 3 entries")));
    node.run_for(2 * SECOND);
    assert_eq!(node.why_not_ready(), None);
    // Once it has been ready, a peer that cannot be programmed is not this node's readiness.
    node.status.bad = 2;
    node.handle(Event::Timer);
    assert_eq!(node.why_not_ready(), None);
}

#[test]
fn a_changed_address_is_announced_and_everything_is_programmed_again() {
    let mut node = TestNode::join();
    node.handle(Event::Facts(host([192, 168, 0, 7])));
    let announced = node.renewals.last().and_then(|(_, attrs)| attrs.public_ip);
    assert_eq!((announced, node.replaced), (Some([192, 168, 0, 7].into()), 2));
    node.handle(Event::Facts(host([192, 168, 0, 7])));
    assert_eq!((node.renewals.len(), node.replaced), (1, 2), "nothing has changed");
}

#[test]
fn a_key_is_rotated_when_the_store_answers_again_and_peers_are_told_of_it_before_it_is_kept() {
    let mut node = TestNode::join_with(WIREGUARD, Status::default());
    node.run_for(5 * SECOND);
    assert_eq!((node.key(), node.renewals.len()), (Some(&key(1)), 0));
    (node.next_key, node.store_answers) = (Some(key(2)), false);
    node.run_for(2 * SECOND);
    assert_eq!((node.key(), node.renewals.len()), (Some(&key(1)), 1), "it was tried once");
    node.store_answers = true;
    node.run_for(7 * SECOND);
    assert_eq!((node.key(), node.renewals.len()), (Some(&key(1)), 1), "after a pause");
    node.run_for(3 * SECOND);
    assert_eq!((node.key(), node.next_key.as_ref()), (Some(&key(2)), None));
    let told: Vec<_> = node.renewals.iter().map(|(_, attrs)| attrs.backend_data.clone()).collect();
    assert_eq!(told.len(), 3, "whether the store answers, twice; and the new key");
    assert!(told[0] == told[1] && told[1] != told[2], "{told:?}");
}
