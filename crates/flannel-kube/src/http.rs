//! HTTP to the API server: requests, and streams for watches.

use std::time::Duration;

use bytes::Bytes;
use flannel_https::{Limits, Upgraded, websocket};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::watch;

use crate::access::Access;
use crate::message::Encoding;

/// An API server that has just started may take that long, and one that is busy too.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    answer: REQUEST_TIMEOUT,
    body: REQUEST_TIMEOUT,
    largest: 64 << 20,
};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) accept: &'static str,
    /// What kind of content, and which.
    pub(crate) content: Option<(&'static str, &'a str)>,
}

/// An answer, whatever it says.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) encoding: Encoding,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

/// An answer that goes on.
pub(crate) struct Stream {
    pub(crate) encoding: Encoding,
    pub(crate) body: flannel_https::Stream,
}

#[derive(Debug)]
pub(crate) struct Client {
    access: Access,
    https: flannel_https::Client,
    /// Counts how often this node has moved.
    moved: watch::Sender<u64>,
}

impl Client {
    pub(crate) fn new(access: Access) -> Self {
        let https = flannel_https::Client::new(LIMITS);
        Self { access, https, moved: watch::Sender::new(0) }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Connections made so far are dead.
    pub(crate) fn node_moved(&self) {
        self.https.forget();
        self.moved.send_modify(|times| *times += 1);
    }

    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Sends a request for which being carried out twice is the same as once.
    pub(crate) async fn request(&self, ask: Ask<'_>) -> Result<Answer, String> {
        let answer = self.https.request(|| self.access.target(), build(ask)?).await?;
        Ok(read(answer))
    }

    /// Opens a stream; what says no to that is an answer.
    pub(crate) async fn stream(&self, path: &str) -> Result<Result<Stream, Answer>, String> {
        self.stream_as(path, crate::message::ACCEPT_STREAM).await
    }

    pub(crate) async fn stream_as(
        &self,
        path: &str,
        accept: &'static str,
    ) -> Result<Result<Stream, Answer>, String> {
        let request = build(Ask { method: &Method::GET, path, accept, content: None })?;
        let response = self.https.stream(|| self.access.target(), request).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(Ok(Stream { encoding: encoding(&head.headers), body }));
        }
        let body = body.whole(&LIMITS).await?;
        Ok(Err(read(Response::from_parts(head, body))))
    }
}

impl Client {
    /// Opens a WebSocket; what says no to that is an answer.
    pub(crate) async fn websocket(
        &self,
        path: &str,
        protocol: &str,
    ) -> Result<Result<Upgraded, Answer>, String> {
        let key = fastrand::u128(..).to_be_bytes();
        let request = websocket::ask(path, protocol, key)?;
        match self.https.upgrade(|| self.access.target(), request).await? {
            Ok(opened) if websocket::is_accepted(opened.headers(), protocol, key) => {
                Ok(Ok(opened.into_body()))
            }
            Ok(_) => Err(format!("what answers does not speak WebSocket with {protocol}")),
            Err(answer) => Ok(Err(read(answer))),
        }
    }
}

fn build(ask: Ask<'_>) -> Result<Request<Bytes>, String> {
    let mut request =
        Request::builder().method(ask.method).uri(ask.path).header(ACCEPT, ask.accept);
    let mut body = Bytes::new();
    if let Some((kind, content)) = ask.content {
        request = request.header(CONTENT_TYPE, kind);
        body = Bytes::copy_from_slice(content.as_bytes());
    }
    request.body(body).map_err(|error| error.to_string())
}

fn read(response: Response<Bytes>) -> Answer {
    let (status, encoding) = (response.status(), encoding(response.headers()));
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|text| text.to_str().ok()?.parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    Answer { status, encoding, retry_after, body: response.into_body() }
}

fn encoding(headers: &HeaderMap) -> Encoding {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Encoding::of(kind.unwrap_or_default())
}
