//! Bodies of answers: complete bytes, or a stream of events without end. Nothing is queued for a client of a stream: when
//! it has read what it was sent, it gets what has happened since. Long bodies are sent in chunks, so that the permit of a
//! snapshot ends when the client has read it, not before.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flannel_common::run_if_any;
use flannel_store::{LogPosition, Requests, StoreFindings, requests_json};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;

use crate::metrics::WatcherCount;
use crate::revocation::Revocation;
use crate::snapshot_permits::{PendingPermit, SnapshotPermit, SnapshotPermits};
use crate::watch_log::{AnswerStyle, WatchLog};

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Most bytes that are handed to the connection at once.
const CHUNK_BYTES: usize = 64 << 10;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Default)]
pub(crate) struct RemainingBytes {
    bytes: Bytes,
    permit: Option<SnapshotPermit>,
}

impl RemainingBytes {
    pub(crate) fn new(bytes: Bytes, permit: Option<SnapshotPermit>) -> Self {
        Self { bytes, permit }
    }

    fn next(&mut self) -> Option<Bytes> {
        let length = self.bytes.len().min(CHUNK_BYTES);
        let piece = self.bytes.split_to(length);
        if self.bytes.is_empty() {
            self.permit = None;
        }
        (!piece.is_empty()).then_some(piece)
    }
}

impl HttpBody for RemainingBytes {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.get_mut().next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

pub(crate) struct Events {
    pub(crate) watch_log: Arc<WatchLog>,
    pub(crate) style: AnswerStyle,
    /// Requests of operators to nodes, for clients that want them.
    pub(crate) requests: Option<watch::Receiver<Requests>>,
    /// Nodes that get no packets, likewise.
    pub(crate) findings: Option<watch::Receiver<StoreFindings>>,
    pub(crate) cursor: Option<LogPosition>,
    /// Time without events after which the stream ends; `None`: it does not end.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) permits: SnapshotPermits,
    /// Ends the stream when the client has lost its rights.
    pub(crate) revoked: Revocation,
    pub(crate) _watching: WatcherCount,
}

impl Events {
    pub(crate) fn into_body(mut self) -> Body {
        let changes = self.watch_log.changes();
        self.requests.iter_mut().for_each(watch::Receiver::mark_changed);
        self.findings.iter_mut().for_each(watch::Receiver::mark_changed);
        let lines = Lines { events: self, changes, pending: None, rest: RemainingBytes::default() };
        let pieces = stream::unfold(lines, async |mut lines| {
            let piece = lines.next().await?;
            Some((Ok(Frame::data(piece)), lines))
        });
        BodyExt::boxed_unsync(StreamBody::new(pieces))
    }
}

struct Lines {
    events: Events,
    changes: watch::Receiver<u64>,
    pending: Option<PendingPermit>,
    rest: RemainingBytes,
}

impl Lines {
    /// The next piece of a line, or an empty line when nothing has happened for long. `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let Self { events, changes, pending, rest } = self;
        let silence = events.idle_timeout.unwrap_or(HEARTBEAT_INTERVAL);
        let news = async {
            loop {
                // Before the look, so that what happens after it wakes us.
                changes.mark_unchanged();
                let permit = if events.watch_log.continues(events.cursor) {
                    None
                } else {
                    Some(pending.get_or_insert_with(|| events.permits.acquire()).await)
                };
                *pending = None;
                if let Some((line, cursor)) = events.watch_log.answer(events.cursor, events.style) {
                    return Some((line, cursor, permit));
                }
                changes.changed().await.ok()?;
            }
        };
        *rest = tokio::select! {
            biased;
            () = &mut events.revoked => return None,
            Some(piece) = std::future::ready(rest.next()) => return Some(piece),
            Some(now) = changed(&mut events.requests) => {
                RemainingBytes::new(requests_json(&now).into(), None)
            }
            Some(now) = changed(&mut events.findings) => {
                RemainingBytes::new(now.to_json().into(), None)
            }
            news = news => {
                let (line, cursor, permit) = news?;
                events.cursor = Some(cursor);
                RemainingBytes::new(line, permit)
            }
            () = tokio::time::sleep(silence) => {
                return events.idle_timeout.is_none().then(|| Bytes::from_static(b"\n"));
            }
        };
        rest.next()
    }
}

/// Waits for the next value; without a receiver for ever. `None` when there will be no other.
async fn changed<T: Clone>(receiver: &mut Option<watch::Receiver<T>>) -> Option<T> {
    run_if_any(receiver.as_mut().map(async |receiver| {
        receiver.changed().await.ok()?;
        Some(receiver.borrow_and_update().clone())
    }))
    .await
}
