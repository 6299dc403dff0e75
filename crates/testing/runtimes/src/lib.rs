//! Real container runtimes on lab nodes, for the tests of this crate: Debian's podman with flannel as
//! its CNI plugin, and Debian's Docker with the options file, as the oldest users run it.
//!
//! `scripts/deps podman docker busybox` gets them, unpacked in a cache; nothing is installed or started
//! on the host. What they write goes to the node's own `/run`, `/etc` and `/var/lib`. Whatever is
//! missing or fails ends the test: these helpers panic.

mod cluster;
mod docker;
mod image;
mod manifests;
mod outside;
mod podman;
mod programs;
mod runtime;

pub use cluster::{Cluster, IMAGE, WebPod, image, one_cluster_at_a_time};
pub use docker::Docker;
pub use manifests::{
    chart, go_flanneld, helm, our_image_as_values, our_manifest, our_overlay, rendered,
    upstream_chart, upstream_manifest,
};
pub use outside::{Outside, say_hello_to};
pub use podman::Podman;
pub use programs::{flannel_lab, flannelctl, flanneld, measured, of_repository};
pub use runtime::Runtime;
