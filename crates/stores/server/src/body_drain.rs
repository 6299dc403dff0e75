//! Reading the rest of a request's body when its answer is ready. The next request of HTTP/1.1 comes after the body, so a
//! short rest is read to its end; else the answer closes the connection.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// Longest wait for the rest of a body.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Body of a request while it is being answered.
pub(crate) struct SharedBody<B>(Arc<Mutex<B>>);

/// The same body afterwards.
pub(crate) struct BodyDrain<B>(SharedBody<B>);

pub(crate) fn share<B>(body: B) -> (SharedBody<B>, BodyDrain<B>) {
    let shared = Arc::new(Mutex::new(body));
    (SharedBody(shared.clone()), BodyDrain(SharedBody(shared)))
}

impl<B: HttpBody + Unpin> HttpBody for SharedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}

impl<B: HttpBody + Unpin> BodyDrain<B> {
    /// Reads at most `most` bytes; whether nothing is left, so that the connection can stay open.
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
        tokio::time::timeout(DRAIN_TIMEOUT, read).await.unwrap_or(false)
    }
}
