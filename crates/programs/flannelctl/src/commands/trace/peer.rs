//! What daemons say of the other node: this node's own, and that node's on its probe port.

use std::net::SocketAddr;
use std::time::Duration;

use flannel_common::OperatorCommands;
use flannel_state::{DaemonState, Layer, PeerCondition, PeerState, ProbeState};
use flannel_trace::{Hop, Hops, Peer, Way};

use crate::commands::check::node_context::{Network, NodeContext};
use crate::commands::daemon::client::Daemon;
use crate::commands::daemon_process::{DaemonProcess, operator_commands};
use crate::commands::store_args::block_on;

const STATE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn entries(context: &NodeContext, peer: &Peer) -> Vec<Hop> {
    let mut hops = Hops::new(Way::Peer);
    let seen = context.peer_states.iter().find(|state| {
        state.subnets().any(|net| peer.subnets.iter().any(|own| own.to_string() == net))
    });
    match seen {
        Some(PeerState { condition: PeerCondition::Programmed, why: None, .. }) => {
            hops.good("entries", "all that leads to it is in place on this node");
        }
        Some(state) => {
            let why = state.why.as_deref().unwrap_or("something that leads to it is missing");
            let fix = "flannelctl peers; flannelctl repair";
            match state.condition {
                PeerCondition::Incomplete | PeerCondition::Unusable => {
                    hops.wrong("entries", Layer::Entries, why, fix);
                }
                PeerCondition::Programmed | PeerCondition::Vanished => hops.unknown("entries", why),
            }
        }
        None => hops.unknown("entries", "this node's daemon cannot be asked about it"),
    }
    if let Some(probe) = seen.and_then(|state| state.probe.as_ref()) {
        probed(&mut hops, probe);
    }
    hops.all
}

fn probed(hops: &mut Hops, probe: &ProbeState) {
    let why = probe.why.as_deref().unwrap_or(&probe.verdict);
    let is_lossy = probe.verdict == "lossy";
    match probe.traffic {
        Some(true) if probe.verdict == "reached" => {
            let micros = probe.latency_micros.unwrap_or_default();
            let (asked, lost) = (probe.asked.unwrap_or_default(), probe.lost.unwrap_or_default());
            let took = format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100);
            let what = format!(
                "it is reached, round trip {took}, {lost} of the last {asked} probes were lost"
            );
            hops.good("probes", what);
        }
        Some(true) if !is_lossy => hops.unknown("probes", why),
        Some(_) => {
            let fix = probe.fix.as_deref().unwrap_or_default();
            hops.wrong("probes", Layer::Probe, why, fix);
        }
        None => {}
    }
}

/// What its daemon says on its probe port. `why`: why it has not walked its half of the way.
pub(super) fn ask(why: &str, network: &Network, peer: &Peer, port: Option<u16>) -> Vec<Hop> {
    let mut hops = Hops::new(Way::Peer);
    hops.unknown("node", format!("it could not be asked for its half of the way: {why}"));
    let own_port = || {
        let process = DaemonProcess::find().ok().flatten()?;
        let probe = process.options().ok()?.probe?;
        Some(probe.port)
    };
    let Some(port) = port.or_else(own_port) else {
        hops.unknown("daemon", "where the other node says how it is, is not known (--probe-port)");
        return hops.all;
    };
    let Some(public) = peer.public.first() else { return hops.all };
    let at = SocketAddr::new(*public, port);
    let asked = block_on(async {
        let asked = async {
            let there = Daemon::There(at);
            let state: DaemonState = there.read("/v1/state").await?;
            Ok::<_, anyhow::Error>((state, there.list::<PeerState>("/v1/peers").await?))
        };
        tokio::time::timeout(STATE_TIMEOUT, asked).await?
    });
    match asked {
        Ok((state, peers)) => judge(&mut hops, network, &state, &peers, operator_commands()),
        Err(error) => {
            hops.unknown("daemon", format!("{at} does not say how it is there: {error:#}"))
        }
    }
    hops.all
}

fn judge(
    hops: &mut Hops,
    network: &Network,
    state: &DaemonState,
    peers: &[PeerState],
    commands: OperatorCommands,
) {
    let name = &state.hostname;
    match state.networks.iter().find(|theirs| !theirs.verdict.is_healthy()) {
        Some(theirs) => {
            let why = theirs.why.as_deref().unwrap_or("it is not ready");
            let fix = format!("on {name}: flannelctl status");
            hops.wrong("daemon", Layer::Daemon, format!("{name} says: {why}"), fix);
        }
        None => hops.good("daemon", format!("{name} says that its network is healthy")),
    }
    let own: Vec<String> = network.own.iter().map(ToString::to_string).collect();
    let of_ours = |peer: &&PeerState| peer.subnets().any(|net| own.iter().any(|own| own == net));
    match peers.iter().find(of_ours) {
        Some(PeerState {
            condition: PeerCondition::Programmed | PeerCondition::Vanished,
            public_ip,
            ..
        }) => {
            let ours = network.underlay.as_ref().and_then(|underlay| underlay.public_v4);
            match public_ip.zip(ours).filter(|(theirs, ours)| theirs != ours) {
                Some((theirs, ours)) => {
                    let what =
                        format!("{name} sends to this node at {theirs}, and it is at {ours}");
                    let again = "flanneld then announces its address again";
                    let fix = format!("{}: {again}", commands.restart_here());
                    hops.wrong("answers", Layer::Reach, what, fix);
                }
                None => hops.good("answers", format!("{name} has all that leads to this node")),
            }
        }
        Some(peer) => {
            let why =
                peer.why.as_deref().unwrap_or("something that leads to this node is missing there");
            let what = format!("{name} does not reach this node: {why}");
            hops.wrong("answers", Layer::Reach, what, format!("on {name}: flannelctl repair"));
        }
        None => {
            let what = format!("{name} knows no node with {}", own.join(" "));
            let fix = format!("on {name}: flannelctl status; is its store up?");
            hops.wrong("answers", Layer::Reach, what, fix);
        }
    }
}
