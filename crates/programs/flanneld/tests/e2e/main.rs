//! End to end: the real flanneld on nodes of the lab, against a real etcd and the real kernel, and
//! beside the real Go flannel. Needs root, and fails without.
//!
//! Figures that the tests measure (repair times, lost packets) go to the standard error as lines
//! that begin with `measured:`, whether a test passes or not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod support;

mod assigned;
mod backend_trial;
mod boot;
mod clashes;
mod cloud;
mod commandline;
mod config_changes;
mod connectivity;
mod daemon;
mod devices;
mod diagnostics;
mod events;
mod extension;
mod families;
mod faults;
mod first_config;
mod host_faults;
mod identity;
mod ipip;
mod ipsec;
mod link_identity;
mod many;
mod metrics;
mod mixed;
mod mtu;
mod networks;
mod one_address;
mod own_lease;
mod probing;
mod probing_everywhere;
mod promised_faults;
mod random;
mod restart;
mod rules;
mod secrets;
mod sizes;
mod soak;
mod state;
mod store_faults;
mod tunnel_process;
mod udp;
mod vandalism;
mod wireguard;
mod wireguard_userspace;
