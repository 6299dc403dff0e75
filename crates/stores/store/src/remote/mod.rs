//! Leases at a lease server, over HTTP or HTTPS.

mod assigned;
mod http;
mod listen;
mod operator;
mod options;
mod requests;
mod token;
mod token_file;
mod watch;

use std::sync::Arc;
use std::time::SystemTime;

use ::http::{Method, StatusCode};
use async_trait::async_trait;
use flannel_https::escape;
use flannel_lease::{
    Claimant, Expiry, LeaseAttrs, NetworkConfig, NetworkName, Subnet, SubnetOrigin,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use self::assigned::AssignedSubnets;
use self::http::{Answer, Client};
use crate::wire::{self, WatchResult, WireFault, WireLease};
use crate::{
    AcquireAttempt, Claim, Contact, Cursor, Held, KeptLease, LogPosition, Millis, NodeNetwork,
    NodeStore, PublicAddresses, Recalled, Refusal, RequestStore, Requests, Snapshot, Store,
    StoreError, StoreEvent, StoreFindings,
};

pub use self::listen::{Listen, ListenError, TlsFiles};
pub use self::options::{DEFAULT_PORT, RemoteOptions};
pub use self::token_file::{TokenFile, TokenFileError, TokenHolder, TokenRights, hash_token};

/// Clones share the connection.
#[derive(Clone, Debug)]
pub struct RemoteStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    /// Path of the network, `/v1/{network}`.
    base: String,
    network: NetworkName,
    rng: Mutex<fastrand::Rng>,
    assigned: AssignedSubnets,
    contact: Contact,
    /// Requests of operators, as the server's stream last had them.
    requests: tokio::sync::watch::Sender<Requests>,
    /// Nodes that get no packets, likewise.
    findings: Mutex<StoreFindings>,
}

impl RemoteStore {
    /// Needs no server: a connection is made with the first request.
    pub fn new(options: RemoteOptions, seed: u64) -> Result<Self, StoreError> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let network = options.network.clone();
        let base = format!("/v1/{network}");
        let client = Client::new(options, rng.fork())?;
        Ok(Self(Arc::new(Shared {
            client,
            base,
            network,
            rng: Mutex::new(rng),
            assigned: AssignedSubnets::default(),
            contact: Contact::default(),
            requests: tokio::sync::watch::Sender::default(),
            findings: Mutex::default(),
        })))
    }

    fn events_path(&self, cursor: Option<LogPosition>) -> String {
        let path = format!("{}/events?requests=true&findings=true", self.0.base);
        let Some(LogPosition { revision, history }) = cursor else { return path };
        // An old server sends no history.
        let history = history.map(|history| format!("&history={}", wire::history_text(history)));
        format!("{path}&next={revision}{}", history.unwrap_or_default())
    }

    fn lease_path(&self, subnet: &Subnet) -> String {
        format!("{}/leases/{subnet}", self.0.base)
    }

    async fn send(
        &self,
        attempted: &str,
        method: Method,
        path: &str,
        body: impl Into<String>,
    ) -> Result<Answer, StoreError> {
        let answer = self.0.client.request(method, path, body.into()).await;
        answer.map_err(|fault| StoreError::Unavailable {
            attempted: attempted.to_owned(),
            endpoint: fault.endpoint,
            reason: fault.reason,
        })
    }

    /// The body of a good answer.
    async fn ask(
        &self,
        attempted: &str,
        method: Method,
        path: &str,
        body: impl Into<String>,
    ) -> Result<String, StoreError> {
        let answer = self.send(attempted, method, path, body).await?;
        let good = answer.status.is_success();
        if good { Ok(answer.body) } else { Err(refused(attempted, answer, None)) }
    }

    async fn read_config(&self, query: &str) -> Result<Option<String>, StoreError> {
        let attempted = "read the network config";
        let path = format!("{}/config{query}", self.0.base);
        let answer = self.send(attempted, Method::GET, &path, "").await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(answer.body)),
            _ => Err(refused(attempted, answer, None)),
        }
    }

    async fn read_all(&self) -> Result<(WatchResult, Option<Millis>), StoreError> {
        let (attempted, path) = ("list the leases", format!("{}/leases", self.0.base));
        let answer = self.send(attempted, Method::GET, &path, "").await?;
        if !answer.status.is_success() {
            return Err(refused(attempted, answer, None));
        }
        let result = WatchResult::read(&answer.body).map_err(|error| self.unreadable(&error))?;
        Ok((result, answer.time))
    }

    fn unreadable(&self, error: &wire::WireError) -> StoreError {
        StoreError::Corrupt {
            key: format!("the answer of {}", self.0.client.endpoint()),
            reason: error.to_string(),
        }
    }

    /// Our lease as the answer has it. Its life counts from before the request and by our own clock.
    fn held(&self, body: &str, before: SystemTime) -> Result<Held, StoreError> {
        let lease = WireLease::read(body).map_err(|error| self.unreadable(&error))?;
        let expiry = match (lease.expiry, lease.ttl) {
            (Some(Expiry::Never), _) => Expiry::Never,
            (_, Some(ttl)) => Expiry::At(before + ttl),
            (Some(expiry), None) => expiry,
            (None, None) => Expiry::At(before),
        };
        let version = lease.version();
        let lease = lease.lease().map_err(|error| self.unreadable(&error))?;
        Ok(Held { lease, expiry, version })
    }
}

fn snapshot(result: &WatchResult) -> Snapshot {
    let leases = result.snapshot.iter().flatten().filter_map(|lease| lease.stored().ok());
    Snapshot { leases: leases.collect(), cursor: result.cursor.into() }
}

#[async_trait]
impl Store for RemoteStore {
    fn name(&self) -> String {
        format!("Lease server at {}, network {}", self.0.client.endpoint(), self.0.network)
    }

    fn description(&self) -> String {
        format!("lease server at {}", self.0.client.endpoint())
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.0.contact.clone())
    }

    async fn config(&self) -> Result<Option<String>, StoreError> {
        self.read_config("").await
    }

    fn how_to_write_config(&self) -> String {
        let (server, network) = (self.0.client.endpoint(), &self.0.network);
        let named = network.flag();
        format!(
            "`flannelctl config set FILE --remote={server}{named}` as an operator, FILE for example {}, or \
             start the lease server with --net-config-path=FILE",
            crate::store::EXAMPLE_CONFIG
        )
    }

    fn subnets(&self) -> SubnetOrigin {
        self.0.assigned.subnets()
    }

    fn findings(&self) -> StoreFindings {
        self.0.findings.lock().clone()
    }

    fn watch(&self, cursor: Cursor) -> mpsc::Receiver<StoreEvent> {
        watch::start(Arc::new(self.clone()), LogPosition::read(&cursor))
    }

    fn requests(&self) -> &dyn RequestStore {
        self
    }
}

#[async_trait]
impl NodeStore for RemoteStore {
    async fn public_addresses(&self) -> Result<PublicAddresses, StoreError> {
        let node = self.learn().await?;
        Ok(PublicAddresses { v4: node.v4, v6: node.v6 })
    }

    /// Reports to a server that assigns subnets; another has no use for it.
    async fn report(&self, network: &NodeNetwork) {
        if self.subnets() == SubnetOrigin::Store {
            self.keep_reporting(network).await;
        }
    }

    fn node_moved(&self) {
        self.0.client.node_moved();
    }

    async fn recall(&self, config: &NetworkConfig, me: &Claimant) -> Result<Recalled, StoreError> {
        let (result, _) = self.read_all().await?;
        let snapshot = snapshot(&result);
        if self.subnets() == SubnetOrigin::Pool {
            return Ok(Recalled::by_address(config, me, snapshot, self.clone()));
        }
        let own = result.snapshot.iter().flatten().find(|lease| self.0.assigned.is_own(lease));
        Ok(Recalled::new(own.map(|lease| lease.attrs.clone()), snapshot, self.clone()))
    }

    async fn renew(&self, held: &Held, attrs: &LeaseAttrs) -> Result<Held, StoreError> {
        let version = held.version.number();
        let entry = KeptLease { version, ..KeptLease::new(attrs.clone(), None, None) };
        let body = wire::lease_json(&held.lease.subnet, &entry, None);
        let before = SystemTime::now();
        let path = self.lease_path(&held.lease.subnet);
        let attempted = "renew the lease";
        let answer = self.send(attempted, Method::PUT, &path, body).await?;
        match answer.status.is_success() {
            true => Ok(self.0.assigned.announced(self.held(&answer.body, before)?, attrs)),
            false => Err(refused(attempted, answer, Some(held.lease.subnet))),
        }
    }
}

/// The server chooses, so there is no contention.
#[async_trait]
impl AcquireAttempt for RemoteStore {
    async fn run(
        self: Box<Self>,
        _: &NetworkConfig,
        claim: &Claim,
        _: &Snapshot,
    ) -> Result<Held, StoreError> {
        let previous =
            claim.previous.map(|subnet| format!("?previous={}", escape(&subnet.to_string())));
        let path = format!("{}/leases{}", self.0.base, previous.unwrap_or_default());
        let before = SystemTime::now();
        let body = self.ask("acquire a lease", Method::POST, &path, claim.attrs.to_json()).await?;
        Ok(self.0.assigned.announced(self.held(&body, before)?, &claim.attrs))
    }
}

/// Error of a refused request. `own` is the lease that this node believes to be its own.
fn refused(attempted: &str, answer: Answer, own: Option<Subnet>) -> StoreError {
    let Answer { endpoint, status, body, .. } = answer;
    let fault = WireFault::read(&body).unwrap_or_else(|| WireFault {
        error: format!("{status}: {}", body.chars().take(200).collect::<String>()),
        ..WireFault::default()
    });
    let (attempted, reason) = (attempted.to_owned(), fault.error);
    let by = fault.lease.and_then(|lease| lease.lease().ok());
    match (fault.code.as_str(), status) {
        (wire::NOT_ASSIGNED_YET, _) => {
            let (reason, fix) =
                reason.split_once("; ").unwrap_or((&reason, "see the server's log"));
            StoreError::NotAssignedYet { reason: reason.to_owned(), fix: fix.to_owned() }
        }
        ("gone", _) if let Some(own) = own => StoreError::Lost { key: own.to_string() },
        ("taken", _) if let (Some(own), Some(by)) = (own, by) => {
            StoreError::Taken { key: own.to_string(), by: Box::new(by) }
        }
        ("not-yours", _) => {
            let fix = "unless it is reserved, it ends by itself a day after its last renewal";
            StoreError::Denied { attempted, endpoint, reason, fix }
        }
        (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            let fix = "the server knows its clients by token or certificate: `flannelctl pki` makes them, \
                       --remote-token-file or --remote-certfile shows them";
            StoreError::Denied { attempted, endpoint, reason, fix }
        }
        (_, StatusCode::TOO_MANY_REQUESTS) => {
            StoreError::Unavailable { attempted, endpoint, reason }
        }
        (_, status) if status.is_server_error() => {
            StoreError::Unavailable { attempted, endpoint, reason }
        }
        (code, _) if !code.is_empty() => {
            StoreError::rejected(&attempted, Refusal::Elsewhere(reason))
        }
        _ => StoreError::Refused { attempted, endpoint, reason },
    }
}
