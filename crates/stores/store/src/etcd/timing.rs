//! Timeouts of requests to etcd.

use std::time::Duration;

use flannel_common::Backoff;

/// Time for the TCP connection, and for the TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for one request at one endpoint.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most such times that a request takes with its retries at all endpoints.
pub(super) const MAX_TIMEOUTS: u32 = 3;
/// A listing is large. When all nodes list at once, giving up and asking again would only add to
/// what keeps etcd from answering, so each listing that fails gives the next one more time.
pub(super) const LIST_TIMEOUT_MAX: Duration = Duration::from_secs(80);

/// While a watch is open the connection is pinged this often, and given up when no answer comes.
/// etcd hangs up on clients that ping more often than every 5 s, or at all with nothing open.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// etcd reports progress of an idle watch every 10 minutes; a stream silent for longer may live on our side alone.
pub(super) const WATCH_SILENCE: Duration = Duration::from_secs(25 * 60);
/// Pauses between attempts to watch.
pub(super) const WATCH_RETRY: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
