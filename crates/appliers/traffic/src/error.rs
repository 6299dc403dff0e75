//! What can go wrong, on what, and what to do about it.

use std::io;
use std::time::Duration;

use flannel_common::Family;

#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    #[error(
        "{program} is not installed: install the package iptables, or use nftables \
         (\"EnableNFTables\": true in the network config)"
    )]
    Missing { program: &'static str },
    #[error("nftables: {0}")]
    Nft(#[from] flannel_nft::NftError),
    #[error("cannot run {command}: {source}")]
    Run { command: String, source: io::Error },
    #[error("{command}: {reason}")]
    Failed { command: String, reason: String },
    #[error("{command} has not ended within {limit:.0?}: does something hold the xtables lock?")]
    TimedOut { command: String, limit: Duration },
    #[error(
        "the {family} table {table} has rules that iptables cannot show, made by nft: \
         set \"EnableNFTables\": true in the network config"
    )]
    Incomprehensible { family: Family, table: &'static str },
    #[error("somebody changes the {family} rules as soon as they are written{by}")]
    NotTaken { family: Family, by: String },
    #[error("cannot remove the {family} {what} of a former flannel: {source}")]
    Remove { family: Family, what: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(
        "the {family} table {table} of iptables-legacy has rules of a former flannel, and \
         iptables-legacy is not installed: remove {chain} and the jump to it with it, or reboot"
    )]
    NoLegacy { family: Family, table: &'static str, chain: &'static str },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<TrafficError>),
}

impl TrafficError {
    /// All that went wrong as one error; `Ok` if nothing did.
    pub(crate) fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}
