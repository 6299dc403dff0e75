//! The other node looks for the packets too: its daemon is asked through the store, as operators ask nodes.

use std::time::Duration;

use anyhow::Context as _;
use flannel_probe::marked::request::{Asked, KIND, Said};
use flannel_probe::marked::{Mark, Sighting};
use flannel_store::{Admin, NodeRequest, RequestId};
use flannel_trace::Peer;
use tokio::time::{sleep, timeout};

/// For a daemon to hear of the request, and to say that it looks. One that does not know such requests says nothing.
const PATIENCE: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(100);
/// Should nobody withdraw it.
const LIMIT: Duration = Duration::from_secs(30);

/// What was seen on the other node; or why nobody has looked there.
pub(super) type Seen = Result<Vec<Sighting>, String>;

/// Sends while the other node looks, and without it if it does not.
pub(super) async fn watch_while(
    store: anyhow::Result<Box<dyn Admin>>,
    peer: &Peer,
    mark: Mark,
    send: impl FnOnce() -> anyhow::Result<Vec<Sighting>>,
) -> anyhow::Result<(Vec<Sighting>, Seen)> {
    let asked = async {
        let mut asked = OtherNode::new(store?, peer, mark)?;
        match timeout(PATIENCE, asked.begins_to_look()).await {
            Ok(Ok(())) => Ok(asked),
            Ok(Err(error)) => {
                asked.withdraw().await;
                Err(error)
            }
            Err(_) => {
                asked.withdraw().await;
                anyhow::bail!(
                    "its daemon did not answer within {} s: it is away, older, or another flannel",
                    PATIENCE.as_secs()
                )
            }
        }
    };
    match asked.await {
        Err(error) => Ok((send()?, Err(format!("{error:#}")))),
        Ok(mut asked) => {
            // It blocks, and nothing else is to be done meanwhile.
            let here = send();
            let there = timeout(PATIENCE, asked.has_seen()).await;
            asked.withdraw().await;
            let there =
                there.unwrap_or_else(|_| Err(anyhow::anyhow!("it did not say what it saw")));
            Ok((here?, there.map_err(|error| format!("{error:#}"))))
        }
    }
}

struct OtherNode {
    store: Box<dyn Admin>,
    request: NodeRequest,
    asked: Asked,
}

impl OtherNode {
    fn new(store: Box<dyn Admin>, peer: &Peer, mark: Mark) -> anyhow::Result<Self> {
        let asked = Asked::new(mark);
        let request = NodeRequest {
            id: RequestId::random(&mut fastrand::Rng::new()),
            kind: KIND.to_owned(),
            nodes: vec![peer.subnet().context("its lease has no subnet")?],
            limit: LIMIT,
            body: serde_json::to_value(&asked)?,
        };
        Ok(Self { store, request, asked })
    }

    async fn begins_to_look(&mut self) -> anyhow::Result<()> {
        self.store.place(&self.request).await?;
        loop {
            match self.said().await? {
                Some(Said::Looking) => return Ok(()),
                Some(Said::Failed(why)) => anyhow::bail!(why),
                Some(Said::Seen(_)) | None => sleep(LOOK).await,
            }
        }
    }

    async fn has_seen(&mut self) -> anyhow::Result<Vec<Sighting>> {
        self.asked.ended = true;
        self.request.body = serde_json::to_value(&self.asked)?;
        self.store.place(&self.request).await?;
        loop {
            match self.said().await? {
                Some(Said::Seen(seen)) => return Ok(seen),
                Some(Said::Failed(why)) => anyhow::bail!(why),
                Some(Said::Looking) | None => sleep(LOOK).await,
            }
        }
    }

    async fn said(&self) -> anyhow::Result<Option<Said>> {
        let answers = self.store.answers(&self.request.id).await?;
        Ok(answers.into_iter().find_map(|answer| serde_json::from_value(answer.body).ok()))
    }

    /// If it cannot be said, the request ends by itself.
    async fn withdraw(&self) {
        let _ = timeout(PATIENCE, self.store.withdraw(&self.request.id)).await;
    }
}
