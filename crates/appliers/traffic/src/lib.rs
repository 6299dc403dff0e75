//! The node's traffic rules: which packets of the network are masqueraded, that they may be
//! forwarded, and that pods put none into the tunnel; kept in nftables or in iptables.
//!
//! Values flow one way: [`TrafficRules`](flannel_entries::rules::TrafficRules) (the entries that are wanted) → `rule` (packet
//! filter rules as values) → `nftables` (netlink) or `iptables` (text), compared with what is there → one transaction.
//! `rule_reconciler` decides when to look and what to write; `applier` is the thread it runs on. Nothing here knows what a
//! lease is.
//!
//! What is ours: the tables `flannel-ipv4` and `flannel-ipv6` of nftables, the chains `FLANNEL-POSTRTG`,
//! `FLANNEL-FWD`, `FLANNEL-TUN-IN` and `FLANNEL-TUN-OUT` of iptables and the one jump to each. Nothing else is ever written.

mod applier;
mod dry_run;
mod error;
mod firewall;
mod iptables;
mod legacy_tables;
mod nftables;
mod process;
mod programs;
mod rule;
mod rule_reconciler;
mod served_networks;
mod sweep;
mod system;

pub use applier::TrafficApplier;
pub use dry_run::{DryRun, dry_run};
pub use error::TrafficError;
pub use sweep::{cleanup, leftovers};

#[cfg(test)]
mod testing;
