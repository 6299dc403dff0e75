//! Bodies of answers: a whole one, or a stream of events without end. Nothing is queued for a client
//! of a stream: when it has read what it was sent, it gets what has happened since. What is long goes out
//! piece by piece, so that the turn of a whole table ends when the table has been taken, not before.

use flannel_store::{LogPosition, Requests, StoreFindings, requests_json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::watch_log::{Style, WatchLog};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;

use crate::metrics::Watching;
use crate::standing::{Lost, Standing};
use crate::turns::{Turn, Turns, Waiting};

/// A stream says something at least this often.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// What is handed to the connection at once.
const PIECE: usize = 64 << 10;

pub(crate) enum Body {
    Whole(Rest),
    Events(Box<Events>),
    Page(flannel_page::Body),
}

/// What is still to be sent.
#[derive(Default)]
pub(crate) struct Rest {
    bytes: Bytes,
    turn: Option<Turn>,
}

impl Rest {
    pub(crate) fn new(bytes: Bytes, turn: Option<Turn>) -> Self {
        Self { bytes, turn }
    }

    fn next(&mut self) -> Option<Bytes> {
        let length = self.bytes.len().min(PIECE);
        let piece = self.bytes.split_to(length);
        if self.bytes.is_empty() {
            self.turn = None;
        }
        (!piece.is_empty()).then_some(piece)
    }
}

pub(crate) struct Events {
    watch_log: Arc<WatchLog>,
    style: Style,
    cursor: Option<LogPosition>,
    changes: WatchStream<u64>,
    /// What operators ask of nodes, for clients that are to hear it.
    requests: Option<WatchStream<Requests>>,
    /// Nodes that get no packets, likewise.
    findings: Option<WatchStream<StoreFindings>>,
    turns: Turns,
    waiting: Option<Waiting>,
    /// Of the line that was begun.
    rest: Rest,
    heartbeat: Pin<Box<Sleep>>,
    /// The stream ends when nothing has happened for so long; `None`: it does not end.
    patience: Option<Duration>,
    /// And when the client is no longer who it was.
    lost: Option<Lost>,
    _watching: Watching,
}

/// What a client wants to hear.
pub(crate) struct Subscription {
    pub(crate) style: Style,
    /// What operators ask of nodes, for clients that are to hear it.
    pub(crate) requests: Option<watch::Receiver<Requests>>,
    /// Nodes that get no packets, likewise.
    pub(crate) findings: Option<watch::Receiver<StoreFindings>>,
    pub(crate) cursor: Option<LogPosition>,
    /// How long the stream goes on when nothing happens; `None`: it does not end.
    pub(crate) patience: Option<Duration>,
}

impl Events {
    pub(crate) fn new(
        watch_log: Arc<WatchLog>,
        subscription: Subscription,
        standing: Standing,
        turns: Turns,
        watching: Watching,
    ) -> Self {
        let Subscription { style, requests, findings, cursor, patience } = subscription;
        let changes = WatchStream::new(watch_log.changes());
        let heartbeat = Box::pin(tokio::time::sleep(patience.unwrap_or(HEARTBEAT)));
        let (waiting, rest, lost) = (None, Rest::default(), standing.lost());
        Self {
            watch_log,
            style,
            cursor,
            changes,
            requests: requests.map(WatchStream::new),
            findings: findings.map(WatchStream::new),
            turns,
            waiting,
            rest,
            heartbeat,
            patience,
            lost,
            _watching: watching,
        }
    }

    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.lost.as_mut().is_some_and(|lost| lost.as_mut().poll(context).is_ready()) {
            return Poll::Ready(None);
        }
        if let Some(piece) = self.rest.next() {
            self.listen_on();
            return Poll::Ready(Some(piece));
        }
        if let Some(requests) = &mut self.requests
            && let Poll::Ready(Some(now)) = Pin::new(requests).poll_next(context)
        {
            self.listen_on();
            self.rest = Rest::new(Bytes::from(requests_json(&now)), None);
            return Poll::Ready(self.rest.next());
        }
        if let Some(findings) = &mut self.findings
            && let Poll::Ready(Some(now)) = Pin::new(findings).poll_next(context)
        {
            self.listen_on();
            self.rest = Rest::new(Bytes::from(now.to_json()), None);
            return Poll::Ready(self.rest.next());
        }
        // The changes first: what happens after this look wakes us.
        while let Poll::Ready(change) = Pin::new(&mut self.changes).poll_next(context) {
            if change.is_none() {
                return Poll::Ready(None);
            }
        }
        if let Poll::Ready(turn) = self.poll_turn(context)
            && let Some((line, cursor)) = self.watch_log.answer(self.cursor, self.style)
        {
            self.cursor = Some(cursor);
            self.listen_on();
            self.rest = Rest::new(line, turn);
            return Poll::Ready(self.rest.next());
        }
        ready!(self.heartbeat.as_mut().poll(context));
        if self.patience.is_some() {
            return Poll::Ready(None);
        }
        self.listen_on();
        Poll::Ready(Some(Bytes::from_static(b"\n")))
    }

    /// Ready when an answer may be given now; with a turn if it is a whole table.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Turn>> {
        if self.watch_log.continues(self.cursor) {
            self.waiting = None;
            return Poll::Ready(None);
        }
        let turns = &self.turns;
        let waiting = self.waiting.get_or_insert_with(|| turns.take());
        let turn = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(Some(turn))
    }

    fn listen_on(&mut self) {
        let pause = self.patience.unwrap_or(HEARTBEAT);
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
            Self::Whole(rest) => Poll::Ready(rest.next().map(|piece| Ok(Frame::data(piece)))),
            Self::Events(events) => {
                events.poll_line(context).map(|line| line.map(|line| Ok(Frame::data(line))))
            }
            Self::Page(page) => Pin::new(page).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(rest) => rest.bytes.is_empty(),
            Self::Events(_) => false,
            Self::Page(page) => page.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(rest) => SizeHint::with_exact(rest.bytes.len() as u64),
            Self::Events(_) => SizeHint::new(),
            Self::Page(page) => page.size_hint(),
        }
    }
}
