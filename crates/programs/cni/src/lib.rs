//! The CNI plugin of flannel, with the plugins it hands its work to built in.
//!
//! Read it in this order: [`protocol`] (what a runtime asks and gets), [`flannel`] (the plugin),
//! [`delegate`] and [`builtin`] (who does the work), [`bridge`], [`ipam`] and the others.

mod addresses_in_use;
pub mod arena;
pub mod bandwidth;
pub mod bridge;
pub mod builtin;
pub mod deferred_kernel_work;
pub mod delegate;
pub mod flannel;
mod go_names;
pub mod install;
pub mod ipam;
mod iptables;
mod kernel;
pub mod loopback;
mod masquerade;
pub mod netns;
mod nft;
pub mod portmap;
pub mod protocol;
pub mod saved_confs;
mod subprocess;
