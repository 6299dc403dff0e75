//! The metrics of a node's daemon.

crate::metrics! {
    BUILD = Gauge "flannel_build_info" ["version"] "Always 1; the version of flanneld is its label";
    STARTED = Gauge "flannel_start_time_seconds" [] "When flanneld was started, in seconds since 1970";
    READY = Gauge "flannel_ready" ["network"] "Whether pods of this node reach those of others, as far as it can tell: 1 or 0, as in `/readyz`";
    PEERS = Gauge "flannel_peers" ["network", "state"] "Other nodes that are known, by what this node has done about them: `programmed`, `incomplete` (something that leads to them is missing), `unusable`, or `vanished` from the store's list and still sent to";
    PEERS_UNUSABLE = Gauge "flannel_peers_unusable" ["network", "reason"] "Known nodes to which nothing leads because their lease cannot be used here, by reason";
    PEERS_PROBED = Gauge "flannel_peers_probed" ["network", "result"] "Other nodes by the result of probing them through the overlay: `reached`, `unreached` (pods' packets do not pass), `impaired` (they pass, and something is worth knowing), `not-probed`, or `waiting` for their first turn; absent where probing is off";
    WANTED = Gauge "flannel_entries_wanted" ["network", "applier", "kind"] "Entries that are wanted of the kernel and of other appliers";
    PROGRAMMED = Gauge "flannel_entries_programmed" ["network", "applier", "kind"] "Entries that were last seen to be as wanted";
    MISSING = Gauge "flannel_entries_missing" ["network", "applier", "kind"] "Entries that are still to be written, or wait for their next repair because somebody keeps undoing them";
    REFUSED = Gauge "flannel_entries_refused" ["network", "applier", "kind", "reason"] "Entries that could not be written and are retried, by reason";
    CONTESTED = Gauge "flannel_entries_contested" ["network", "applier"] "Entries that several nodes want differently, such as the forwarding entry of a MAC that two of them announce";
    REPAIRED = Counter "flannel_entries_repaired_total" ["network", "applier", "kind"] "Entries that somebody else had removed or changed and that were repaired";
    HAZARDS = Gauge "flannel_hazards" ["network"] "Things that others do on this node which cut pods off although all entries are as wanted, such as forwarding switched off";
    RECONCILE = Histogram "flannel_reconcile_duration_seconds" ["network", "what"] "How long it took to make the kernel as wanted: after a `change` of what is wanted, or when `everything` was compared";
    STORE_TO_KERNEL = Histogram "flannel_store_to_kernel_duration_seconds" ["network"] "From hearing of changed leases to the kernel and others having been written";
    RESYNCS = Counter "flannel_resyncs_total" ["network"] "Comparisons of everything with what the kernel holds";
    OVERFLOWS = Counter "flannel_monitor_overflows_total" ["network"] "How often the kernel reported more changes than could be queued, so that everything was compared";
    STORE_UP = Gauge "flannel_store_up" ["network"] "Whether the store of leases answers: 1 or 0";
    STORE_CONTACT = Gauge "flannel_store_last_contact_timestamp_seconds" ["network"] "When the store last answered, in seconds since 1970";
    WATCH_RESTARTS = Counter "flannel_store_watch_restarts_total" ["network"] "How often the watch of the store had to start again";
    LEASE_END = Gauge "flannel_lease_end_timestamp_seconds" ["network"] "When this node's lease ends unless it is renewed, in seconds since 1970; absent for one that does not end";
    POOL = Gauge "flannel_pool_subnets" ["network", "family"] "Subnets that the network has to hand out";
    POOL_USED = Gauge "flannel_pool_subnets_used" ["network", "family"] "Subnets of the pool that are leased or reserved";
    POOL_FREE = Gauge "flannel_pool_subnets_free" ["network", "family"] "Subnets of the pool that are left";
    RULES_OK = Gauge "flannel_traffic_rules_ok" ["network"] "Whether the masquerade and forward rules are as wanted: 1 or 0; absent without such rules";
    RULES_REPAIRED = Counter "flannel_traffic_rules_repaired_total" ["network", "family"] "How often masquerade and forward rules that somebody else had changed were repaired";
    TUNNEL_PACKETS = Counter "flannel_tunnel_packets_total" ["network", "device", "direction"] "Packets that the tunnel in user space has carried";
    TUNNEL_BYTES = Counter "flannel_tunnel_bytes_total" ["network", "device", "direction"] "Bytes of those packets, without what the tunnel adds";
    TUNNEL_DROPPED = Counter "flannel_tunnel_dropped_packets_total" ["network", "device", "reason"] "Packets that the tunnel in user space has dropped, by reason";
}
