//! What is left of a request's body when its answer is ready. HTTP/1.1 goes on after the body, so it is
//! read to its end while it is short; else the answer says that the connection ends with it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// Nobody is waited for longer only to be told no.
const PATIENCE: Duration = Duration::from_secs(1);

/// A body that is lent to whoever answers.
pub(crate) struct Lent<B>(Arc<Mutex<B>>);

/// The same, for afterwards.
pub(crate) struct Leftover<B>(Lent<B>);

pub(crate) fn lend<B>(body: B) -> (Lent<B>, Leftover<B>) {
    let shared = Arc::new(Mutex::new(body));
    (Lent(shared.clone()), Leftover(Lent(shared)))
}

impl<B> Lent<B> {
    fn body(&self) -> MutexGuard<'_, B> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: HttpBody + Unpin> HttpBody for Lent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

impl<B: HttpBody + Unpin> Leftover<B> {
    /// Whether nothing is left now, so that the connection can go on. `most` bytes are read for that.
    pub(crate) async fn finish(mut self, most: usize) -> bool {
        let mut left = most as u64;
        let read = async {
            while !self.0.is_end_stream() {
                if self.0.size_hint().lower() > left {
                    return false;
                }
                match self.0.frame().await {
                    None => return true,
                    Some(Err(_)) => return false,
                    Some(Ok(frame)) => {
                        let length = frame.data_ref().map_or(0, bytes::Buf::remaining);
                        left = left.saturating_sub(length as u64);
                    }
                }
                if left == 0 {
                    return self.0.is_end_stream();
                }
            }
            true
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
    }
}
