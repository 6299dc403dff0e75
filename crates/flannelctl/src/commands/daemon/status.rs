//! `flannelctl status`: one screen, what is wrong first.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use flannel_state::{DaemonState, IssueState, NetworkState, Verdict};

use super::{Asking, client, plain, probing, seconds_between, span};
use crate::commands::check::surroundings::{Knowing, Surroundings};
use crate::commands::check::way;
use crate::commands::lab::table::{Colour, Paint};
use crate::commands::progress::Progress;
use crate::commands::store_args::block_on;

/// How often a network that is waited for is looked at.
const POLL: Duration = Duration::from_millis(250);
/// So many problems are shown unless all are asked for.
const SHOWN: usize = 5;

/// Whether the network of this node is whole, and if not, why
///
/// Ends with 0 if it is whole, 1 if it is not or the daemon cannot be asked.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Wait until the network is whole
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after so many seconds
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
        self.asking.output.output.show(&state, |all| {
            let mut text = screen(&state, all, paint);
            text.push_str(&causes_here(&state, &socket));
            text
        })?;
        Ok(if state.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn ask(&self) -> anyhow::Result<DaemonState> {
        let now = || client::read::<DaemonState>(&self.asking.socket, "/v1/state");
        if !self.wait {
            return now().await;
        }
        let whole = async {
            loop {
                if let Ok(state) = now().await
                    && state.is_whole()
                {
                    return state;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(self.timeout), whole).await {
            Ok(state) => Ok(state),
            Err(_) => now().await,
        }
    }
}

/// What on this node drops or delays packets, where the daemon has found that some are lost or late and cannot tell on which
/// side.
fn causes_here(state: &DaemonState, socket: &Path) -> String {
    let layers = ["tunnel", "underlay"];
    let probing = state.networks.iter().filter_map(|network| network.probing.as_ref());
    let is_lost = probing.flat_map(|probing| &probing.findings).any(|found| {
        let layer = found.probe.layer.as_deref().unwrap_or_default();
        layers.contains(&layer) && found.probe.verdict != "fragmented"
    });
    if !is_lost || !rustix::process::geteuid().is_root() {
        return String::new();
    }
    let _progress = Progress::of("looking for what drops or delays packets on this node");
    let gathered = Surroundings::gather(&Knowing::of_daemon(socket));
    let causes = gathered.map(|(around, _)| way::causes(&around)).unwrap_or_default();
    let mut text = String::new();
    for cause in causes.iter().take(SHOWN) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "on this node: {}", plain(&cause.what));
        let _ = writeln!(text, "    mend it: {}", plain(&cause.fix));
    }
    if causes.is_empty() {
        let _ = writeln!(text, "on this node: nothing was found that drops or delays packets");
    }
    text
}

fn screen(state: &DaemonState, all: bool, paint: Paint) -> String {
    let mut text = String::new();
    for network in &state.networks {
        let of = if state.networks.len() > 1 {
            format!(", network {}", network.name)
        } else {
            String::new()
        };
        let verdict = match network.verdict {
            Verdict::Ready | Verdict::ReadyBut if !network.is_whole() => {
                "the network is NOT WHOLE, not every peer is reached:"
            }
            Verdict::Ready if has_remarks(network) => "the network is whole, but:",
            Verdict::Ready => "the network is whole",
            Verdict::ReadyBut => "the network is whole, but:",
            Verdict::CutOff => "pods are CUT OFF by this host:",
            Verdict::NotReady => "the network is NOT READY:",
        };
        let colour = if network.is_whole() { Colour::Good } else { Colour::Bad };
        let verdict = paint.text(colour, verdict);
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{}{of}: {verdict}", plain(&state.hostname));
        let most = if all { usize::MAX } else { SHOWN };
        if let Some(why) = network.why.as_ref().filter(|why| !is_told(network, why)) {
            let _ = writeln!(text, "  {}", plain(why));
        }
        for issue in network.issues.iter().take(most) {
            let IssueState { about, layer, why, fix, .. } = issue;
            let _ = writeln!(text, "  {} ({}): {}", plain(about), plain(layer), plain(why));
            let _ = writeln!(text, "    mend it: {}", plain(fix));
        }
        for line in probing::findings(network, most) {
            let _ = writeln!(text, "  {line}");
        }
        for (name, value) in details(network, &state.now, all) {
            let _ = writeln!(text, "  {name:<9} {}", plain(&value));
        }
    }
    let up = span(seconds_between(&state.started, &state.now));
    let _ = writeln!(text, "flanneld {}, running for {up}", plain(&state.version));
    text
}

fn has_remarks(network: &NetworkState) -> bool {
    let probed = network.probing.as_ref().is_some_and(|probing| !probing.findings.is_empty());
    probed || !network.issues.is_empty()
}

/// Whether one of the issues says the same, with what mends it.
fn is_told(network: &NetworkState, why: &str) -> bool {
    let said = |issue: &IssueState| format!("{}: {}", issue.about, issue.why);
    network.issues.iter().any(|one| said(one) == why || why.starts_with(&one.why))
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
        let subnets: Vec<&str> =
            [&lease.subnet, &lease.ipv6_subnet].into_iter().flatten().map(String::as_str).collect();
        let ends = match lease.remaining_seconds {
            Some(left) => format!("ends in {} unless it is renewed", span(left)),
            None => "for ever".to_owned(),
        };
        rows.push(("lease", format!("{}, {ends}", subnets.join(" "))));
    }
    if let Some(underlay) = &network.underlay {
        let addresses: Vec<String> = underlay.addresses.iter().map(ToString::to_string).collect();
        let mut row =
            format!("{} {}, MTU {}", underlay.interface, addresses.join(" "), underlay.mtu);
        if all {
            row += &format!(": {}", underlay.why);
        }
        rows.push(("underlay", row));
    }
    if let Some(store) = &network.store {
        let since = span(seconds_between(&store.since, now));
        rows.push((
            "store",
            match &store.why {
                None => format!("{}, up for {since}", store.name),
                Some(why) if network.issues.is_empty() => {
                    format!("{}, AWAY for {since}: {why}", store.name)
                }
                Some(_) => format!("{}, AWAY for {since}", store.name),
            },
        ));
    }
    let peers = network.peers;
    let mut row = format!("{}", peers.known);
    if peers.unusable > 0 {
        row += &format!(", {} UNUSABLE (`flannelctl peers` says why)", peers.unusable);
    }
    if peers.incomplete > 0 {
        row += &format!(", {} INCOMPLETE (`flannelctl peers` says why)", peers.incomplete);
    }
    if peers.vanished > 0 {
        row += &format!(", {} more vanished from the store", peers.vanished);
    }
    rows.push(("peers", row));
    rows.extend(network.probing.as_ref().map(|found| ("probes", probing::summary(found))));
    let entries = &network.entries;
    rows.push((
        "entries",
        match entries.missing {
            0 => format!("{} wanted, all in place", entries.wanted),
            missing => format!("{} wanted, {missing} MISSING", entries.wanted),
        },
    ));
    let shown = if all { usize::MAX } else { SHOWN };
    let told = |entry: &str| network.issues.iter().any(|issue| issue.about == entry);
    for problem in entries.problems.iter().filter(|one| all || !told(&one.entry)).take(shown) {
        rows.push(("", format!("{}: {}", problem.entry, problem.why)));
    }
    // Unless it was said above.
    let said = |hazard: &&String| network.issues.iter().any(|one| hazard.starts_with(&one.why));
    let hazards = entries.hazards.iter().filter(|hazard| !said(hazard));
    rows.extend(hazards.take(shown).map(|hazard| ("host", hazard.clone())));
    rows
}

#[cfg(test)]
mod tests {
    use flannel_state::{EntriesState, ProblemState, SCHEMA, StoreState};

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
             \x20 no lease: \u{fffd}[31mred\n\
             \x20 store     etcd, AWAY for 1m00s: connection refused\n\
             \x20 peers     0\n\
             \x20 entries   3 wanted, 1 MISSING\n\
             \x20           route: no device\n\
             flanneld 1, running for 1h01m\n";
        assert_eq!(screen(&state, false, Paint::never()), expected);
    }
}
