//! HTTP to whichever server answers: one connection kept for requests, moved to the next server when
//! it fails, and connections of their own for streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::options::{Endpoint, RemoteOptions, TELLING};
use super::{connection_error, tls, token};
use crate::{StoreError, wire};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A whole table is large, and everybody may ask for it at once.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const LARGEST_ANSWER: usize = 256 << 20;
const TRIES: usize = 2;

/// Nobody answered; why, and at which server.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) endpoint: String,
    pub(super) reason: String,
}

/// An answer, whatever it says.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) endpoint: String,
    pub(super) status: StatusCode,
    pub(super) body: String,
    /// The server's time, by which leases end there.
    pub(super) time: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Client {
    options: RemoteOptions,
    endpoints: Vec<Endpoint>,
    state: Mutex<State>,
    /// Counts how often this node has moved.
    moved: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    current: usize,
    idle: Option<Connection>,
}

/// Ends when dropped.
#[derive(Debug)]
pub(super) struct Connection {
    endpoint: usize,
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The answer to a request for a stream.
pub(super) struct Stream {
    pub(super) endpoint: String,
    pub(super) response: Response<Incoming>,
    /// The stream lives as long as this does.
    pub(super) connection: Connection,
}

impl Client {
    /// Begins with a random server, so that the nodes spread over them.
    pub(super) fn new(options: RemoteOptions, mut rng: fastrand::Rng) -> Result<Self, StoreError> {
        let endpoints = options.endpoints()?;
        let current = rng.usize(..endpoints.len());
        Ok(Self {
            options,
            endpoints,
            state: Mutex::new(State { current, idle: None }),
            moved: watch::Sender::new(0),
        })
    }

    /// Sends one request, to each server in turn until one answers. After a lost answer it may have
    /// been carried out twice, so it must be one for which that is the same as once.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Answer, Fault> {
        let mut tries = self.endpoints.len().max(TRIES);
        loop {
            tries -= 1;
            match self.try_once(&method, path, body.clone()).await {
                // It is there, but cannot do it; another one may.
                Ok(answer) if answer.status == StatusCode::SERVICE_UNAVAILABLE && tries > 0 => {
                    self.leave(&answer.endpoint);
                }
                Err(fault) if tries > 0 => self.leave(&fault.endpoint),
                done => return done,
            }
            if self.endpoints.len() == 1 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(20..100))).await;
            }
        }
    }

    /// Opens a stream at the current server.
    pub(super) async fn stream(&self, path: &str) -> Result<Stream, Fault> {
        let index = self.state().current;
        let endpoint = self.endpoints[index].name();
        let fault = |reason: String| Fault { endpoint: endpoint.clone(), reason };
        let opened = async {
            let mut connection = self.connect(index).await?;
            let request = self.build(index, &Method::GET, path, String::new())?;
            let response = timeout(REQUEST_TIMEOUT, connection.sender.send_request(request)).await;
            let response = response.map_err(|_| silence(REQUEST_TIMEOUT))?;
            Ok((connection, response.map_err(|error| self.explain(index, &error))?))
        };
        match opened.await {
            Ok((connection, response)) => {
                Ok(Stream { endpoint: endpoint.clone(), response, connection })
            }
            Err(reason) => {
                self.leave(&endpoint);
                Err(fault(reason))
            }
        }
    }

    /// Moves on to the next server, unless somebody has done so.
    pub(super) fn leave(&self, endpoint: &str) {
        let mut state = self.state();
        if self.endpoints[state.current].name() == endpoint {
            state.current = (state.current + 1) % self.endpoints.len();
            state.idle = None;
        }
    }

    /// Connections made so far are dead.
    pub(super) fn node_moved(&self) {
        self.state().idle = None;
        self.moved.send_modify(|times| *times += 1);
    }

    pub(super) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    pub(super) fn endpoint(&self) -> String {
        self.endpoints[self.state().current].name()
    }

    async fn try_once(&self, method: &Method, path: &str, body: String) -> Result<Answer, Fault> {
        let (index, idle) = {
            let mut state = self.state();
            (state.current, state.idle.take())
        };
        let endpoint = self.endpoints[index].name();
        let fault = |reason| Fault { endpoint: endpoint.clone(), reason };
        // A kept connection may have been closed by the other side at any moment: that is no fault.
        if let Some(connection) = idle.filter(|kept| kept.endpoint == index)
            && let Ok(answer) = self.send(connection, method, path, body.clone()).await
        {
            return Ok(answer);
        }
        let connection = self.connect(index).await.map_err(fault)?;
        self.send(connection, method, path, body).await.map_err(fault)
    }

    async fn send(
        &self,
        mut connection: Connection,
        method: &Method,
        path: &str,
        body: String,
    ) -> Result<Answer, String> {
        let request = self.build(connection.endpoint, method, path, body)?;
        let response = timeout(REQUEST_TIMEOUT, connection.sender.send_request(request)).await;
        let response = response.map_err(|_| silence(REQUEST_TIMEOUT))?;
        let response = response.map_err(|error| self.explain(connection.endpoint, &error))?;
        let status = response.status();
        let time =
            response.headers().get(wire::TIME).and_then(|text| text.to_str().ok()?.parse().ok());
        let body =
            timeout(BODY_TIMEOUT, Limited::new(response.into_body(), LARGEST_ANSWER).collect());
        let body = body.await.map_err(|_| silence(BODY_TIMEOUT))?;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        let body =
            String::from_utf8(body.into()).map_err(|_| "the answer is not text".to_owned())?;
        let endpoint = self.endpoints[connection.endpoint].name();
        self.state().idle = Some(connection);
        Ok(Answer { endpoint, status, body, time })
    }

    fn build(
        &self,
        endpoint: usize,
        method: &Method,
        path: &str,
        body: String,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.endpoints[endpoint].authority())
            .header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json; charset=utf-8");
        }
        if let Some(token) = self.token()? {
            let mut value = http::HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| "the token holds characters that cannot be sent".to_owned())?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())
    }

    fn token(&self) -> Result<Option<String>, String> {
        match (&self.options.token, &self.options.token_file) {
            (Some(token), _) => Ok(Some(token.reveal().trim().to_owned())),
            (None, Some(file)) => token::read(file).map(Some),
            (None, None) => Ok(None),
        }
    }

    async fn connect(&self, index: usize) -> Result<Connection, String> {
        let endpoint = &self.endpoints[index];
        let tcp = timeout(CONNECT_TIMEOUT, TcpStream::connect((&*endpoint.host, endpoint.port)));
        let tcp = tcp.await.map_err(|_| silence(CONNECT_TIMEOUT))?;
        let tcp = tcp.map_err(|error| error.to_string())?;
        let _ = tcp.set_nodelay(true);
        if self.options.would_tell(endpoint) {
            let peer = tcp.peer_addr().map_err(|error| error.to_string())?.ip();
            if !peer.to_canonical().is_loopback() {
                return Err(format!("{} is {peer}: {TELLING}", endpoint.host));
            }
        }
        if !endpoint.tls {
            return self.speak(index, tcp).await;
        }
        let token = self.token()?;
        let connector = TlsConnector::from(Arc::new(tls::config(&self.options, token.as_deref())?));
        let name = ServerName::try_from(endpoint.host.clone())
            .map_err(|_| format!("{:?} is not the name of a server", endpoint.host))?;
        let tls = timeout(CONNECT_TIMEOUT, connector.connect(name, tcp));
        let tls = tls.await.map_err(|_| silence(CONNECT_TIMEOUT))?;
        self.speak(index, tls.map_err(|error| self.explain(index, &error))?).await
    }

    async fn speak<T>(&self, endpoint: usize, stream: T) -> Result<Connection, String>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.explain(endpoint, &error))?;
        let task = tokio::spawn(connection).abort_handle();
        Ok(Connection { endpoint, sender, task })
    }

    fn explain(&self, endpoint: usize, error: &(dyn std::error::Error + 'static)) -> String {
        connection_error::explain(error, &self.endpoints[endpoint].host)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn silence(waited: Duration) -> String {
    format!("silent for {} s", waited.as_secs())
}
