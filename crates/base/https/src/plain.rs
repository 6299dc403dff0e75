//! HTTP over a stream that is connected already, such as a Unix socket.

use bytes::Bytes;
use flannel_common::Task;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection, which ends when it is dropped: read the answer before.
#[derive(Debug)]
pub struct PlainConnection {
    sender: SendRequest<Full<Bytes>>,
    _task: Task,
}

impl PlainConnection {
    pub async fn open<S>(stream: S) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let task = Task::spawn("HTTP connection", async move {
            // Whoever sends a request gets its error.
            let _ = connection.with_upgrades().await;
        });
        Ok(Self { sender, _task: task })
    }

    pub fn is_over(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits until another request may be sent; an error if the other side has closed the connection.
    pub async fn ready(&mut self) -> hyper::Result<()> {
        self.sender.ready().await
    }

    pub async fn send(&mut self, request: Request<Bytes>) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request.map(Full::new)).await
    }
}
