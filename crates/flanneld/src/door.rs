//! The one door to what this daemon knows: its state, as [`flannel_state`] describes it, read-only, over HTTP
//! on a Unix socket that only root may use. Every tool is a reader of it.
//!
//! It costs nothing while nobody asks. The daemons of the networks are asked in small pieces, and long answers
//! are sent as they are made, so that neither ten thousand peers nor a slow reader keep a daemon from its work.

use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flannel_common::Backoff;
use flannel_lease::Subnet;
use flannel_state::{DaemonState, Moment, NetworkState, PeerState, SCHEMA, SOCKET_NAME};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::history::History;
use crate::readiness::{Reading, Readings};

/// What the daemon of a network is asked.
pub enum Question {
    State(oneshot::Sender<NetworkState>),
    /// A page of peers: those after this one, or the first.
    Peers(Option<Subnet>, oneshot::Sender<Vec<(Subnet, PeerState)>>),
}

/// Readers at once; more wait.
const READERS: usize = 32;
/// A daemon that waits for its store answers when that is over; who asks is told what is known without it.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Pieces of an answer that wait for a slow reader.
const PIECES: usize = 4;

type Body = BoxBody<Bytes, Infallible>;

/// Beside the subnet file: where the daemon keeps what lives as long as the machine is up.
pub fn socket(subnet_file: &Path) -> PathBuf {
    subnet_file.with_file_name(SOCKET_NAME)
}

#[derive(Clone)]
pub struct Door(Arc<Known>);

struct Known {
    readings: Readings,
    history: History,
    started: Moment,
}

impl Door {
    pub fn new(readings: Readings, history: History) -> Self {
        let started = jiff::Timestamp::now().to_string();
        Self(Arc::new(Known { readings, history, started }))
    }

    /// Answers until it is dropped. What is wrong with the socket is no reason for a network to fail.
    pub async fn serve(self, socket: &Path) -> Infallible {
        let mut tries = RETRY.tries(fastrand::Rng::new());
        let listener = loop {
            match listen(socket) {
                Ok(listener) => break listener,
                Err(error) => {
                    let pause = tries.pause();
                    tracing::warn!(
                        "Cannot listen on {}: {error}; `flannelctl status` has nobody to ask; next try \
                         in {pause:.0?}",
                        socket.display()
                    );
                    tokio::time::sleep(pause).await;
                }
            }
        };
        let places = Arc::new(Semaphore::new(READERS));
        loop {
            let place = places.clone().acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let door = self.clone();
                    tokio::spawn(async move {
                        door.talk(stream).await;
                        drop(place);
                    });
                }
                // Out of descriptors or memory: that passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// One request, one answer. What goes wrong on the way is the reader's business.
    async fn talk(&self, stream: UnixStream) {
        let answer = service_fn(|request: Request<Incoming>| async move {
            Ok::<_, Infallible>(self.respond(&request).await)
        });
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer)
            .await;
    }

    async fn respond(&self, request: &Request<Incoming>) -> Response<Body> {
        let follow = request.uri().query().is_some_and(|query| query == "follow=1");
        match (request.method().as_str(), request.uri().path()) {
            ("GET", "/v1/state") => {
                let state = serde_json::to_vec(&self.state().await).unwrap_or_default();
                response(StatusCode::OK, "application/json", whole(state))
            }
            ("GET", "/v1/peers") => lines(|send| self.clone().send_peers(send)),
            ("GET", "/v1/events") => lines(|send| self.clone().send_events(follow, send)),
            ("GET", _) => {
                let text = "Ask for /v1/state, /v1/peers or /v1/events\n";
                response(StatusCode::NOT_FOUND, "text/plain", whole(text))
            }
            _ => {
                let text = "Nothing can be changed here: GET alone is answered\n";
                response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", whole(text))
            }
        }
    }

    async fn state(&self) -> DaemonState {
        let mut networks = Vec::new();
        for reading in self.0.readings.of_each_network() {
            networks.push(network_state(reading).await);
        }
        DaemonState {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            started: self.0.started.clone(),
            now: jiff::Timestamp::now().to_string(),
            networks,
        }
    }

    async fn send_peers(self, send: mpsc::Sender<Bytes>) {
        for reading in self.0.readings.of_each_network() {
            let mut after = None;
            loop {
                let page = ask(&reading, |answer| Question::Peers(after, answer)).await;
                let Some(page) = page.filter(|page| !page.is_empty()) else { break };
                after = page.last().map(|(subnet, _)| *subnet);
                let mut text = Vec::new();
                page.iter().for_each(|(_, peer)| line(&mut text, peer));
                if send.send(text.into()).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn send_events(self, follow: bool, send: mpsc::Sender<Bytes>) {
        let mut next = self.0.history.next_number();
        let mut from = 0;
        loop {
            let until = *next.borrow_and_update();
            let mut text = Vec::new();
            for event in self.0.history.since(from) {
                line(&mut text, &event);
            }
            from = until;
            if !text.is_empty() && send.send(text.into()).await.is_err() {
                return;
            }
            if !follow {
                return;
            }
            tokio::select! {
                changed = next.changed() => if changed.is_err() { return },
                () = send.closed() => return,
            }
        }
    }
}

/// As it says itself, or else as it was last said to be.
async fn network_state(reading: Reading) -> NetworkState {
    if let Some(state) = ask(&reading, Question::State).await {
        return state;
    }
    let (verdict, why) = reading.readiness.verdict();
    NetworkState { verdict, why, ..NetworkState::starting(reading.network.as_str()) }
}

async fn ask<T>(
    reading: &Reading,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let asked = async {
        reading.ask.as_ref()?.send(question(answer)).await.ok()?;
        answered.await.ok()
    };
    tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
}

fn line(text: &mut Vec<u8>, value: &impl Serialize) {
    if serde_json::to_writer(&mut *text, value).is_ok() {
        text.push(b'\n');
    }
}

/// An answer of lines, each sent as it is made.
fn lines<F>(make: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (send, pieces) = mpsc::channel(PIECES);
    // It ends when it has said all, or when nobody listens any more.
    tokio::spawn(make(send));
    let pieces = ReceiverStream::new(pieces).map(|piece| Ok(Frame::data(piece)));
    response(StatusCode::OK, "application/x-ndjson", StreamBody::new(pieces).boxed())
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The socket is made where nobody else can reach it and moved to its place when it is closed to all but its
/// owner, so that there is no moment in which others could connect. It takes the place of a former daemon's.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    let private = directory.join(format!(".{SOCKET_NAME}.{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&private);
    std::fs::create_dir(&private)?;
    let listener = (|| {
        std::fs::set_permissions(&private, Permissions::from_mode(0o700))?;
        let made = private.join("s");
        let listener = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        std::fs::rename(&made, socket)?;
        Ok(listener)
    })();
    let _ = std::fs::remove_dir_all(&private);
    listener
}
