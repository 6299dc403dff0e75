//! Answers that arrive as streams.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::client::{Limits, silence};
use crate::connection::Connection;

/// A body that arrives in pieces. Its connection ends when it is dropped.
#[derive(Debug)]
pub struct Stream {
    body: Incoming,
    _connection: Connection,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamError {
    Silent,
    Broken(String),
}

impl Stream {
    pub(crate) fn new(body: Incoming, connection: Connection) -> Self {
        Self { body, _connection: connection }
    }

    /// Waits for the next piece, but not longer than `most`. Returns `None` at the regular end.
    pub async fn next(&mut self, most: Duration) -> Result<Option<Bytes>, StreamError> {
        loop {
            match timeout(most, self.body.frame()).await {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Ok(Some(Err(error))) => return Err(StreamError::Broken(error.to_string())),
                Ok(None) => return Ok(None),
                Err(_) => return Err(StreamError::Silent),
            }
        }
    }

    pub async fn whole(self, limits: &Limits) -> Result<Bytes, String> {
        whole(self.body, limits).await
    }
}

pub(crate) async fn whole(body: Incoming, limits: &Limits) -> Result<Bytes, String> {
    let body = timeout(limits.body, Limited::new(body, limits.largest).collect()).await;
    let body = body.map_err(|_| silence(limits.body))?;
    Ok(body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes())
}
