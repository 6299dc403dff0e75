//! The other node of a trace: its daemon is asked, through the store, to look for packets or walk its half.

use std::time::Duration;

use anyhow::Context as _;
use flannel_store::{NodeRequest, OperatorStore, RequestId};
use flannel_trace::Peer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

/// Time for a daemon to hear of the request, and to say so. One that does not know such requests says nothing.
pub(super) const NODE_ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
const ANSWER_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a request ends that nobody withdraws.
const REQUEST_LIFETIME: Duration = Duration::from_secs(30);

pub(super) struct OtherNode {
    store: Box<dyn OperatorStore>,
    request: NodeRequest,
}

/// Asks it something, and talks with it about that. Whatever comes of it, the request is withdrawn in the end.
pub(super) async fn ask<T>(
    store: anyhow::Result<Box<dyn OperatorStore>>,
    peer: &Peer,
    kind: &str,
    body: &impl Serialize,
    talk: impl AsyncFnOnce(&mut OtherNode) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let request = NodeRequest {
        id: RequestId::random(&mut fastrand::Rng::new()),
        kind: kind.to_owned(),
        nodes: vec![peer.subnet().context("its lease has no subnet")?],
        limit: REQUEST_LIFETIME,
        body: serde_json::Value::Null,
    };
    let mut node = OtherNode { store: store?, request };
    let talked = match node.say(body).await {
        Ok(()) => talk(&mut node).await,
        Err(error) => Err(error),
    };
    // If that cannot be said, the request ends by itself.
    let _ = timeout(NODE_ANSWER_TIMEOUT, node.store.requests().withdraw(&node.request.id)).await;
    talked
}

impl OtherNode {
    /// In place of what was asked before.
    pub(super) async fn say(&mut self, body: &impl Serialize) -> anyhow::Result<()> {
        self.request.body = serde_json::to_value(body)?;
        match timeout(NODE_ANSWER_TIMEOUT, self.store.requests().place(&self.request)).await {
            Ok(placed) => Ok(placed?),
            Err(_) => anyhow::bail!("the store does not answer"),
        }
    }

    /// Waits until it says what is wanted. `understand` has an answer, or why there is none; or it waits on.
    pub(super) async fn hear<S: DeserializeOwned, T>(
        &self,
        patience: Duration,
        understand: impl Fn(S) -> Option<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let heard = async {
            loop {
                let answers = self.store.requests().answers(&self.request.id).await?;
                let mut said = answers.into_iter().filter_map(|answer| {
                    serde_json::from_value(answer.body).ok().and_then(&understand)
                });
                match said.next() {
                    Some(said) => return said.map_err(anyhow::Error::msg),
                    None => sleep(ANSWER_POLL_INTERVAL).await,
                }
            }
        };
        timeout(patience, heard).await.unwrap_or_else(|_| {
            anyhow::bail!(
                "its daemon did not answer within {} s: it is away, older, or another flannel",
                patience.as_secs()
            )
        })
    }
}
