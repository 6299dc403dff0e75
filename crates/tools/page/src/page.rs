//! Requests of browsers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flannel_common::spawn_sender;
use flannel_lease::{NetworkName, Subnet};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION,
    REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Response, StatusCode, request};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::collector::Collector;
use crate::gate::{KEY, Sessions};
use crate::leases::LeaseSource;
use crate::live::Live;
use crate::node_connector::NodeConnector;
use crate::{files, html, reachability};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Content policy: nothing from elsewhere, nothing inline, and no page around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const STREAMS: usize = 64;
/// Number of nodes that are asked at once because somebody has opened them.
const OPENED: usize = 4;
const PIECES: usize = 1;

/// Whether a path is the page's: the rest is an API's.
pub fn is_ours(path: &str) -> bool {
    path == "/" || path.starts_with("/page/") || path.starts_with("/node/")
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageView {
    pub(crate) node: Option<Subnet>,
    pub(crate) network: Option<NetworkName>,
    /// Search and page of the list, where there is no JavaScript.
    pub(crate) search: String,
    pub(crate) health: Option<crate::health::Health>,
    pub(crate) page: usize,
}

pub struct Page {
    leases: Arc<dyn LeaseSource>,
    nodes: Option<Arc<dyn NodeConnector>>,
    collectors: Mutex<HashMap<NetworkName, Arc<Collector>>>,
    sessions: Sessions,
    streams: Arc<Semaphore>,
    opened: Semaphore,
    /// Whether the address by which somebody comes in may hold the key.
    is_entered_by_address: bool,
}

impl Page {
    /// Makes the page. `nodes` is how nodes are reached; without it only their leases are shown.
    pub fn new(leases: Arc<dyn LeaseSource>, nodes: Option<Arc<dyn NodeConnector>>) -> Self {
        let collectors = Mutex::default();
        let sessions = Sessions::default();
        let streams = Arc::new(Semaphore::new(STREAMS));
        let opened = Semaphore::new(OPENED);
        Self { leases, nodes, collectors, sessions, streams, opened, is_entered_by_address: false }
    }

    /// Accepts a key in the address, valid for this page alone. A token has no place there: addresses are written down.
    #[must_use]
    pub(crate) fn entered_by_address(self) -> Self {
        Self { is_entered_by_address: true, ..self }
    }

    /// Answers one request. `gate` decides whether the owner of a token, or this connection without one, is an
    /// operator; it is asked again as long as a stream goes on. `form` is the body, of a request that has one.
    pub async fn respond(
        &self,
        request: &request::Parts,
        form: &str,
        is_tls: bool,
        gate: impl Fn(Option<&str>) -> bool + Send + Sync + 'static,
    ) -> Response<Body> {
        let mut response = self.answer(request, form, is_tls, gate).await;
        let headers = response.headers_mut();
        let mut say =
            |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
        say(CONTENT_SECURITY_POLICY, POLICY);
        say(X_CONTENT_TYPE_OPTIONS, "nosniff");
        // Not `no-referrer`: with that browsers do not tell where a form comes from.
        say(REFERRER_POLICY, "same-origin");
        say(CACHE_CONTROL, "no-store");
        response
    }

    async fn answer(
        &self,
        request: &request::Parts,
        form: &str,
        is_tls: bool,
        gate: impl Fn(Option<&str>) -> bool + Send + Sync + 'static,
    ) -> Response<Body> {
        let path = request.uri.path();
        let query = request.uri.query().unwrap_or_default();
        let is_get = request.method == Method::GET || request.method == Method::HEAD;
        let is_post =
            request.method == Method::POST && matches!(path, "/page/enter" | "/page/leave");
        if !is_get && !is_post {
            let response = plain(StatusCode::METHOD_NOT_ALLOWED, "nothing is changed here\n");
            return with(response, ALLOW, HeaderValue::from_static("GET"));
        }
        if let Some((text, kind)) = files::find(path) {
            return of(StatusCode::OK, kind, text);
        }
        match path {
            "/page/enter" => {
                let sent = if is_post { form } else { query };
                let is_known = is_post || self.is_entered_by_address;
                let token = field(sent, KEY).filter(|_| is_known).unwrap_or_default();
                return self.enter(token.trim(), is_tls, &gate);
            }
            "/page/leave" if is_post => return to_start(Some(self.sessions.end(&request.headers))),
            _ => {}
        }
        let token = self.sessions.token(&request.headers, Instant::now());
        let still = move || gate(token.as_ref().map(|token| token.reveal()));
        if !still() {
            return match path {
                "/" => of(StatusCode::UNAUTHORIZED, HTML, html::form(None)),
                _ if path.starts_with("/node/") => to_start(None),
                _ => {
                    plain(StatusCode::UNAUTHORIZED, "the token of an operator is asked for at /\n")
                }
            };
        }
        let Some((shown, collector)) = self.shown(path, query) else {
            return of(StatusCode::NOT_FOUND, HTML, html::nothing());
        };
        match path {
            "/page/live" => self.live(collector, shown, Box::new(still)),
            "/page/seen" => self.seen(&collector, &shown).await,
            _ => {
                let _viewer = collector.look();
                collector.first_look().await;
                let networks = self.leases.networks();
                let picture = collector.picture();
                let Some(text) = html::document(&picture, &collector, &shown, &networks) else {
                    return of(StatusCode::NOT_FOUND, HTML, html::nothing());
                };
                of(StatusCode::OK, HTML, text)
            }
        }
    }

    fn enter(
        &self,
        token: &str,
        is_tls: bool,
        gate: &dyn Fn(Option<&str>) -> bool,
    ) -> Response<Body> {
        if token.is_empty() || !gate(Some(token)) {
            let text = "This is not the token of an operator.";
            return of(StatusCode::UNAUTHORIZED, HTML, html::form(Some(text)));
        }
        match self.sessions.begin(token, is_tls, Instant::now()) {
            Some(cookie) => to_start(Some(cookie)),
            None => plain(StatusCode::SERVICE_UNAVAILABLE, "this machine has no randomness\n"),
        }
    }

    fn live(
        &self,
        collector: Arc<Collector>,
        shown: PageView,
        still: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Response<Body> {
        let Ok(place) = self.streams.clone().try_acquire_owned() else {
            let text = "too many look at once: try again later\n";
            let response = plain(StatusCode::SERVICE_UNAVAILABLE, text);
            return with(response, RETRY_AFTER, HeaderValue::from_static("10"));
        };
        let live = Live { viewer: collector.look(), collector, shown, still };
        let pieces = spawn_sender("live page", PIECES, |send| async move {
            live.run(send).await;
            drop(place);
        });
        let pieces = ReceiverStream::new(pieces).map(|piece| Ok(hyper::body::Frame::data(piece)));
        response(StatusCode::OK, "text/event-stream", StreamBody::new(pieces).boxed_unsync())
    }

    async fn seen(&self, collector: &Arc<Collector>, shown: &PageView) -> Response<Body> {
        let _viewer = collector.look();
        let lease = || {
            let picture = collector.picture();
            Some(picture.nodes.get(shown.node.as_ref()?)?.lease.clone())
        };
        let Some(lease) = lease() else {
            return plain(StatusCode::NOT_FOUND, "there is no such node\n");
        };
        let Ok(_turn) = self.opened.acquire().await else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "it is over\n");
        };
        let name = lease.subnet.to_string();
        let peers = tokio::time::timeout(Duration::from_secs(5), collector.peers(lease)).await;
        let peers = match peers.unwrap_or_else(|_| Err("no answer within 5 s".to_owned())) {
            Ok(peers) => peers,
            Err(why) => return plain(StatusCode::BAD_GATEWAY, format!("{name}: {why}\n")),
        };
        let picture = collector.picture();
        let Some(node) = shown.node.as_ref().and_then(|subnet| picture.nodes.get(subnet)) else {
            return plain(StatusCode::NOT_FOUND, "there is no such node\n");
        };
        let cells = serde_json::to_string(&reachability::seen_by(&picture, node, peers))
            .unwrap_or_default();
        of(StatusCode::OK, "application/json", cells)
    }

    /// What a request is for; `None` if there is no such network or no such path.
    fn shown(&self, path: &str, query: &str) -> Option<(PageView, Arc<Collector>)> {
        let node = match path {
            "/" => None,
            "/page/live" | "/page/seen" => field(query, "node"),
            _ => Some(unescape(path.strip_prefix("/node/")?)),
        };
        let network = field(query, "network").map(|name| name.parse()).transpose().ok()?;
        let health = field(query, "state");
        let shown = PageView {
            node: node.map(|id| id.parse()).transpose().ok()?,
            network,
            search: field(query, "q").unwrap_or_default(),
            health: health.as_deref().and_then(crate::health::Health::by_key),
            page: field(query, "page").and_then(|page| page.parse().ok()).unwrap_or(0),
        };
        let networks = self.leases.networks();
        let chosen = match &shown.network {
            Some(network) => networks.iter().find(|name| *name == network)?.clone(),
            None => {
                let first = networks.iter().find(|name| name.is_default()).or(networks.first());
                first.cloned().unwrap_or_default()
            }
        };
        let mut collectors = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        // A network that is gone need not be remembered.
        collectors.retain(|name, _| *name == chosen || networks.contains(name));
        let new =
            || Arc::new(Collector::new(self.leases.clone(), chosen.clone(), self.nodes.clone()));
        Some((shown, collectors.entry(chosen.clone()).or_insert_with(new).clone()))
    }
}

const HTML: &str = "text/html; charset=utf-8";

fn to_start(cookie: Option<HeaderValue>) -> Response<Body> {
    let start = with(plain(StatusCode::SEE_OTHER, ""), LOCATION, HeaderValue::from_static("/"));
    match cookie {
        Some(cookie) => with(start, SET_COOKIE, cookie),
        None => start,
    }
}

fn with(mut response: Response<Body>, name: HeaderName, value: HeaderValue) -> Response<Body> {
    response.headers_mut().insert(name, value);
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    of(status, "text/plain; charset=utf-8", text)
}

fn of(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    response(status, kind, Full::new(text.into()).boxed_unsync())
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    with(response, CONTENT_TYPE, HeaderValue::from_static(kind))
}

fn field(form: &str, name: &str) -> Option<String> {
    let pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name)?.1;
    Some(unescape(&value.replace('+', " "))).filter(|value| !value.is_empty())
}

/// Decodes percent-encoding, such as `%2F` for `/`. What is not UTF-8 becomes a replacement character.
fn unescape(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
