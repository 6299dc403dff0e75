//! The one door to what this daemon knows: its state, as [`flannel_state`] describes it, over HTTP. Every tool is
//! a reader of it. Through a Unix socket that only root may use all of it is said, and a repair can be asked for;
//! through the probe port what is nobody's secret, read-only.
//!
//! It costs nothing while nobody asks. The daemons of the networks are asked in small pieces, and long answers
//! are sent as they are made, so that neither ten thousand peers nor a slow reader keep a daemon from its work.

mod entries;
mod metrics;
mod socket;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flannel_common::spawn_sender;
use flannel_lease::Subnet;
use flannel_state::{DaemonState, NetworkState, PeerCondition, PeerState, SCHEMA};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use ipnet::IpNet;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::appliers::Appliers;
use crate::daemon::{Figures, moment};
use crate::history::History;
use crate::readiness::{Reading, Report};

pub enum Question {
    State(oneshot::Sender<NetworkState>),
    /// A page of peers: those after this one, or the first.
    Peers(Option<PeerPlace>, oneshot::Sender<PeersPage>),
    /// They live as long as a handle exists, so do not hold one while you wait for anything else.
    Appliers(oneshot::Sender<Appliers>),
    Figures(oneshot::Sender<Box<Figures>>),
    LeaseNets(oneshot::Sender<BTreeSet<IpNet>>),
}

/// Where a page of peers ended. Those that the store no longer lists come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPlace {
    pub subnet: Subnet,
    pub is_vanished: bool,
}

pub struct PeersPage {
    pub peers: Vec<(Subnet, PeerState)>,
    /// Whom to ask what is missing, if anything is.
    pub appliers: Option<Appliers>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Socket,
    /// Anybody who reaches the probe port.
    Port,
}

/// How long a daemon may take to answer. One that waits for its store is late, and is done without.
const DAEMON_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Events told of at once: a reader that is slow keeps no more of them in memory than these.
const EVENTS_AT_ONCE: usize = 200;
const PIECES: usize = 4;

pub type Body = BoxBody<Bytes, Infallible>;

#[derive(Clone)]
pub struct Door(Arc<DoorState>);

struct DoorState {
    /// That of any network tells of all.
    report: Report,
    history: History,
    began: SystemTime,
}

impl Door {
    pub fn new(report: Report, history: History) -> Self {
        Self(Arc::new(DoorState { report, history, began: SystemTime::now() }))
    }

    pub async fn respond<B>(&self, request: &Request<B>, through: Through) -> Response<Body> {
        let root = through == Through::Socket;
        let value = |name: &str| value(request.uri().query()?, name);
        match (request.method().as_str(), request.uri().path()) {
            ("GET", "/v1/state") => {
                let state = serde_json::to_vec(&self.state(through).await).unwrap_or_default();
                response(StatusCode::OK, "application/json", whole(state))
            }
            ("GET", "/metrics") => self.metrics(request.headers()).await,
            ("GET", "/v1/peers") => lines(|send| self.clone().send_peers(send)),
            ("GET", "/v1/events") => {
                let follow = root && value("follow") == Some("1");
                let last = value("last").and_then(|last| last.parse().ok()).unwrap_or(u64::MAX);
                lines(|send| self.clone().send_events(last, follow, send))
            }
            ("GET", "/v1/entries") if root => {
                let wrong_only = value("wrong") == Some("1");
                lines(|send| self.clone().send_entries(wrong_only, send))
            }
            ("POST", "/v1/repair") if root => lines(|send| self.clone().repair(send)),
            ("GET", "/v1/entries") | ("POST", "/v1/repair") => {
                let text = "This is answered on the Unix socket of flanneld alone, to root\n";
                response(StatusCode::FORBIDDEN, "text/plain", whole(text))
            }
            ("GET", _) => {
                let text = "Ask for /v1/state, /v1/peers, /v1/events, /v1/entries or /metrics\n";
                response(StatusCode::NOT_FOUND, "text/plain", whole(text))
            }
            _ => {
                let text = "GET is answered, and POST of /v1/repair to root\n";
                response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", whole(text))
            }
        }
    }

    async fn state(&self, through: Through) -> DaemonState {
        let mut networks = Vec::new();
        for reading in self.0.report.of_each_network() {
            let mut network = network_state(reading).await;
            // Commands of an operator may be in it.
            network.config = network.config.filter(|_| through == Through::Socket);
            networks.push(network);
        }
        DaemonState {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            started: moment(self.0.began),
            now: moment(SystemTime::now()),
            networks,
        }
    }

    async fn send_peers(self, send: mpsc::Sender<Bytes>) {
        for reading in self.0.report.of_each_network() {
            let mut after = None;
            loop {
                let page = ask(&reading, |answer| Question::Peers(after, answer)).await;
                let Some(page) = page.filter(|page| !page.peers.is_empty()) else { break };
                let peers = entries::with_what_is_missing(page).await;
                after = peers.last().map(|(subnet, peer)| PeerPlace {
                    subnet: *subnet,
                    is_vanished: peer.condition == PeerCondition::Vanished,
                });
                let mut text = Vec::new();
                peers.iter().for_each(|(_, peer)| line(&mut text, peer));
                if send.send(text.into()).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn send_events(self, last: u64, follow: bool, send: mpsc::Sender<Bytes>) {
        let mut next = self.0.history.next_number();
        let mut from = next.borrow().saturating_sub(last);
        loop {
            next.mark_unchanged();
            loop {
                let page = self.0.history.since(from, EVENTS_AT_ONCE);
                let Some(latest) = page.last() else { break };
                from = latest.number + 1;
                let mut text = Vec::new();
                page.iter().for_each(|event| line(&mut text, event));
                if send.send(text.into()).await.is_err() {
                    return;
                }
            }
            if !follow {
                return;
            }
            tokio::select! {
                changed = next.changed() => if changed.is_err() { return },
                () = send.closed() => return,
            }
        }
    }
}

/// What a query such as `last=20&follow=1` says of `last`.
fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

async fn network_state(reading: Reading) -> NetworkState {
    if let Some(mut state) = ask(&reading, Question::State).await {
        let is_wrong = state.entries.missing > 0 || state.entries.contested > 0;
        if is_wrong && let Some(appliers) = ask(&reading, Question::Appliers).await {
            state.peers = entries::count_incomplete(state.peers, &appliers).await;
        }
        return state;
    }
    let (verdict, why) = (reading.readiness.verdict, reading.readiness.remark());
    NetworkState { verdict, why, ..NetworkState::starting(reading.network.as_str()) }
}

async fn ask<T>(
    reading: &Reading,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let asked = async {
        reading.ask.as_ref()?.send(question(answer)).await.ok()?;
        answered.await.ok()
    };
    tokio::time::timeout(DAEMON_ANSWER_TIMEOUT, asked).await.ok().flatten()
}

fn line(text: &mut Vec<u8>, value: &impl Serialize) {
    if serde_json::to_writer(&mut *text, value).is_ok() {
        text.push(b'\n');
    }
}

fn lines<F>(make: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    let pieces = spawn_sender("answer in lines", PIECES, make);
    let pieces = ReceiverStream::new(pieces).map(|piece| Ok(Frame::data(piece)));
    response(StatusCode::OK, "application/x-ndjson", StreamBody::new(pieces).boxed())
}

pub(crate) fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

pub(crate) fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_several_things_in_any_order() {
        for query in ["last=20&follow=1", "follow=1&last=20", "more=2&last=20&follow=1"] {
            assert_eq!((value(query, "last"), value(query, "follow")), (Some("20"), Some("1")));
            assert_eq!(value(query, "wrong"), None);
        }
        assert_eq!(value("", "last"), None);
    }
}
