//! Client of one server: it keeps a connection for requests, and opens one for each stream.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::stream::{self, Stream};
use crate::target::Target;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time for a connection, and again for TLS.
    pub connect: Duration,
    pub answer: Duration,
    pub body: Duration,
    pub largest: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            body: Duration::from_secs(30),
            largest: 64 << 20,
        }
    }
}

/// A connection that was switched to another protocol.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

#[derive(Debug)]
pub struct Client {
    limits: Limits,
    idle: Mutex<Option<Connection>>,
}

impl Client {
    pub fn new(limits: Limits) -> Self {
        Self { limits, idle: Mutex::new(None) }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Sends an idempotent request for a path: after a lost answer it may have been carried out twice. `target` is
    /// called for a new connection. An answer is returned whatever its status.
    pub async fn request(
        &self,
        target: impl FnOnce() -> Result<Target, String>,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, String> {
        let kept = self.idle.lock().take().filter(|connection| !connection.plain.is_over());
        // The other side may have closed a kept connection at any moment: that is not a fault.
        if let Some(connection) = kept
            && let Ok(answer) = self.send(connection, request.clone()).await
        {
            return Ok(answer);
        }
        let connection = Connection::open(target()?, &self.limits).await?;
        self.send(connection, request).await
    }

    pub async fn stream(
        &self,
        target: impl FnOnce() -> Result<Target, String>,
        request: Request<Bytes>,
    ) -> Result<Response<Stream>, String> {
        let mut connection = Connection::open(target()?, &self.limits).await?;
        let response = connection.send(request, &self.limits).await?;
        Ok(response.map(|body| Stream::new(body, connection)))
    }

    /// Switches a connection to another protocol and returns it with the answer's head; a refusal is an answer.
    pub async fn upgrade(
        &self,
        target: impl FnOnce() -> Result<Target, String>,
        request: Request<Bytes>,
    ) -> Result<Result<Response<Upgraded>, Response<Bytes>>, String> {
        let mut connection = Connection::open(target()?, &self.limits).await?;
        let mut response = connection.send(request, &self.limits).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (head, body) = response.into_parts();
            let body = stream::whole(body, &self.limits).await?;
            return Ok(Err(Response::from_parts(head, body)));
        }
        let upgraded = tokio::time::timeout(self.limits.answer, hyper::upgrade::on(&mut response));
        let upgraded = upgraded.await.map_err(|_| silence(self.limits.answer))?;
        let upgraded = upgraded.map_err(|error| format!("the connection broke off: {error}"))?;
        Ok(Ok(response.map(|_| TokioIo::new(upgraded))))
    }

    pub fn forget(&self) {
        *self.idle.lock() = None;
    }

    async fn send(
        &self,
        mut connection: Connection,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, String> {
        let (head, body) = connection.send(request, &self.limits).await?.into_parts();
        let body = stream::whole(body, &self.limits).await?;
        // A certificate may have named us, once for the whole connection.
        if head.status != StatusCode::UNAUTHORIZED {
            *self.idle.lock() = Some(connection);
        }
        Ok(Response::from_parts(head, body))
    }
}

pub(crate) fn silence(waited: Duration) -> String {
    format!("silent for {} s", waited.as_secs())
}
