//! Which crate may depend on which: the folders below `crates` are layers, and these are the rules between them.
//! `tests/layers.rs` holds the workspace to them, and docs/architecture.md to the same picture.

/// Crates of a layer may use crates of these layers.
pub const LAYERS: &[(&str, &[&str])] = &[
    ("base", &["base"]),
    ("core", &["core", "base"]),
    ("stores", &["stores", "core", "base"]),
    ("appliers", &["core", "base"]),
    ("tools", &["core", "base"]),
    ("programs", &["tools", "appliers", "stores", "core", "base"]),
    ("testing", &["testing", "programs", "tools", "appliers", "stores", "core", "base"]),
];

/// What the layers allow and the picture does not, each with its reason.
pub const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("appliers", "flannel-lease", "an applier is told entries, and not whose they are"),
    ("appliers", "flannel-backend", "backends make wishes; appliers do not ask why"),
    ("stores", "flannel-entries", "a store keeps leases, whatever backends make of them"),
    ("stores", "flannel-wanted", "a store keeps leases, whatever backends make of them"),
];

/// Edges that no layer allows, each with its reason.
pub const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "flannel-trace",
        "flannel-kernel",
        "a walk reads the kernel, with `look`, which changes nothing",
    ),
    (
        "flannel-connectivity",
        "flannel-kernel",
        "a test pod's devices are told from others, and set, as ours are",
    ),
    (
        "flannel-connectivity",
        "flannel-cni",
        "a test pod takes addresses that the plugin must not give to a pod",
    ),
    ("flannel-page", "flannel-store", "the page lists leases of any store"),
    ("flannel-server", "flannel-page", "the lease server shows the page on its own port"),
    ("flanneld", "flannel-cni", "the daemon removes interfaces that the plugin need not wait for"),
    ("flannelctl", "flannel-cni", "cleanup and check read what the plugin has written"),
    ("flanneld", "flannel-node", "what both programs know of how a node is set up"),
    ("flannelctl", "flannel-node", "what both programs know of how a node is set up"),
];
