//! A node's answers to what operators ask, at a lease server. What is asked comes with the events.

use ::http::{Method, StatusCode};

use super::{RemoteStore, refused};
use crate::{NodeAnswer, RequestId, StoreError};

impl RemoteStore {
    pub(super) fn request_path(&self, id: &RequestId) -> String {
        format!("{}/requests/{id}", self.0.base)
    }

    pub(super) async fn answer_request(
        &self,
        to: &RequestId,
        answer: &NodeAnswer,
    ) -> Result<(), StoreError> {
        let attempted = "answer an operator's request";
        let path = format!("{}/answers/{}", self.request_path(to), answer.node);
        let answered = self.send(attempted, Method::PUT, &path, answer.body.to_string()).await?;
        match answered.status {
            StatusCode::NOT_FOUND => Err(StoreError::Lost { key: to.to_string() }),
            status if status.is_success() => Ok(()),
            _ => Err(refused(attempted, answered, None)),
        }
    }
}
