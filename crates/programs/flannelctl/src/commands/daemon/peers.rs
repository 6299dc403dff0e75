//! `flannelctl peers`: the other nodes, and whether this one reaches them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use flannel_cli::table::line;
use flannel_state::{PeerCondition, PeerState};
use hyper::Method;

use super::client::Daemon;
use super::{Asking, plain, probing};
use crate::commands::output::Format;
use crate::commands::store_args::block_on;
use crate::commands::usage;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The other nodes, and whether this one reaches them
///
/// Ends with 0 if all that are shown are reached as far as this node can tell, 1 if one is not, and 2 if this node
/// knows no such peer.
#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Only the peer of this name, where the store knows names, or with this address, of a node or of a pod, or whose
    /// subnet starts so
    node: Option<String>,
    /// Go on showing what changes
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    asking: Asking,
}

type Shown = BTreeMap<(String, String), PeerState>;

impl PeersArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let format = self.asking.output.output;
        let mut out = std::io::stdout().lock();
        let wide = format == Format::Wide;
        // With the first peer, so that there is none where there is no peer.
        let mut heading = format.is_for_people().then(|| heading(wide));
        let mut shown = Shown::new();
        let mut broken = false;
        let mut count = 0;
        // Without --watch nothing is kept: there may be ten thousand.
        let mut look = |shown: &mut Shown| -> anyhow::Result<()> {
            let mut gone = std::mem::take(shown);
            let each = |peer: PeerState| -> anyhow::Result<()> {
                if self.node.as_ref().is_some_and(|node| !is_meant(&peer, node)) {
                    return Ok(());
                }
                count += 1;
                broken |= !is_reached(&peer);
                let lasting = probing::lasting(&peer);
                if gone.remove(&key(&peer)).as_ref() != Some(&lasting) {
                    if let Some(heading) = heading.take() {
                        writeln!(out, "{heading}")?;
                    }
                    let text = format.one_of_many(&peer)?;
                    let text = text.unwrap_or_else(|| row(&peer, wide) + "\n");
                    out.write_all(text.as_bytes())?;
                }
                if self.watch {
                    shown.insert(key(&peer), lasting);
                }
                Ok(())
            };
            block_on(Daemon::Here(&self.asking.socket).lines(Method::GET, "/v1/peers", each))?;
            for peer in gone.into_values().filter(|_| format.is_for_people()) {
                writeln!(out, "{} and is gone", row(&peer, wide))?;
            }
            Ok(out.flush()?)
        };
        look(&mut shown)?;
        if self.watch {
            loop {
                std::thread::sleep(POLL_INTERVAL);
                look(&mut shown)?;
            }
        }
        if let (Some(node), 0) = (&self.node, count) {
            return Err(usage(format!(
                "this node knows no peer {node}; `flannelctl peers -o wide` lists them"
            )));
        }
        Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn key(peer: &PeerState) -> (String, String) {
    (peer.network.clone(), peer.subnets().next().unwrap_or_default().to_owned())
}

fn is_reached(peer: &PeerState) -> bool {
    let is_cut = peer.probe.as_ref().is_some_and(|probe| probe.traffic == Some(false));
    matches!(peer.condition, PeerCondition::Programmed | PeerCondition::Vanished) && !is_cut
}

fn is_meant(peer: &PeerState, node: &str) -> bool {
    let pod: Option<std::net::IpAddr> = node.parse().ok();
    let has = |subnet: &str| {
        let net: Option<ipnet::IpNet> = subnet.parse().ok();
        subnet.starts_with(node) || net.zip(pod).is_some_and(|(net, pod)| net.contains(&pod))
    };
    peer.name.as_deref() == Some(node)
        || peer.addresses().any(|ip| ip.to_string() == node)
        || peer.subnets().any(has)
}

/// Headings with their widths, and with those where all details are shown: there is room for two families then.
const COLUMNS: [(&str, Option<usize>, usize); 8] = [
    ("SUBNET", Some(20), 44),
    ("NAME", None, 20),
    ("NODE", Some(20), 44),
    ("BACKEND", Some(10), 10),
    ("PROBE", Some(16), 16),
    ("MTU", None, 6),
    ("PROBED", None, 21),
    ("STATE", Some(0), 0),
];

fn heading(wide: bool) -> String {
    columns(COLUMNS.map(|(name, ..)| name), wide)
}

fn columns(cells: [&str; 8], wide: bool) -> String {
    let shown = cells.into_iter().zip(COLUMNS);
    let shown = shown
        .filter_map(|(cell, (_, narrow, broad))| Some((cell, if wide { broad } else { narrow? })));
    line(&shown.collect::<Vec<_>>())
}

fn row(peer: &PeerState, wide: bool) -> String {
    let families = if wide { 2 } else { 1 };
    let joined = |all: Vec<String>| if all.is_empty() { "-".to_owned() } else { all.join(",") };
    let subnet = joined(peer.subnets().take(families).map(str::to_owned).collect());
    let node = joined(peer.addresses().take(families).map(|ip| ip.to_string()).collect());
    let condition = match peer.condition {
        PeerCondition::Programmed => "programmed",
        PeerCondition::Incomplete => "INCOMPLETE",
        PeerCondition::Vanished => "vanished",
        PeerCondition::Unusable => "UNUSABLE",
    };
    let why = peer.why.as_ref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
    let (backend, probe) = (plain(&peer.backend), probing::cell(peer));
    let probed = peer.probe.as_ref();
    let mtu = probed.and_then(|probe| probe.mtu).map_or("-".to_owned(), |mtu| mtu.to_string());
    // To the second.
    let at = probed.and_then(|probe| Some(format!("{}Z", probe.at.as_ref()?.get(..19)?)));
    let at = at.unwrap_or_else(|| "-".to_owned());
    let name = peer.name.as_ref().map_or("-".to_owned(), |name| plain(name));
    let state = format!("{condition}{why}");
    let mut row = columns([&subnet, &name, &node, &backend, &probe, &mtu, &at, &state], wide);
    if let Some(found) = peer.probe.as_ref().filter(|probe| probe.traffic.is_some()) {
        let told = found.why.iter().chain(&found.fix).map(|text| plain(text));
        told.for_each(|text| row += &format!("; {text}"));
    }
    row
}

#[cfg(test)]
mod tests {
    use flannel_state::ProbeState;

    use super::*;

    #[test]
    fn in_detail_a_peer_is_shown_in_both_families_with_what_passes_and_when_it_was_asked() {
        let peer = PeerState {
            network: "_".to_owned(),
            name: Some("node-1".to_owned()),
            subnet: Some("10.5.1.0/24".to_owned()),
            ipv6_subnet: Some("fd00:5:1::/64".to_owned()),
            public_ip: Some([192, 0, 2, 1].into()),
            public_ipv6: None,
            backend: "vxlan".to_owned(),
            condition: PeerCondition::Programmed,
            why: None,
            probe: Some(ProbeState {
                verdict: "reached".to_owned(),
                traffic: Some(true),
                mtu: Some(1450),
                at: Some("2026-11-17T00:16:55.595504152Z".to_owned()),
                ..ProbeState::default()
            }),
        };
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            words(row(&peer, true)),
            [
                "10.5.1.0/24,fd00:5:1::/64",
                "node-1",
                "192.0.2.1",
                "vxlan",
                "reached",
                "1450",
                "2026-11-17T00:16:55Z",
                "programmed"
            ]
        );
        assert_eq!(words(heading(true)).len(), 8);
        for meant in ["node-1", "192.0.2.1", "10.5.1.7", "10.5.1", "fd00:5:1::9"] {
            assert!(is_meant(&peer, meant), "{meant}");
        }
        assert!(!is_meant(&peer, "node") && !is_meant(&peer, "10.5.2.7"));
        let short = words(row(&peer, false));
        assert_eq!(short, ["10.5.1.0/24", "192.0.2.1", "vxlan", "reached", "programmed"]);
    }
}
