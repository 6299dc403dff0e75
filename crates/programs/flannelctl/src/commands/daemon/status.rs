//! `flannelctl status`: one screen, what is wrong first.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use flannel_state::{DaemonState, Finding, Layer, NetworkState, Verdict, counted};

use super::client::Daemon;
use super::{Asking, plain, probing};
use crate::commands::check::node_context::{NetworkSource, NodeContext};
use crate::commands::check::way;
use crate::commands::progress::Progress;
use crate::commands::store_args::block_on;
use flannel_cli::table::{Colour, Paint, line};
use flannel_cli::time::{seconds_between, span};

const POLL_INTERVAL: Duration = Duration::from_millis(250);
const MAX_SHOWN: usize = 8;

/// Whether the network of this node is healthy, and if not, why
///
/// Ends with 0 if it is healthy, 1 if it is not or the daemon cannot be asked.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Wait until the network is healthy
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after this many seconds
    #[arg(long, default_value_t = 300, requires = "wait")]
    timeout: u64,
    #[command(flatten)]
    asking: Asking,
}

impl StatusArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let state = block_on(self.ask())?;
        let paint = Paint::for_stdout();
        let socket = self.asking.socket.clone();
        let text = |all| screen(&state, all, paint) + &causes_here(&state, &socket);
        self.asking.output.output.show(&state, text)?;
        Ok(if state.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn ask(&self) -> anyhow::Result<DaemonState> {
        let now = || Daemon::Here(&self.asking.socket).read::<DaemonState>("/v1/state");
        if !self.wait {
            return now().await;
        }
        let healthy = async {
            loop {
                if let Ok(state) = now().await
                    && state.is_healthy()
                {
                    return state;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(self.timeout), healthy).await {
            Ok(state) => Ok(state),
            Err(_) => now().await,
        }
    }
}

/// What on this node drops or delays packets that the daemon has found lost or late, it cannot tell on which side.
fn causes_here(state: &DaemonState, socket: &Path) -> String {
    let probing = state.networks.iter().filter_map(|network| network.probing.as_ref());
    let is_lost = probing.flat_map(|probing| &probing.findings).any(|found| {
        matches!(found.probe.layer, Some(Layer::Tunnel | Layer::Underlay))
            && found.probe.verdict != "fragmented"
    });
    if !is_lost || !rustix::process::geteuid().is_root() {
        return String::new();
    }
    let _progress = Progress::of("looking for what drops or delays packets on this node");
    let gathered = NodeContext::gather(&NetworkSource::of_daemon(socket));
    let causes = gathered.map(|(context, _)| way::causes(&context)).unwrap_or_default();
    let mut text = String::new();
    for cause in causes.iter().take(MAX_SHOWN) {
        let _ = writeln!(text, "on this node: {}", plain(&cause.about));
        let _ = writeln!(text, "    fix: {}", plain(&cause.fix));
    }
    if causes.is_empty() {
        let _ = writeln!(text, "on this node: nothing was found that drops or delays packets");
    }
    text
}

fn screen(state: &DaemonState, all: bool, paint: Paint) -> String {
    let mut text = String::new();
    for network in &state.networks {
        let is_one = state.networks.len() == 1;
        let of = if is_one { String::new() } else { format!(", network {}", network.name) };
        let findings = network.findings();
        let verdict = match network.verdict {
            Verdict::Ready | Verdict::ReadyBut if !network.is_healthy() => {
                "DEGRADED, not every peer is reachable:"
            }
            Verdict::Ready | Verdict::ReadyBut if findings.is_empty() => "healthy",
            Verdict::Ready | Verdict::ReadyBut => "healthy, with warnings:",
            Verdict::CutOff => "DEGRADED, this host cuts its pods off:",
            Verdict::NotReady => "NOT READY:",
        };
        let colour = if network.is_healthy() { Colour::Good } else { Colour::Bad };
        let verdict = paint.text(colour, verdict);
        let _ = writeln!(text, "{}{of}: the network is {verdict}", plain(&state.hostname));
        let shown = if all { findings.len() } else { MAX_SHOWN.min(findings.len()) };
        for Finding { about, layer, cause, fix, .. } in &findings[..shown] {
            let _ = writeln!(text, "  {} ({layer}): {}", plain(about), plain(cause));
            if !fix.is_empty() {
                let _ = writeln!(text, "    fix: {}", plain(fix));
            }
        }
        let more = findings.len() - shown + probing::unlisted(network);
        if more > 0 {
            text +=
                &format!("  and {more} more: `flannelctl status -o wide`, `flannelctl peers`\n");
        }
        for (name, value) in details(network, &state.now, all) {
            let _ = writeln!(text, "{}", line(&[("", 1), (name, 9), (&plain(&value), 0)]));
        }
    }
    let up = span(seconds_between(&state.started, &state.now));
    let _ = writeln!(text, "flanneld {}, running for {up}", plain(&state.version));
    text
}

fn details(network: &NetworkState, now: &str, all: bool) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !network.networks.is_empty() {
        let backend = network.backend.as_deref().unwrap_or("no backend");
        let mut mtu = network.mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
        if let Some(why) = network.mtu_why.as_ref().filter(|_| all) {
            mtu += &format!(": {why}");
        }
        rows.push(("network", format!("{}, {backend}{mtu}", network.networks.join(" "))));
    }
    rows.extend(network.config.as_ref().filter(|_| all).map(|it| ("config", it.to_string())));
    if let Some(lease) = &network.lease {
        let subnets: Vec<&str> = lease.subnets().collect();
        let ends = match lease.remaining_seconds {
            Some(left) => format!("expires in {} unless renewed", span(left)),
            None => "never expires".to_owned(),
        };
        rows.push(("lease", format!("{}, {ends}", subnets.join(" "))));
    }
    if let Some(underlay) = &network.underlay {
        let why = if all { format!(": {}", underlay.why) } else { String::new() };
        rows.push(("underlay", format!("{underlay}{why}")));
    }
    if let Some(store) = &network.store {
        let since = span(seconds_between(&store.since, now));
        let condition = match &store.why {
            None => format!("up for {since}"),
            Some(why) if all => format!("UNREACHABLE for {since}: {why}"),
            Some(_) => format!("UNREACHABLE for {since}"),
        };
        rows.push(("store", format!("{}, {condition}", store.name)));
    }
    let peers = network.peers;
    let parts = [
        (peers.unusable, "UNUSABLE (`flannelctl peers` says why)"),
        (peers.incomplete, "INCOMPLETE (`flannelctl peers` says why)"),
        (peers.vanished, "more missing from the store"),
    ];
    rows.push(("peers", format!("{}{}", peers.known, counted(&parts, |count| count.to_string()))));
    rows.extend(network.probing.as_ref().map(|found| ("probes", probing::summary(found))));
    let entries = &network.entries;
    let missing = match entries.missing {
        0 => "all in place".to_owned(),
        missing => format!("{missing} MISSING"),
    };
    rows.push(("entries", format!("{} wanted, {missing}", entries.wanted)));
    for problem in entries.problems.iter().filter(|_| all) {
        rows.push(("", format!("{}: {}", problem.entry, problem.why)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use flannel_state::{
        EntriesState, ProbeState, ProbedPeer, ProbingState, ProblemState, SCHEMA, StoreState,
    };

    use super::*;

    #[test]
    fn what_is_wrong_comes_first_and_is_shown_as_text() {
        let network = NetworkState {
            verdict: Verdict::NotReady,
            why: Some("no lease: \u{1b}[31mred".to_owned()),
            store: Some(StoreState {
                name: "etcd".to_owned(),
                up: false,
                since: "2026-11-16T10:00:00Z".to_owned(),
                why: Some("connection refused".to_owned()),
            }),
            probing: Some(ProbingState {
                reached: 1,
                unreached: 3,
                findings: vec![ProbedPeer {
                    subnet: "10.244.2.0/24".to_owned(),
                    node: "192.0.2.2".parse().ok(),
                    probe: ProbeState {
                        traffic: Some(false),
                        layer: Some(Layer::Tunnel),
                        why: Some("UDP port 8472 \u{1b}[31mdoes not arrive".to_owned()),
                        fix: Some("open it".to_owned()),
                        ..ProbeState::default()
                    },
                }],
                ..ProbingState::default()
            }),
            entries: EntriesState {
                wanted: 3,
                missing: 1,
                problems: vec![ProblemState {
                    entry: "route".to_owned(),
                    why: "no device".to_owned(),
                }],
                ..EntriesState::default()
            },
            ..NetworkState::starting("_")
        };
        let state = DaemonState {
            schema: SCHEMA,
            version: "1".to_owned(),
            hostname: "n1".to_owned(),
            started: "2026-11-16T09:00:00Z".to_owned(),
            now: "2026-11-16T10:01:00Z".to_owned(),
            networks: vec![network],
        };
        let expected = "n1: the network is NOT READY:\n\
             \x20 peer 10.244.2.0/24 at 192.0.2.2 (tunnel): UDP port 8472 \u{fffd}[31mdoes not arrive\n\
             \x20   fix: open it\n\
             \x20 flanneld (daemon): no lease: \u{fffd}[31mred\n\
             \x20   fix: `flannelctl events` says since when\n\
             \x20 and 2 more: `flannelctl status -o wide`, `flannelctl peers`\n\
             \x20 store     etcd, UNREACHABLE for 1m00s\n\
             \x20 peers     0\n\
             \x20 probes    1 reached, 3 UNREACHABLE\n\
             \x20 entries   3 wanted, 1 MISSING\n\
             flanneld 1, running for 1h01m\n";
        assert_eq!(screen(&state, false, Paint::never()), expected);
    }
}
