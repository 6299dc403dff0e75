//! `flannelctl peers`: how this node stands with each of the others.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use flannel_state::{PeerCondition, PeerState};

use super::{Asking, Output, client, plain};
use crate::commands::store_args::block_on;

/// How this node stands with each of the others
#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Only the peer with this address, or whose subnet starts so
    node: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

impl PeersArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        if self.asking.output != Output::Json {
            writeln!(out, "{:<20} {:<20} {:<10} STATE", "SUBNET", "NODE", "BACKEND")?;
        }
        let each = |peer: PeerState| -> anyhow::Result<()> {
            if self.node.as_ref().is_some_and(|node| !is_meant(&peer, node)) {
                return Ok(());
            }
            match self.asking.output {
                Output::Json => writeln!(out, "{}", serde_json::to_string(&peer)?)?,
                _ => writeln!(out, "{}", row(&peer))?,
            }
            Ok(())
        };
        block_on(client::lines(&self.asking.socket, "/v1/peers", each))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn is_meant(peer: &PeerState, node: &str) -> bool {
    let address = |ip: Option<String>| ip.is_some_and(|ip| ip == node);
    let subnets = [&peer.subnet, &peer.ipv6_subnet].into_iter().flatten();
    address(peer.public_ip.map(|ip| ip.to_string()))
        || address(peer.public_ipv6.map(|ip| ip.to_string()))
        || subnets.into_iter().any(|subnet| subnet.starts_with(node))
}

fn row(peer: &PeerState) -> String {
    let either =
        |v4: Option<String>, v6: Option<String>| v4.or(v6).unwrap_or_else(|| "-".to_owned());
    let subnet = either(peer.subnet.clone(), peer.ipv6_subnet.clone());
    let node =
        either(peer.public_ip.map(|ip| ip.to_string()), peer.public_ipv6.map(|ip| ip.to_string()));
    let condition = match peer.condition {
        PeerCondition::Programmed => "programmed",
        PeerCondition::Incomplete => "INCOMPLETE",
        PeerCondition::Vanished => "vanished",
        PeerCondition::Unusable => "UNUSABLE",
    };
    let why = peer.why.as_ref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
    format!("{subnet:<20} {node:<20} {:<10} {condition}{why}", plain(&peer.backend))
}
