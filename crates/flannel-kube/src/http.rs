//! HTTP to the API server: one connection kept for requests, and connections of their own for watches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::access::{Access, Way};
use crate::kubeconfig::Token;
use crate::message::Encoding;
use crate::{connection_error, tls};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An API server that has just started may take that long, and one that is busy too.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const LARGEST_ANSWER: usize = 64 << 20;
/// A peer that vanished without a word is found out after half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
const AGENT: &str = concat!("flannel-rs/", env!("CARGO_PKG_VERSION"));

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
    pub(crate) body: Incoming,
    /// The stream lives as long as this does.
    pub(crate) connection: Connection,
}

#[derive(Debug)]
pub(crate) struct Client {
    access: Access,
    idle: Mutex<Option<Connection>>,
    /// Counts how often this node has moved.
    moved: watch::Sender<u64>,
}

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
    way: Way,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    pub(crate) fn new(access: Access) -> Self {
        Self { access, idle: Mutex::new(None), moved: watch::Sender::new(0) }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Connections made so far are dead.
    pub(crate) fn node_moved(&self) {
        *self.idle() = None;
        self.moved.send_modify(|times| *times += 1);
    }

    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Sends a request for which being carried out twice is the same as once.
    pub(crate) async fn request(&self, ask: Ask<'_>) -> Result<Answer, String> {
        let kept = self.idle().take();
        // The other side may have closed a kept connection at any moment: that is not a fault.
        if let Some(connection) = kept
            && let Ok(answer) = self.send(connection, ask).await
        {
            return Ok(answer);
        }
        let connection = self.connect().await?;
        self.send(connection, ask).await
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
        let mut connection = self.connect().await?;
        let ask = Ask { method: &Method::GET, path, accept, content: None };
        let response = connection.answer(ask).await?;
        if response.status().is_success() {
            let encoding = encoding(response.headers());
            return Ok(Ok(Stream { encoding, body: response.into_body(), connection }));
        }
        Ok(Err(read(response).await?))
    }

    async fn send(&self, mut connection: Connection, ask: Ask<'_>) -> Result<Answer, String> {
        let answer = read(connection.answer(ask).await?).await?;
        // Who we are is said with every request, unless it was said by a certificate.
        if answer.status != StatusCode::UNAUTHORIZED {
            *self.idle() = Some(connection);
        }
        Ok(answer)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let way = self.access.way()?;
        let server = &way.server;
        let tcp = reach(&server.host, server.port).await?;
        let _ = tcp.set_nodelay(true);
        watch_over(&tcp);
        if !server.tls {
            let peer = tcp.peer_addr().map_err(|error| error.to_string())?.ip();
            if !peer.to_canonical().is_loopback() && !matches!(way.token, Token::None) {
                return Err(
                    "a token is not sent to another machine without TLS: use https://".to_owned()
                );
            }
            return speak(way, tcp).await;
        }
        let connector = TlsConnector::from(Arc::new(tls::config(&way)?));
        let name = way.server_name.as_ref().unwrap_or(&server.host);
        let server_name = ServerName::try_from(name.clone())
            .map_err(|_| format!("{name:?} is not the name of a server"))?;
        let tls = timeout(CONNECT_TIMEOUT, connector.connect(server_name, tcp));
        let tls = tls.await.map_err(|_| silence(CONNECT_TIMEOUT))?;
        let tls = tls.map_err(|error| connection_error::explain(&error, name))?;
        speak(way, tls).await
    }

    fn idle(&self) -> MutexGuard<'_, Option<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    async fn answer(&mut self, ask: Ask<'_>) -> Result<Response<Incoming>, String> {
        let request = build(&self.way, ask)?;
        let response = timeout(REQUEST_TIMEOUT, self.sender.send_request(request)).await;
        let response = response.map_err(|_| silence(REQUEST_TIMEOUT))?;
        response.map_err(|error| connection_error::explain(&error, &self.way.server.host))
    }
}

/// One of a name's addresses that answers: several API servers may have one name.
async fn reach(host: &str, port: u16) -> Result<TcpStream, String> {
    let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((host, port))).await;
    let found =
        found.map_err(|_| format!("no answer to the question for the address of {host}"))?;
    let mut why = format!("{host} has no address");
    for address in found.map_err(|error| error.to_string())? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = silence(CONNECT_TIMEOUT),
        }
    }
    Err(why)
}

fn build(way: &Way, ask: Ask<'_>) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::builder()
        .method(ask.method)
        .uri(format!("{}{}", way.server.base, ask.path))
        .header(HOST, way.server.authority())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, ask.accept);
    if let Some(authorization) = way.authorization()? {
        let mut value = HeaderValue::try_from(authorization)
            .map_err(|_| "the token holds characters that cannot be sent".to_owned())?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let mut body = Bytes::new();
    if let Some((kind, content)) = ask.content {
        request = request.header(CONTENT_TYPE, kind);
        body = Bytes::copy_from_slice(content.as_bytes());
    }
    request.body(Full::new(body)).map_err(|error| error.to_string())
}

async fn speak<T>(way: Way, stream: T) -> Result<Connection, String>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| connection_error::explain(&error, &way.server.host))?;
    let task = tokio::spawn(connection).abort_handle();
    Ok(Connection { sender, task, way })
}

async fn read(response: Response<Incoming>) -> Result<Answer, String> {
    let (status, encoding) = (response.status(), encoding(response.headers()));
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|text| text.to_str().ok()?.parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect();
    let body = timeout(REQUEST_TIMEOUT, body).await.map_err(|_| silence(REQUEST_TIMEOUT))?;
    let body = body.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes();
    Ok(Answer { status, encoding, retry_after, body })
}

fn encoding(headers: &HeaderMap) -> Encoding {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Encoding::of(kind.unwrap_or_default())
}

/// A kernel that will not do this is no reason not to connect.
fn watch_over(tcp: &TcpStream) {
    let _ = sockopt::set_socket_keepalive(tcp, true);
    let _ = sockopt::set_tcp_keepidle(tcp, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(tcp, KEEPALIVE_PROBE);
    let _ = sockopt::set_tcp_keepcnt(tcp, KEEPALIVE_PROBES);
    // What was sent and never acknowledged counts too.
    let most = KEEPALIVE_IDLE + KEEPALIVE_PROBE * KEEPALIVE_PROBES;
    let _ = sockopt::set_tcp_user_timeout(tcp, u32::try_from(most.as_millis()).unwrap_or(0));
}

fn silence(waited: Duration) -> String {
    format!("silent for {} s", waited.as_secs())
}
