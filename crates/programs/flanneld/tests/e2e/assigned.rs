//! A store that assigns subnets, as Kubernetes does: a small one in memory, with the real daemon and the real
//! kernel. The daemon runs in this process, in a network namespace of its thread.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use flannel_backend::{ConfigOrigin, PrivilegePolicy};
use flannel_lease::{
    Claimant, Expiry, Lease, LeaseAttrs, NetworkConfig, NetworkName, Subnet, SubnetOrigin, Version,
};
use flannel_node::options::{self, Parsed};
use flannel_state::Verdict;
use flannel_store::{
    AcquireAttempt, Claim, Cursor, Held, NodeAnswer, NodeNetwork, NodeStore, Recalled,
    RequestChange, RequestId, RequestStore, Requests, Snapshot, Store, StoreError, StoreEvent,
    StoredLease,
};
use flanneld::appliers::Appliers;
use flanneld::daemon::{self, NetworkClaims, Setup};
use flanneld::readiness::{Readiness, reports};
use flanneld::stopping::stopping;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const READINESS_TIMEOUT: Duration = Duration::from_secs(60);
/// No pool: where subnets are handed out from one, SubnetMin has to lie inside the network.
const CONFIG: &str = r#"{"Network":"10.42.0.0/16","SubnetMin":"10.99.0.0","EnableNFTables":true,
                         "Backend":{"Type":"host-gw"}}"#;

#[derive(Clone, Debug, Default)]
struct Assigning {
    assigned: Arc<Mutex<Option<Subnet>>>,
    announced: Arc<Mutex<Option<LeaseAttrs>>>,
    watchers: Arc<Mutex<Vec<mpsc::Sender<StoreEvent>>>>,
    told: watch::Sender<Option<NodeNetwork>>,
}

impl Assigning {
    fn assign(&self, subnet: Option<&str>) {
        let subnet = subnet.map(|text| text.parse().unwrap());
        *self.assigned.lock().unwrap() = subnet;
        self.tell(&StoreEvent::Assigned(subnet));
    }

    fn tell(&self, event: &StoreEvent) {
        for watcher in &*self.watchers.lock().unwrap() {
            watcher.try_send(event.clone()).unwrap();
        }
    }
}

fn peer() -> StoredLease {
    let public_ip = Some("192.168.100.2".parse().unwrap());
    let attrs = LeaseAttrs { public_ip, backend_type: "host-gw".into(), ..LeaseAttrs::default() };
    let lease = Lease { subnet: "10.42.9.0-26".parse().unwrap(), attrs };
    StoredLease { lease, version: Version::UNKNOWN, since: None, reserved: false }
}

#[async_trait]
impl Store for Assigning {
    fn name(&self) -> String {
        "Assigning".to_owned()
    }

    fn subnets(&self) -> SubnetOrigin {
        SubnetOrigin::Store
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        Ok(Some(CONFIG.to_owned()))
    }

    fn how_to_write_config(&self) -> String {
        "a pen".to_owned()
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        assert_eq!(cursor.text(), Some("now"), "what a store gives it gets back");
        let (events, receiver) = mpsc::channel(16);
        self.watchers.lock().unwrap().push(events);
        receiver
    }

    fn requests(&self) -> &dyn RequestStore {
        self
    }
}

#[async_trait]
impl NodeStore for Assigning {
    async fn recall(&self, _: &NetworkConfig, _: &Claimant) -> Result<Recalled, StoreError> {
        let announced = self.announced.lock().unwrap().clone();
        let snapshot = Snapshot { leases: vec![peer()], cursor: Cursor::new("now") };
        Ok(Recalled::new(announced, snapshot, self.clone()))
    }

    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let lease = Lease { subnet: held.lease.subnet, attrs: attrs.clone() };
        Ok(Held { lease, ..held.clone() })
    }

    async fn report(&self, network: &NodeNetwork) {
        self.told.send_replace(Some(network.clone()));
    }
}

#[async_trait]
impl AcquireAttempt for Assigning {
    async fn run(
        self: Box<Self>,
        _: &NetworkConfig,
        claim: &Claim,
        _: &Snapshot,
    ) -> Result<Held, StoreError> {
        let assigned = *self.assigned.lock().unwrap();
        let subnet = assigned.ok_or_else(|| StoreError::NotAssignedYet {
            reason: "this node has no podCIDR".to_owned(),
            fix: "start the controller with --allocate-node-cidrs".to_owned(),
        })?;
        *self.announced.lock().unwrap() = Some(claim.attrs.clone());
        let lease = Lease { subnet, attrs: claim.attrs.clone() };
        Ok(Held { lease, expiry: Expiry::Never, version: Version::UNKNOWN })
    }
}

/// Nobody requests anything.
#[async_trait]
impl RequestStore for Assigning {
    fn follow(&self) -> watch::Receiver<Requests> {
        watch::channel(Requests::default()).1
    }

    async fn write(&self, change: RequestChange<'_>) -> Result<(), StoreError> {
        Err(StoreError::Lost { key: change.id().to_string() })
    }

    async fn answers(&self, _: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        Ok(Vec::new())
    }
}

/// In a network namespace of its own, with one interface.
fn on_a_node(test: impl AsyncFnOnce(PathBuf) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: the thread is new; what it starts is to live in the new namespace too.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        for words in [
            "link set lo up",
            "link add eth0 type veth peer name cable",
            "link set cable up",
            "addr add 192.168.100.1/24 dev eth0",
            "link set eth0 up",
        ] {
            ip(words);
        }
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(dir.path().to_owned()));
    });
    thread.join().unwrap();
}

fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn start(store: &Arc<Assigning>, dir: &Path) -> watch::Receiver<Readiness> {
    let words = [
        "flanneld".to_owned(),
        "--iface=eth0".to_owned(),
        "--iptables-forward-rules=false".to_owned(),
        format!("--data-dir={}", dir.display()),
    ];
    let parsed = options::parse(words.map(Into::into), []).unwrap();
    let Parsed::Run { options, .. } = parsed else { panic!("{parsed:?}") };
    let (mut reports, readiness) = reports(std::iter::once(NetworkName::default()));
    let setup = Setup {
        prober: None,
        options: *options,
        store: store.clone(),
        report: reports.remove(0),
        privileges: PrivilegePolicy::new(false, ConfigOrigin::Cluster),
        claims: Arc::new(NetworkClaims::new(vec![NetworkName::default()])),
        subnet_file: dir.join("subnet.env"),
        machine_hash: None,
        previous: Default::default(),
        seed: 1,
    };
    let (run, resync) = (Path::new("/run/flannel"), Duration::from_secs(5));
    let appliers = Appliers::start(1, run, resync, &[]).unwrap();
    let run = daemon::run(setup, appliers, stopping().1);
    tokio::spawn(async move { panic!("the daemon has ended: {:?}", run.await) });
    readiness
}

async fn until(readiness: &mut watch::Receiver<Readiness>, is_it: impl Fn(&Readiness) -> bool) {
    let found =
        timeout(READINESS_TIMEOUT, readiness.wait_for(is_it)).await.map(|found| found.is_ok());
    assert!(found == Ok(true), "it is still {:?}", readiness.borrow());
}

fn waits(readiness: &Readiness, why: &str) -> bool {
    readiness.verdict == Verdict::NotReady && readiness.why.contains(why)
}

#[test]
fn a_node_takes_the_subnet_it_is_assigned_whatever_its_length() {
    on_a_node(async |dir| {
        let store = Arc::new(Assigning::default());
        let mut readiness = start(&store, &dir);
        let missing = "no subnet assigned yet: this node has no podCIDR; start the controller with";
        until(&mut readiness, |now| waits(now, missing)).await;
        assert!(!dir.join("subnet.env").exists());

        *store.assigned.lock().unwrap() = Some("10.42.7.0-25".parse().unwrap());
        until(&mut readiness, |now| now.verdict == Verdict::Ready).await;
        let subnet_file = std::fs::read_to_string(dir.join("subnet.env")).unwrap();
        assert!(subnet_file.contains("FLANNEL_SUBNET=10.42.7.1/25"), "{subnet_file}");
        let routes = ip("route show 10.42.9.0/26");
        assert!(routes.contains("via 192.168.100.2"), "{routes}");
        let works = |told: &Option<NodeNetwork>| *told == Some(NodeNetwork::Works);
        timeout(READINESS_TIMEOUT, store.told.subscribe().wait_for(works)).await.unwrap().unwrap();
    });
}

#[test]
fn a_node_follows_when_its_subnet_is_assigned_anew_and_keeps_it_while_it_has_no_other() {
    on_a_node(async |dir| {
        let store = Arc::new(Assigning::default());
        *store.assigned.lock().unwrap() = Some("10.42.7.0-24".parse().unwrap());
        let mut readiness = start(&store, &dir);
        until(&mut readiness, |now| now.verdict == Verdict::Ready).await;
        let subnet_file = || std::fs::read_to_string(dir.join("subnet.env")).unwrap();

        store.assign(None);
        until(&mut readiness, |now| {
            waits(now, "10.42.7.0-24 is not assigned to this node any more")
        })
        .await;
        assert!(subnet_file().contains("10.42.7.1/24"), "pods go on with what they have");
        let fails = |told: &Option<NodeNetwork>| matches!(told, Some(NodeNetwork::Fails(_)));
        timeout(READINESS_TIMEOUT, store.told.subscribe().wait_for(fails)).await.unwrap().unwrap();

        store.assign(Some("10.42.8.0-24"));
        until(&mut readiness, |now| now.verdict == Verdict::Ready).await;
        assert!(subnet_file().contains("10.42.8.1/24"), "{}", subnet_file());
        let works = |told: &Option<NodeNetwork>| *told == Some(NodeNetwork::Works);
        timeout(READINESS_TIMEOUT, store.told.subscribe().wait_for(works)).await.unwrap().unwrap();
        let kept = store.announced.lock().unwrap().clone().unwrap();
        assert_eq!(kept.public_ip, Some("192.168.100.1".parse().unwrap()));
    });
}

#[test]
fn a_network_that_holds_no_pod_cidr_is_refused_and_changes_nothing() {
    on_a_node(async |dir| {
        let store = Arc::new(Assigning::default());
        *store.assigned.lock().unwrap() = Some("10.42.7.0-24".parse().unwrap());
        let mut readiness = start(&store, &dir);
        until(&mut readiness, |now| now.verdict == Verdict::Ready).await;
        let subnet_file = || std::fs::read_to_string(dir.join("subnet.env")).unwrap();
        let (before, routes) = (subnet_file(), ip("route show"));

        store.tell(&StoreEvent::Config(CONFIG.replace("10.42.0.0", "10.24.0.0")));
        let why = "no place for this node's subnet 10.42.7.0/24 and the one peer";
        until(&mut readiness, |now| waits(now, why)).await;
        assert_eq!((subnet_file(), ip("route show")), (before.clone(), routes.clone()));

        store.tell(&StoreEvent::Config(CONFIG.to_owned()));
        until(&mut readiness, |now| now.verdict == Verdict::Ready).await;
        assert_eq!((subnet_file(), ip("route show")), (before, routes));
    });
}
