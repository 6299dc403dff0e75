//! Requests of operators and nodes' answers at a lease server. Requests come with the events.

use ::http::{Method, StatusCode};
use async_trait::async_trait;
use tokio::sync::watch;

use super::{RemoteStore, refused};
use crate::{NodeAnswer, RequestChange, RequestId, RequestStore, Requests, StoreError};

#[async_trait]
impl RequestStore for RemoteStore {
    fn follow(&self) -> watch::Receiver<Requests> {
        self.0.requests.subscribe()
    }

    async fn write(&self, change: RequestChange<'_>) -> Result<(), StoreError> {
        let mut path = format!("{}/requests/{}", self.0.base, change.id());
        let (method, body) = match change {
            RequestChange::Place(request) => (Method::PUT, request.to_json()),
            RequestChange::Withdraw(_) => (Method::DELETE, String::new()),
            RequestChange::Answer(_, answer) => {
                path += &format!("/answers/{}", answer.node);
                (Method::PUT, answer.body.to_string())
            }
        };
        let attempted = change.to_string();
        let answer = self.send(&attempted, method, &path, body).await?;
        match (answer.status, change) {
            (status, _) if status.is_success() => Ok(()),
            (StatusCode::NOT_FOUND, RequestChange::Answer(id, _)) => {
                Err(StoreError::Lost { key: id.to_string() })
            }
            _ => Err(refused(&attempted, answer, None)),
        }
    }

    async fn answers(&self, to: &RequestId) -> Result<Vec<NodeAnswer>, StoreError> {
        let path = format!("{}/requests/{to}/answers", self.0.base);
        let attempted = format!("read the answers to {to}");
        let body = self.ask(&attempted, Method::GET, &path, "").await?;
        NodeAnswer::read_list(&body).map_err(|error| self.unreadable(&error))
    }
}
