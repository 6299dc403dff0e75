//! Requests to a lease server, one after the other. The input is a list of them with lines `---`
//! between: who asks, method and path with query on the first line, the body on those that follow.
//!
//! Whatever is asked: never an answer that blames the server, what is refused changes nothing, what is
//! stored nodes can use, and what the server says its client can read.

use flannel_server::{LeaseService, NetworkRequests, ServedNetwork};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_server::embedded::{AskError, RequestsByNetwork};
use flannel_server::lease_state::{Addresses, LeaseState, Reply, Request as Asked, Who};
use flannel_server::watch_log::{WatchLogs, WatchSnapshot};
use flannel_server::{Api, Limits};
use flannel_store::wire::{WatchResult, WireFault, WireLease, WireReservation};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::runtime::Runtime;

const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const NOW: u64 = 1_800_000_000_000;
const REQUESTS: usize = 8;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
});

pub(crate) fn run(input: &[u8]) {
    let input = String::from_utf8_lossy(input);
    RUNTIME.block_on(async {
        let service = Arc::new(Memory::new());
        let config = Asked::SetConfig { text: CONFIG.to_owned(), force: false };
        let network = service.network(&NetworkName::default()).expect("a network");
        network.ask(config).await.expect("a config that works");
        let limits = Limits { max_poll: Duration::ZERO, ..Limits::default() };
        let api = Api::new(service.clone(), limits);
        for text in input.split("\n---\n").take(REQUESTS) {
            if let Some((request, who)) = read(text) {
                ask(&api, &service, request, who, text).await;
            }
        }
    });
}

fn read(text: &str) -> Option<(Request<Full<Bytes>>, Who)> {
    let (head, body) = text.split_once('\n').unwrap_or((text, ""));
    let mut words = head.splitn(3, ' ');
    let who = match words.next()? {
        "admin" => Who { admin: true, ..node("boss", Addresses::Any) },
        "node-1" => node("node-1", Addresses::Only([[192, 0, 2, 1].into()].into())),
        "node-2" => node("node-2", Addresses::Only([[192, 0, 2, 2].into()].into())),
        "any" => node("any", Addresses::Any),
        _ => Who::anybody(),
    };
    let request = Request::builder().method(words.next()?).uri(words.next()?);
    let request = request.header("Accept", "application/json");
    Some((request.body(Full::new(Bytes::from(body.to_owned()))).ok()?, who))
}

fn node(name: &str, addresses: Addresses) -> Who {
    Who { name: Some(name.into()), admin: false, addresses, ..Who::anybody() }
}

async fn ask(api: &Api, service: &Memory, request: Request<Full<Bytes>>, who: Who, text: &str) {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let before = service.snapshots();
    let response = api.respond(request, who.clone()).await;
    let status = response.status();
    assert!(!status.is_server_error(), "{text} → {status}");
    assert!(status.is_success() || status.is_client_error(), "{text} → {status}");
    // A stream of events has no end; its first line tells enough.
    let mut body = response.into_body();
    let first = tokio::time::timeout(Duration::ZERO, body.frame()).await.ok().flatten();
    let first = first.map(|frame| frame.expect("it cannot fail").into_data().expect("no trailers"));
    let first = String::from_utf8(first.unwrap_or_default().into()).expect("text");
    if status.is_client_error() {
        assert_eq!(service.snapshots(), before, "{text} → {status}, and yet it changed something");
        let fault = WireFault::read(&first).unwrap_or_else(|| panic!("{text} → {first}"));
        assert!(fault.error.len() > 10 && !fault.code.is_empty(), "{text} → {first}");
        return;
    }
    assert_eq!(status, StatusCode::OK, "{text}");
    for (_, state) in service.snapshots() {
        let config =
            state.config.as_deref().map(|text| flannel_backend::judge_config(text, SubnetOrigin::Pool));
        assert!(
            config.is_none_or(|judged| judged.is_ok()),
            "{text} is stored, and no node can use it"
        );
        for (subnet, entry) in &state.leases {
            assert_eq!(entry.attrs.check_depth(), Ok(()), "{text} is stored for {subnet}");
        }
    }
    if method == "GET" {
        assert_eq!(service.snapshots(), before, "{text} only asks");
    }
    if who.name.is_some() && !who.admin {
        only_its_own(&who, &before, &service.snapshots(), text);
    }
    understood(&method, &path, &first);
}

/// A node has changed no lease of another's, and nothing that is an operator's.
fn only_its_own(who: &Who, before: &[State], after: &[State], text: &str) {
    let names = |states: &[State]| states.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(before), names(after), "{text}");
    for ((_, before), (_, after)) in before.iter().zip(after) {
        assert_eq!(before.config, after.config, "{text}");
        for (subnet, entry) in &before.leases {
            if !after.leases.iter().any(|(other, now)| other == subnet && now == entry) {
                assert!(
                    who.owns(entry.owner.as_deref(), &entry.attrs),
                    "{text}: {subnet} {entry:?}"
                );
            }
        }
    }
}

/// The client reads what the server writes.
fn understood(method: &str, path: &str, body: &str) {
    let last = path.rsplit('/').next().unwrap_or_default();
    match (method, last) {
        // Nothing has happened yet.
        ("GET", "events") if body.is_empty() => {}
        ("GET", "leases" | "events") => {
            WatchResult::read(body).unwrap_or_else(|error| panic!("{error}: {body}"));
        }
        ("GET", "reservations") => {
            let list: Vec<serde_json::Value> = serde_json::from_str(body).expect("a list");
            for one in list {
                WireReservation::read(&one.to_string())
                    .unwrap_or_else(|error| panic!("{error}: {one}"));
            }
        }
        ("POST", "leases") => {
            WireLease::read(body).and_then(|lease| lease.lease()).expect("a lease");
        }
        _ => {}
    }
}

type State = (NetworkName, WatchSnapshot);

/// A lease state in memory: as the embedded one, without its disk.
#[derive(Clone)]
struct Memory {
    lease_state: Arc<Mutex<(LeaseState, fastrand::Rng)>>,
    watch_logs: Arc<WatchLogs>,
    requests: RequestsByNetwork,
}

impl Memory {
    fn new() -> Self {
        let mut lease_state = LeaseState::default();
        lease_state.apply(&lease_state.start(1, NOW));
        let watch_logs = Arc::new(WatchLogs::default());
        watch_logs.reset(&lease_state, lease_state.revision, [].iter());
        let lease_state = Arc::new(Mutex::new((lease_state, fastrand::Rng::with_seed(1))));
        Self { lease_state, watch_logs, requests: RequestsByNetwork::default() }
    }

    fn snapshots(&self) -> Vec<State> {
        let all =
            |name: NetworkName| Some((name.clone(), self.watch_logs.get(&name)?.snapshot()));
        self.watch_logs.names().into_iter().filter_map(all).collect()
    }
}

impl LeaseService for Memory {
    fn watch_logs(&self) -> &Arc<WatchLogs> {
        &self.watch_logs
    }

    fn now(&self) -> u64 {
        NOW
    }

    fn network(&self, name: &NetworkName) -> Result<Arc<dyn ServedNetwork>, AskError> {
        Ok(Arc::new(MemoryNetwork(self.clone(), name.clone())))
    }
}

struct MemoryNetwork(Memory, NetworkName);

#[async_trait]
impl ServedNetwork for MemoryNetwork {
    async fn ask(&self, request: Asked) -> Result<Reply, AskError> {
        let Self(memory, network) = self;
        let mut lease_state = memory.lease_state.lock().unwrap_or_else(PoisonError::into_inner);
        let (lease_state, rng) = &mut *lease_state;
        let (reply, commit) = lease_state.decide(network, &request, NOW, rng)?;
        if let Some(commit) = commit {
            lease_state.apply(&commit);
            memory.watch_logs.publish(&commit);
        }
        Ok(reply)
    }

    fn requests(&self) -> NetworkRequests {
        NetworkRequests::new(Arc::new(self.0.requests.of(&self.1)))
    }
}
