//! The node's traffic rules: which packets of the network are masqueraded, that they may be
//! forwarded, and that pods put none into the tunnel; kept in nftables or in iptables.
//!
//! Values flow one way: [`Rules`] (what the operator wants) → `rule` (packet filter rules as values) →
//! `nft` or `iptables` (text, compared with what is there) → one transaction. `rule_reconciler` decides when
//! to look and when to write; `traffic` is the thread it runs on. Nothing here knows what a lease is.
//!
//! What is ours: the tables `flannel-ipv4` and `flannel-ipv6` of nftables, the chains `FLANNEL-POSTRTG`,
//! `FLANNEL-FWD`, `FLANNEL-TUN-IN` and `FLANNEL-TUN-OUT` of iptables and the one jump to each. Nothing else is ever written.

mod error;
mod firewall;
mod iptables;
mod legacy_tables;
mod netfilter;
mod nft;
mod outlook;
mod process;
mod programs;
mod rule;
mod rule_reconciler;
mod rules;
mod served_networks;
mod sweep;
mod system;
mod traffic;

pub use error::TrafficError;
use flannel_common::Family;
pub use outlook::{Outlook, outlook};
pub use rules::{FamilyRules, Mode, Rules, TunnelGuard, TunnelPackets};
pub use sweep::{cleanup, leftovers};
pub use traffic::{Health, Traffic};
