//! Reading the rest of a request's body when its answer is ready. The next request of HTTP/1.1 comes after the body, so a
//! short rest is read to its end; else the answer closes the connection.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Body;

const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads at most `most` bytes; whether nothing is left, so that the connection can stay open.
pub(crate) async fn drain(mut body: impl Body + Unpin, most: usize) -> bool {
    let mut left = most as u64;
    let read = async {
        while !body.is_end_stream() {
            if body.size_hint().lower() > left {
                return false;
            }
            match body.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, bytes::Buf::remaining);
                    left = left.saturating_sub(length as u64);
                }
            }
            if left == 0 {
                return body.is_end_stream();
            }
        }
        true
    };
    tokio::time::timeout(DRAIN_TIMEOUT, read).await.unwrap_or(false)
}
