//! Asks one node on its probe port. A node that is slow, endless or not ours costs a bounded time and amount.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use flannel_https::{Client, Limits, Server, Target};
use flannel_state::{DaemonState, HistoryEvent, PeerState};
use http::{Request, StatusCode};
use serde::de::DeserializeOwned;

use crate::said::{Said, brief, brief_event, brief_peer};

/// A state is some kilobytes.
const STATE_BYTES: usize = 256 << 10;
/// Of peers there may be ten thousand, at some 300 bytes each.
const LINES_BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(2);
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeClient {
    pub(crate) port: u16,
}

impl NodeClient {
    pub(crate) async fn ask(self, address: IpAddr, network: &str) -> Answer {
        let state = match self.get(address, "/v1/state", STATE_BYTES).await {
            Ok(Some(bytes)) => serde_json::from_slice::<DaemonState>(&bytes).ok(),
            Ok(None) => None,
            Err(why) => {
                let port = self.port;
                return Answer::Silent(brief(format!(
                    "{address} port {port}: {why}; is flanneld running there, with --healthz-port={port}?"
                )));
            }
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
        let events = self.lines(address, &path, usize::MAX).await.unwrap_or_default();
        let late = events.len().saturating_sub(EVENTS);
        let events = events.into_iter().skip(late).map(brief_event).collect();
        Answer::Said(Box::new(said), events)
    }

    /// How it sees others; the error is for an operator.
    pub(crate) async fn peers(
        self,
        address: IpAddr,
        network: &str,
    ) -> Result<Vec<PeerState>, String> {
        let peers: Vec<PeerState> = self.lines(address, "/v1/peers", PEERS).await?;
        Ok(peers.into_iter().filter(|peer| peer.network == network).map(brief_peer).collect())
    }

    async fn lines<T: DeserializeOwned>(
        self,
        address: IpAddr,
        path: &str,
        most: usize,
    ) -> Result<Vec<T>, String> {
        let bytes = self.get(address, path, LINES_BYTES).await?;
        let bytes = bytes.ok_or("it does not tell that")?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        // A line that a newer daemon writes otherwise is passed over.
        Ok(lines.take(most).filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// `None` if there is an answer, and it is not the one that was asked for.
    async fn get(
        self,
        address: IpAddr,
        path: &str,
        largest: usize,
    ) -> Result<Option<Bytes>, String> {
        let limits = Limits { connect: PATIENCE, answer: PATIENCE, body: PATIENCE, largest };
        let server =
            Server { host: address.to_string(), port: self.port, tls: false, base: String::new() };
        let request = Request::get(path).body(Bytes::new()).map_err(|error| error.to_string())?;
        let client = Client::new(limits);
        let answer = client.request(|| Ok(Target::new(server)), request).await?;
        Ok((answer.status() == StatusCode::OK).then(|| answer.into_body()))
    }
}
