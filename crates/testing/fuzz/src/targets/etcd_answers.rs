//! What an etcd answers a node that joins, and says on the stream that the node then watches. The input: the answers,
//! each after a letter that says to which kind of call it belongs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use flannel_lease::{Claimant, LeaseAttrs, NetworkConfig};
use flannel_store::{Claim, EtcdOptions, EtcdStore, NodeStore as _, Recalled, Store as _};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::parts;

const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// A call that is not answered by then has been given up; a store tries again for far longer.
const JOIN_TIMEOUT: Duration = Duration::from_millis(60);
const WATCH_TIMEOUT: Duration = Duration::from_millis(15);
/// `InvalidArgument`: a client does not try such a call again.
const REFUSED: HeaderValue = HeaderValue::from_static("3");
const DONE: HeaderValue = HeaderValue::from_static("0");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

type Answers = Arc<Mutex<VecDeque<(u8, Bytes)>>>;
type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) fn run(bytes: &[u8]) {
    let answers = parts(bytes).into_iter().map(|(kind, part)| (kind, Bytes::copy_from_slice(part)));
    let answers = Arc::new(Mutex::new(answers.collect()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(serve(listener, answers));
        let options = EtcdOptions { endpoints: vec![endpoint], ..EtcdOptions::default() };
        let store = EtcdStore::new(&options, None, 1).expect("the options are right");
        let recalled = timeout(JOIN_TIMEOUT, recall(&store)).await;
        let Ok(Some(recalled)) = recalled else { return };
        let cursor = recalled.snapshot.cursor.clone();
        let mut events = store.watch(cursor);
        let _ = timeout(JOIN_TIMEOUT, acquire(recalled)).await;
        while let Ok(Some(_)) = timeout(WATCH_TIMEOUT, events.recv()).await {}
    });
}

async fn recall(store: &EtcdStore) -> Option<Recalled> {
    let _ = store.config().await;
    let config = NetworkConfig::parse(CONFIG).expect("a config");
    store.recall(&config, &Claimant::new(&attrs(), None)).await.ok()
}

/// What a node gets is a subnet of its network, and nobody else's in the list it goes by.
async fn acquire(recalled: Recalled) {
    let config = NetworkConfig::parse(CONFIG).expect("a config");
    let others = recalled.snapshot.leases.iter().map(|stored| &stored.lease);
    let others: Vec<_> = others
        .filter(|lease| lease.attrs.public_ip != attrs().public_ip)
        .map(|lease| lease.subnet)
        .collect();
    if let Ok(acquired) = recalled.try_acquire(&config, &Claim::new(attrs(), None)).await {
        let subnet = acquired.held.lease.subnet;
        assert!(config.accepts(&subnet), "{subnet} is not of the network");
        assert!(!others.contains(&subnet), "{subnet} is another's");
    }
}

fn attrs() -> LeaseAttrs {
    LeaseAttrs {
        public_ip: Some([192, 0, 2, 1].into()),
        backend_type: "vxlan".into(),
        ..LeaseAttrs::default()
    }
}

/// An etcd that says what it is told to say, and then refuses.
async fn serve(listener: TcpListener, answers: Answers) {
    while let Ok((stream, _)) = listener.accept().await {
        let answers = answers.clone();
        let answer = service_fn(move |request| respond(request, answers.clone()));
        let connection = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(connection);
    }
}

async fn respond(
    request: Request<Incoming>,
    answers: Answers,
) -> Result<Response<Body>, Infallible> {
    let kind = match request.uri().path().rsplit('/').next() {
        Some("Status") => b's',
        Some("Range") => b'r',
        Some("Txn") => b't',
        Some("LeaseGrant") => b'g',
        Some("Watch") => b'w',
        _ => b'o',
    };
    let is_watch = kind == b'w';
    if !is_watch {
        let _ = request.into_body().collect().await;
    }
    let messages = take(&answers, kind, is_watch);
    let status = if messages.is_empty() { REFUSED } else { DONE };
    let frames = stream::iter(messages.into_iter().map(|message| Frame::data(framed(&message))));
    let end = Frame::trailers(HeaderMap::from_iter([(GRPC_STATUS, status)]));
    let end = stream::once(async move {
        if is_watch {
            // A watch goes on.
            std::future::pending::<()>().await;
        }
        end
    });
    let body = StreamBody::new(frames.chain(end).map(Ok)).boxed_unsync();
    let response = Response::builder().header("content-type", "application/grpc").body(body);
    Ok(response.expect("a response"))
}



/// The next answer to a call of this kind; for a watch, all there are.
fn take(answers: &Answers, kind: u8, all: bool) -> Vec<Bytes> {
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    let mut taken = Vec::new();
    while let Some(at) = answers.iter().position(|answer| answer.0 == kind) {
        taken.extend(answers.remove(at).map(|answer| answer.1));
        if !all {
            break;
        }
    }
    taken
}

/// A message of gRPC: not compressed, and how long it is.
fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("a short message"));
    frame.put_slice(message);
    frame.freeze()
}
