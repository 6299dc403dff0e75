//! Answers that go on and on.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::client::{Limits, silence};
use crate::connection::Connection;

/// A body that comes piece by piece. Its connection ends when it is dropped.
#[derive(Debug)]
pub struct Stream {
    body: Incoming,
    _connection: Connection,
}

/// Why there is no next piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The server has said nothing for as long as was allowed.
    Silent,
    /// The connection broke; why.
    Off(String),
}

impl Stream {
    pub(crate) fn new(body: Incoming, connection: Connection) -> Self {
        Self { body, _connection: connection }
    }

    /// Waits for the next piece, for so long at most. `None` at its proper end.
    pub async fn next(&mut self, most: Duration) -> Result<Option<Bytes>, Broken> {
        loop {
            match timeout(most, self.body.frame()).await {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Ok(Some(Err(error))) => return Err(Broken::Off(error.to_string())),
                Ok(None) => return Ok(None),
                Err(_) => return Err(Broken::Silent),
            }
        }
    }

    /// All of it: for an answer that says no.
    pub async fn whole(self, limits: &Limits) -> Result<Bytes, String> {
        whole(self.body, limits).await
    }
}

pub(crate) async fn whole(body: Incoming, limits: &Limits) -> Result<Bytes, String> {
    let body = timeout(limits.body, Limited::new(body, limits.largest).collect()).await;
    let body = body.map_err(|_| silence(limits.body))?;
    Ok(body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes())
}
