//! Traffic rules in the real kernel, each test in a network namespace of its own. Needs root, iproute2,
//! nftables and iptables (both variants), and fails without.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]
#![allow(clippy::print_stdout, reason = "measured times, for who runs a test with --nocapture")]

mod listings;
mod modes;
mod neighbours;
mod nftables;
mod packets;
mod programs;
mod repairs;
mod streams;
mod support;
