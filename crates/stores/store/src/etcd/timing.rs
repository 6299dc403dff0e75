//! Timeouts of requests to etcd.

use std::time::Duration;

use flannel_common::Backoff;

/// Time for the TCP connection, and for the TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for one request at one endpoint.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most such times that a request takes with its retries at all endpoints.
pub(super) const MAX_TIMEOUTS: u32 = 3;
/// A listing is large. When all nodes list at once, retries would keep etcd from answering: each gets more time.
pub(super) const LIST_TIMEOUT_MAX: Duration = Duration::from_secs(80);

/// Interval of pings while a watch is open. etcd hangs up on more than one in 5 s, or with nothing open.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// etcd reports progress of an idle watch every 10 minutes; a stream silent for longer may live on our side alone.
pub(super) const WATCH_SILENCE: Duration = Duration::from_secs(25 * 60);
/// Pauses between attempts to watch.
pub(super) const WATCH_RETRY: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
