//! Client of one node's probe port. A node that is slow, endless or not ours costs a bounded time and amount.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flannel_https::PlainConnection;
use flannel_state::{DaemonState, HistoryEvent, PeerState};
use http::header::{CONNECTION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::leases::LeaseRow;
use crate::node_connector::NodeConnector;
use crate::node_report::{NodeReport, brief, brief_event, brief_peer};

/// Largest state: it usually has some kilobytes.
const STATE_BYTES: usize = 256 << 10;
/// Largest list: there may be ten thousand peers, at some 300 bytes each.
const LINES_BYTES: usize = 8 << 20;
/// Number of a node's latest events, and of its peers, that are read.
pub(crate) const EVENTS: usize = 20;
const PEERS: usize = 20_000;

#[derive(Debug)]
pub(crate) enum Answer {
    Report(Box<NodeReport>, Vec<HistoryEvent>),
    /// The node answers, but not with its state, for this reason.
    NoState(String),
    Silent(String),
}

pub(crate) struct NodeClient {
    way: Arc<dyn NodeConnector>,
    node: LeaseRow,
    timeout: Duration,
    /// A daemon answers several requests on one connection; one of an older version does not.
    connection: Option<PlainConnection>,
}

impl NodeClient {
    pub(crate) fn new(way: Arc<dyn NodeConnector>, node: LeaseRow) -> Self {
        let timeout = way.pace().timeout;
        Self { way, node, timeout, connection: None }
    }

    pub(crate) async fn ask(&mut self, network: &str) -> Answer {
        let state = match self.get("/v1/state", STATE_BYTES).await {
            Ok(Some(bytes)) => serde_json::from_slice::<DaemonState>(&bytes).ok(),
            Ok(None) => None,
            Err(why) => return Answer::Silent(brief(self.way.words(&self.node, &why))),
        };
        let Some(state) = state else {
            return Answer::NoState(
                "what answers on its probe port does not tell its state: the Go flannel, or a flanneld of an \
                 older version"
                    .to_owned(),
            );
        };
        let version = brief(state.version.clone());
        let Some(report) = NodeReport::of(state, network) else {
            return Answer::NoState(format!("its flanneld {version} has no network {network}"));
        };
        let path = format!("/v1/events?last={EVENTS}");
        let events = self.lines(&path, usize::MAX).await.unwrap_or_default();
        let late = events.len().saturating_sub(EVENTS);
        let events = events.into_iter().skip(late).map(brief_event).collect();
        Answer::Report(Box::new(report), events)
    }

    /// How it sees others; the error is for an operator.
    pub(crate) async fn peers(&mut self, network: &str) -> Result<Vec<PeerState>, String> {
        let peers: Vec<PeerState> = self.lines("/v1/peers", PEERS).await?;
        Ok(peers.into_iter().filter(|peer| peer.network == network).map(brief_peer).collect())
    }

    async fn lines<T: DeserializeOwned>(
        &mut self,
        path: &str,
        most: usize,
    ) -> Result<Vec<T>, String> {
        let bytes = self.get(path, LINES_BYTES).await?;
        let bytes = bytes.ok_or("it does not tell that")?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        // A line that a newer daemon writes differently is skipped.
        Ok(lines.take(most).filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// Gets a path; `None` for an answer with an error status.
    async fn get(&mut self, path: &str, largest: usize) -> Result<Option<Bytes>, String> {
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            // The other side may have closed it after its last answer; that is not a fault.
            && connection.ready().await.is_err()
        {
            kept = None;
        }
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let request = Request::get(path)
            .header(HOST, "flanneld")
            .header(CONNECTION, "keep-alive")
            .body(Bytes::new())
            .map_err(|error| error.to_string())?;
        let silent = || format!("silent for {} s", self.timeout.as_secs());
        let answer = timeout(self.timeout, connection.send(request)).await;
        let answer = answer.map_err(|_| silent())?.map_err(|error| root(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), largest).collect();
        let body = timeout(self.timeout, body).await.map_err(|_| silent())?;
        let body = body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes();
        self.connection = Some(connection);
        Ok((status == StatusCode::OK).then_some(body))
    }

    async fn connect(&self) -> Result<PlainConnection, String> {
        let stream = timeout(self.timeout, self.way.connect(&self.node)).await;
        let stream = stream
            .map_err(|_| format!("cannot connect: silent for {} s", self.timeout.as_secs()))??;
        PlainConnection::open(stream).await.map_err(|error| root(&error))
    }
}

/// Root cause of an error: the rest says that something went wrong.
fn root(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
