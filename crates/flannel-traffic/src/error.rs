//! What can go wrong, on what, and what to do about it.

use std::io;
use std::time::Duration;

use ipnet::IpNet;

use crate::{Family, Mode};

#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    #[error("cannot start the thread that keeps the traffic rules: {0}")]
    Start(#[source] io::Error),
    #[error("the thread that keeps the traffic rules has stopped")]
    Stopped,
    #[error("{net} cannot be the {family} network or subnet of traffic rules")]
    Network { family: Family, net: IpNet },
    #[error(
        "{program} is not installed: install the package {package}, or use {other} \
         (\"EnableNFTables\": {} in the network config)",
        *.other == Mode::Nftables
    )]
    Missing { program: &'static str, package: &'static str, other: Mode },
    #[error(
        "neither {program} nor any other program for packet filter rules is installed: \
         install the package nftables (and set \"EnableNFTables\": true) or iptables"
    )]
    NoneInstalled { program: &'static str },
    #[error("{program} is version {version}, and {least} is needed: update the package {package}")]
    Old { program: String, version: String, least: &'static str, package: &'static str },
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
    Remove { family: Family, what: String, source: io::Error },
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
