//! The plugin as a runtime meets it: a program, its environment and its standard input. Most of
//! these tests make network namespaces: run them as root. They fail without.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod again;
mod bandwidth;
mod bridge;
mod connectivity;
mod deferred_kernel_work;
mod firewall;
mod golden;
mod interchange;
mod iptables;
mod killed;
mod lifecycle;
mod node;
mod nonsense;
mod options;
mod orphans;
mod protocol;
mod robustness;
mod router;
mod support;
mod traced;
mod traffic;
