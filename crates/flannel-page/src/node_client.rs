//! Asks one node on its probe port. A node that is slow, endless or not ours costs a bounded time and amount.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flannel_state::{DaemonState, HistoryEvent, PeerState};
use http::header::{CONNECTION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::leases::LeaseRow;
use crate::said::{Said, brief, brief_event, brief_peer};
use crate::way::Way;

/// A state is some kilobytes.
const STATE_BYTES: usize = 256 << 10;
/// Of peers there may be ten thousand, at some 300 bytes each.
const LINES_BYTES: usize = 8 << 20;
/// Of a node's history so much is looked at.
pub(crate) const EVENTS: usize = 20;
const PEERS: usize = 20_000;

#[derive(Debug)]
pub(crate) enum Answer {
    Said(Box<Said>, Vec<HistoryEvent>),
    /// Somebody answers who does not say how the node is.
    Mute(String),
    Silent(String),
}

/// One node, for as long as it is asked.
pub(crate) struct NodeClient {
    way: Arc<dyn Way>,
    node: LeaseRow,
    patience: Duration,
    /// A daemon answers several requests on one connection; one of an older version does not.
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NodeClient {
    pub(crate) fn new(way: Arc<dyn Way>, node: LeaseRow) -> Self {
        let patience = way.pace().patience;
        Self { way, node, patience, connection: None }
    }

    pub(crate) async fn ask(&mut self, network: &str) -> Answer {
        let state = match self.get("/v1/state", STATE_BYTES).await {
            Ok(Some(bytes)) => serde_json::from_slice::<DaemonState>(&bytes).ok(),
            Ok(None) => None,
            Err(why) => return Answer::Silent(brief(self.way.words(&self.node, &why))),
        };
        let Some(state) = state else {
            return Answer::Mute(
                "what answers on its probe port does not tell its state: the Go flannel, or a flanneld of an \
                 older version"
                    .to_owned(),
            );
        };
        let version = brief(state.version.clone());
        let Some(said) = Said::of(state, network) else {
            return Answer::Mute(format!("its flanneld {version} has no network {network}"));
        };
        let path = format!("/v1/events?last={EVENTS}");
        let events = self.lines(&path, usize::MAX).await.unwrap_or_default();
        let late = events.len().saturating_sub(EVENTS);
        let events = events.into_iter().skip(late).map(brief_event).collect();
        Answer::Said(Box::new(said), events)
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
        // A line that a newer daemon writes otherwise is passed over.
        Ok(lines.take(most).filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// `None` if there is an answer, and it is not the one that was asked for.
    async fn get(&mut self, path: &str, largest: usize) -> Result<Option<Bytes>, String> {
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            // The other side may have closed it after its last answer; that is not a fault.
            && connection.sender.ready().await.is_err()
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
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let silent = || format!("silent for {} s", self.patience.as_secs());
        let answer = timeout(self.patience, connection.sender.send_request(request)).await;
        let answer = answer.map_err(|_| silent())?.map_err(|error| root(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), largest).collect();
        let body = timeout(self.patience, body).await.map_err(|_| silent())?;
        let body = body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes();
        self.connection = Some(connection);
        Ok((status == StatusCode::OK).then_some(body))
    }

    async fn connect(&self) -> Result<Connection, String> {
        let stream = timeout(self.patience, self.way.connect(&self.node)).await;
        let stream = stream
            .map_err(|_| format!("cannot connect: silent for {} s", self.patience.as_secs()))??;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| root(&error))?;
        let task = tokio::spawn(async move {
            // Who asks is told what went wrong.
            let _ = connection.await;
        });
        Ok(Connection { sender, task: task.abort_handle() })
    }
}

/// What is at the bottom of an error: the rest says that something went wrong.
fn root(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
