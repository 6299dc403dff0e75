//! Kubernetes: flanneld on nodes of the lab, with a real API server and its etcd, and beside the real Go
//! flannel. Nodes are made by hand, as a kubelet and the controller of podCIDRs make them. Needs root, and
//! fails without.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

mod addresses;
mod api_server;
mod assignment;
mod condition;
mod connectivity;
mod events;
mod mixed;
mod names;
mod pods;
mod rights;
mod served;
mod status;
