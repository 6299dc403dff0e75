//! HTTP to the API server: requests, and streams for watches.

use std::time::Duration;

use bytes::Bytes;
use flannel_https::{Limits, Upgraded, websocket};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::watch;

use crate::access::Access;
use crate::message::Encoding;

/// Time for a request, which a server that is starting or busy may need.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    answer: REQUEST_TIMEOUT,
    body: REQUEST_TIMEOUT,
    largest: 64 << 20,
};

/// Request to the API server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) accept: &'static str,
    /// Type of the content, and the content.
    pub(crate) content: Option<(&'static str, &'a str)>,
}

/// Answer of any status.
#[derive(Clone, Debug)]
pub(crate) struct ApiAnswer {
    pub(crate) status: StatusCode,
    pub(crate) encoding: Encoding,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

/// Answer that is a stream.
pub(crate) struct Stream {
    pub(crate) encoding: Encoding,
    pub(crate) body: flannel_https::Stream,
}

#[derive(Debug)]
pub(crate) struct Client {
    access: Access,
    https: flannel_https::Client,
    /// Number of times that this node has moved.
    moves: watch::Sender<u64>,
}

impl Client {
    pub(crate) fn new(access: Access) -> Self {
        let https = flannel_https::Client::new(LIMITS);
        Self { access, https, moves: watch::Sender::new(0) }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Connections made so far are dead.
    pub(crate) fn node_moved(&self) {
        self.https.forget();
        self.moves.send_modify(|times| *times += 1);
    }

    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Sends a request for which being carried out twice is the same as once.
    pub(crate) async fn request(&self, request: ApiRequest<'_>) -> Result<ApiAnswer, String> {
        let answer = self.https.request(|| self.access.target(), build(request)?).await?;
        Ok(read(answer))
    }

    /// Opens a stream; a refusal is an answer.
    pub(crate) async fn stream(
        &self,
        path: &str,
        accept: &'static str,
    ) -> Result<Result<Stream, ApiAnswer>, String> {
        let request = build(ApiRequest { method: &Method::GET, path, accept, content: None })?;
        let response = self.https.stream(|| self.access.target(), request).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(Ok(Stream { encoding: encoding(&head.headers), body }));
        }
        let body = body.whole(&LIMITS).await?;
        Ok(Err(read(Response::from_parts(head, body))))
    }

    /// Opens a WebSocket; a refusal is an answer.
    pub(crate) async fn websocket(
        &self,
        path: &str,
        protocol: &str,
    ) -> Result<Result<Upgraded, ApiAnswer>, String> {
        let key = fastrand::u128(..).to_be_bytes();
        let request = websocket::ask(path, protocol, key)?;
        match self.https.upgrade(|| self.access.target(), request).await? {
            Ok(opened) if websocket::is_accepted(opened.headers(), protocol, key) => {
                Ok(Ok(opened.into_body()))
            }
            Ok(_) => Err(format!("the server does not speak WebSocket with {protocol}")),
            Err(answer) => Ok(Err(read(answer))),
        }
    }
}

fn build(from: ApiRequest<'_>) -> Result<Request<Bytes>, String> {
    let mut request =
        Request::builder().method(from.method).uri(from.path).header(ACCEPT, from.accept);
    let mut body = Bytes::new();
    if let Some((kind, content)) = from.content {
        request = request.header(CONTENT_TYPE, kind);
        body = Bytes::copy_from_slice(content.as_bytes());
    }
    request.body(body).map_err(|error| error.to_string())
}

fn read(response: Response<Bytes>) -> ApiAnswer {
    let (status, encoding) = (response.status(), encoding(response.headers()));
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|text| text.to_str().ok()?.parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    ApiAnswer { status, encoding, retry_after, body: response.into_body() }
}

fn encoding(headers: &HeaderMap) -> Encoding {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Encoding::of(kind.unwrap_or_default())
}
