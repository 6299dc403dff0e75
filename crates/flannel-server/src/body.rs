//! Bodies of answers: a whole one, or a stream of events without end. Nothing is queued for a client
//! of a stream: when it has read what it was sent, it gets what has happened since.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use flannel_store::feed::{Cursor, Feed, Style};
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;

use crate::standing::{Lost, Standing};

/// A stream says something at least this often.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(crate) enum Body {
    Whole(Full<Bytes>),
    Events(Box<Events>),
}

pub(crate) struct Events {
    feed: Arc<Feed>,
    cursor: Option<Cursor>,
    changes: WatchStream<u64>,
    heartbeat: Pin<Box<Sleep>>,
    /// The stream ends when nothing has happened for so long; `None`: it does not end.
    patience: Option<Duration>,
    /// And when the client is no longer who it was.
    lost: Option<Lost>,
}

impl Events {
    pub(crate) fn new(
        feed: Arc<Feed>,
        cursor: Option<Cursor>,
        patience: Option<Duration>,
        standing: Standing,
    ) -> Self {
        let changes = WatchStream::new(feed.changes());
        let heartbeat = Box::pin(tokio::time::sleep(patience.unwrap_or(HEARTBEAT)));
        Self { feed, cursor, changes, heartbeat, patience, lost: standing.lost() }
    }

    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.lost.as_mut().is_some_and(|lost| lost.as_mut().poll(context).is_ready()) {
            return Poll::Ready(None);
        }
        // The changes first: what happens after this look wakes us.
        while let Poll::Ready(change) = Pin::new(&mut self.changes).poll_next(context) {
            if change.is_none() {
                return Poll::Ready(None);
            }
        }
        if let Some((line, cursor)) = self.feed.answer(self.cursor, Style::Stream) {
            self.cursor = Some(cursor);
            self.listen_on();
            return Poll::Ready(Some(line));
        }
        ready!(self.heartbeat.as_mut().poll(context));
        if self.patience.is_some() {
            return Poll::Ready(None);
        }
        self.listen_on();
        Poll::Ready(Some(Bytes::from_static(b"\n")))
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
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Events(events) => {
                events.poll_line(context).map(|line| line.map(|line| Ok(Frame::data(line))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Events(_) => SizeHint::new(),
        }
    }
}
