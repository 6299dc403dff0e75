//! Bodies of answers: complete bytes, or a stream of events without end. Nothing is queued for a client of a stream: when
//! it has read what it was sent, it gets what has happened since. Long bodies are sent in chunks, so that the permit of a
//! snapshot ends when the client has read it, not before.

use flannel_store::{LogPosition, Requests, StoreFindings, requests_json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::watch_log::{AnswerStyle, WatchLog};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;

use crate::metrics::WatcherCount;
use crate::revocation::{Revocation, RevocationFuture};
use crate::snapshot_permits::{PendingPermit, SnapshotPermit, SnapshotPermits};

/// Longest time in which a stream sends nothing.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Most bytes that are handed to the connection at once.
const CHUNK_BYTES: usize = 64 << 10;

pub(crate) enum Body {
    Complete(RemainingBytes),
    Events(Box<Events>),
    Page(flannel_page::Body),
}

/// Bytes that are still to be sent.
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

pub(crate) struct Events {
    watch_log: Arc<WatchLog>,
    style: AnswerStyle,
    cursor: Option<LogPosition>,
    changes: WatchStream<u64>,
    /// Requests of operators to nodes, for clients that want them.
    requests: Option<WatchStream<Requests>>,
    /// Nodes that get no packets, likewise.
    findings: Option<WatchStream<StoreFindings>>,
    permits: SnapshotPermits,
    pending: Option<PendingPermit>,
    /// Rest of the line that is being sent.
    rest: RemainingBytes,
    heartbeat: Pin<Box<Sleep>>,
    /// Time without events after which the stream ends; `None`: it does not end.
    idle_timeout: Option<Duration>,
    /// Ends the stream when the client has lost its rights.
    revoked: Option<RevocationFuture>,
    _watching: WatcherCount,
}

/// Selection of events that a client wants.
pub(crate) struct Subscription {
    pub(crate) style: AnswerStyle,
    /// Requests of operators to nodes, for clients that want them.
    pub(crate) requests: Option<watch::Receiver<Requests>>,
    /// Nodes that get no packets, likewise.
    pub(crate) findings: Option<watch::Receiver<StoreFindings>>,
    pub(crate) cursor: Option<LogPosition>,
    /// Time without events after which the stream ends; `None`: it does not end.
    pub(crate) idle_timeout: Option<Duration>,
}

impl Events {
    pub(crate) fn new(
        watch_log: Arc<WatchLog>,
        subscription: Subscription,
        revocation: Revocation,
        permits: SnapshotPermits,
        watching: WatcherCount,
    ) -> Self {
        let Subscription { style, requests, findings, cursor, idle_timeout } = subscription;
        let changes = WatchStream::new(watch_log.changes());
        let heartbeat = Box::pin(tokio::time::sleep(idle_timeout.unwrap_or(HEARTBEAT_INTERVAL)));
        let (pending, rest, revoked) = (None, RemainingBytes::default(), revocation.wait());
        Self {
            watch_log,
            style,
            cursor,
            changes,
            requests: requests.map(WatchStream::new),
            findings: findings.map(WatchStream::new),
            permits,
            pending,
            rest,
            heartbeat,
            idle_timeout,
            revoked,
            _watching: watching,
        }
    }

    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.revoked.as_mut().is_some_and(|revoked| revoked.as_mut().poll(context).is_ready()) {
            return Poll::Ready(None);
        }
        if let Some(piece) = self.rest.next() {
            self.reset_heartbeat();
            return Poll::Ready(Some(piece));
        }
        if let Some(requests) = &mut self.requests
            && let Poll::Ready(Some(now)) = Pin::new(requests).poll_next(context)
        {
            self.reset_heartbeat();
            self.rest = RemainingBytes::new(Bytes::from(requests_json(&now)), None);
            return Poll::Ready(self.rest.next());
        }
        if let Some(findings) = &mut self.findings
            && let Poll::Ready(Some(now)) = Pin::new(findings).poll_next(context)
        {
            self.reset_heartbeat();
            self.rest = RemainingBytes::new(Bytes::from(now.to_json()), None);
            return Poll::Ready(self.rest.next());
        }
        // Changes are polled first, so that what happens after this look wakes us.
        while let Poll::Ready(change) = Pin::new(&mut self.changes).poll_next(context) {
            if change.is_none() {
                return Poll::Ready(None);
            }
        }
        if let Poll::Ready(permit) = self.poll_permit(context)
            && let Some((line, cursor)) = self.watch_log.answer(self.cursor, self.style)
        {
            self.cursor = Some(cursor);
            self.reset_heartbeat();
            self.rest = RemainingBytes::new(line, permit);
            return Poll::Ready(self.rest.next());
        }
        ready!(self.heartbeat.as_mut().poll(context));
        if self.idle_timeout.is_some() {
            return Poll::Ready(None);
        }
        self.reset_heartbeat();
        Poll::Ready(Some(Bytes::from_static(b"\n")))
    }

    /// Ready when an answer may be given now; with a permit if it is a snapshot.
    fn poll_permit(&mut self, context: &mut Context<'_>) -> Poll<Option<SnapshotPermit>> {
        if self.watch_log.continues(self.cursor) {
            self.pending = None;
            return Poll::Ready(None);
        }
        let permits = &self.permits;
        let pending = self.pending.get_or_insert_with(|| permits.acquire());
        let permit = ready!(pending.as_mut().poll(context));
        self.pending = None;
        Poll::Ready(Some(permit))
    }

    fn reset_heartbeat(&mut self) {
        let pause = self.idle_timeout.unwrap_or(HEARTBEAT_INTERVAL);
        self.heartbeat.as_mut().reset(Instant::now() + pause);
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Complete(rest) => Poll::Ready(rest.next().map(|piece| Ok(Frame::data(piece)))),
            Self::Events(events) => {
                events.poll_line(context).map(|line| line.map(|line| Ok(Frame::data(line))))
            }
            Self::Page(page) => Pin::new(page).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Complete(rest) => rest.bytes.is_empty(),
            Self::Events(_) => false,
            Self::Page(page) => page.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Complete(rest) => SizeHint::with_exact(rest.bytes.len() as u64),
            Self::Events(_) => SizeHint::new(),
            Self::Page(page) => page.size_hint(),
        }
    }
}
