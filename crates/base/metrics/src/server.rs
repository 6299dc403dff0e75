//! The metrics of the lease server.

crate::metrics! {
    BUILD = Gauge "flannel_build_info" ["version"] "Always 1; the version of flanneld is its label";
    REQUESTS = Counter "flannel_server_requests_total" ["route", "method", "code"] "Requests that were answered, by what was asked for and the status of the answer";
    CONNECTIONS = Gauge "flannel_server_connections" [] "Connections that are open";
    WATCHERS = Gauge "flannel_server_watchers" [] "Clients that follow events, or wait for some";
    SYNC = Histogram "flannel_server_sync_duration_seconds" [] "How long it took to make a group of changes durable; absent where another store keeps the leases";
    LOG_BYTES = Gauge "flannel_server_log_bytes" [] "The length of the log of changes; absent where another store keeps the leases";
    SNAPSHOT_BYTES = Gauge "flannel_server_snapshot_bytes" [] "The length of the snapshot that the log goes on from; absent where another store keeps the leases";
    WRITABLE = Gauge "flannel_server_log_writable" [] "Whether the last write of the log succeeded: 1 or 0; absent where another store keeps the leases";
    LEASES = Gauge "flannel_server_leases" ["network"] "Leases and reservations that the server knows";
    POOL = Gauge "flannel_server_pool_subnets" ["network", "family"] "Subnets that the network has to hand out";
}
