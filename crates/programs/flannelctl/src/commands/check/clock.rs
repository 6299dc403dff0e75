//! Whether this node's clock, which certificates and tokens need, agrees with those of other nodes' daemons.

use std::net::{IpAddr, SocketAddr};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use flannel_state::{DaemonState, Finding, Layer};
use jiff::Timestamp;
use tokio::task::JoinSet;

use super::node_context::NodeContext;
use crate::commands::daemon::client::Daemon;
use crate::commands::store_args::block_on;

const LAYER: Layer = Layer::Clock;
/// No release of this program is older.
const NOT_BEFORE: i64 = 1_767_225_600;

const SAMPLE: usize = 8;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Seconds that clocks may differ, more than those of nodes with NTP ever do.
const APART: i64 = 30;
const FIX: &str =
    "timedatectl set-ntp true, or: systemctl enable --now chronyd && chronyc makestep";

/// Other nodes are being asked for the time, while everything else is looked at: one that is silent holds nothing up.
pub(super) struct ClockQuestions(Option<JoinHandle<Vec<ClockLead>>>);

/// By how many seconds the clock of another node is ahead of this one's.
type ClockLead = (IpAddr, i64);

impl ClockQuestions {
    pub(super) fn ask(context: &NodeContext) -> Self {
        let peers = context.networks.iter().flat_map(|network| &network.peers);
        let mut nodes: Vec<IpAddr> =
            peers.filter_map(|peer| peer.public.first().copied()).collect();
        nodes.sort();
        nodes.dedup();
        nodes.truncate(SAMPLE);
        let port = context.probe_port;
        let asking = thread::Builder::new().name("clocks".to_owned());
        Self(asking.spawn(move || block_on(ask(nodes, port)).unwrap_or_default()).ok())
    }

    pub(super) fn look(self) -> Vec<Finding> {
        let now = Timestamp::now().as_second();
        // SAFETY: a value of zeroes asks for nothing to be changed, and the kernel fills it in.
        let mut clock: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the value lives until the call has returned.
        let state = unsafe { libc::adjtimex(&raw mut clock) };
        let own = judge(now, (state >= 0).then_some(clock.status & libc::STA_UNSYNC == 0));
        let answers = self.0.and_then(|asking| asking.join().ok()).unwrap_or_default();
        own.into_iter().chain(compare(&answers)).collect()
    }
}

async fn ask(nodes: Vec<IpAddr>, port: u16) -> anyhow::Result<Vec<ClockLead>> {
    let mut asked = JoinSet::new();
    for node in nodes {
        asked.spawn(async move {
            let before = Timestamp::now();
            let read = Daemon::There(SocketAddr::new(node, port)).read::<DaemonState>("/v1/state");
            let state = tokio::time::timeout(ANSWER_TIMEOUT, read).await.ok()?.ok()?;
            let took = Timestamp::now().duration_since(before);
            let theirs: Timestamp = state.now.parse().ok()?;
            let ahead = theirs.duration_since(before.checked_add(took / 2).ok()?);
            Some((node, ahead.as_secs()))
        });
    }
    let mut all: Vec<_> = asked.join_all().await.into_iter().flatten().collect();
    all.sort();
    Ok(all)
}

fn compare(ahead: &[ClockLead]) -> Option<Finding> {
    let apart: Vec<_> = ahead.iter().filter(|(_, ahead)| ahead.abs() > APART).collect();
    let (first, by) = apart.first()?;
    let side = if *by > 0 { "behind" } else { "ahead of" };
    let what = format!("this node's clock is {} s {side} that of {first}", by.abs());
    // Where it is one against several, that one is wrong.
    let is_own = apart.len() > 1 && apart.len() == ahead.len();
    let (what, fix) = match is_own {
        true => (format!("{what}, and wrong by all of {} nodes", ahead.len()), FIX.to_owned()),
        false => (what, format!("on the one that is wrong: {FIX}")),
    };
    let why = "certificates and tokens are judged by it; and what happened first, on which node, cannot be told from logs";
    Some(Finding::warning(LAYER, what, why, fix))
}

/// `kept`: whether somebody keeps the clock right; unknown where that is not told.
fn judge(now: i64, kept: Option<bool>) -> Option<Finding> {
    if now < NOT_BEFORE {
        let at = Timestamp::from_second(now).map_or(now.to_string(), |at| at.to_string());
        let what = format!("the clock says {at}");
        let why = "certificates are not valid yet by it: neither the lease server, nor etcd with TLS, nor Kubernetes can be asked";
        return Some(Finding::broken(LAYER, what, why, FIX));
    }
    (kept == Some(false)).then(|| {
        let why = "it drifts; certificates and logs of several nodes are compared by it: timedatectl set-ntp true";
        Finding::note(LAYER, "nobody keeps the clock right (no NTP)", why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_state::Severity;

    #[test]
    fn a_clock_that_was_never_set_is_broken_and_one_that_nobody_keeps_is_worth_knowing() {
        assert_eq!(judge(NOT_BEFORE + 1, Some(true)), None);
        assert_eq!(judge(NOT_BEFORE + 1, None), None);
        assert_eq!(judge(0, Some(true)).unwrap().severity, Severity::Broken);
        assert_eq!(judge(NOT_BEFORE + 1, Some(false)).unwrap().severity, Severity::Note);
    }

    #[test]
    fn a_clock_that_differs_from_others_is_named_as_this_nodes_if_it_differs_from_all() {
        let ahead = |all: &[i64]| {
            let nodes: Vec<ClockLead> =
                all.iter().map(|ahead| ([192, 0, 2, 2].into(), *ahead)).collect();
            compare(&nodes)
        };
        assert_eq!(ahead(&[]), None);
        assert_eq!(ahead(&[30, -30, 0]), None);
        let one = ahead(&[0, -90]).unwrap();
        assert_eq!(one.about, "this node's clock is 90 s ahead of that of 192.0.2.2");
        assert!(one.fix.starts_with("on the one that is wrong: timedatectl"), "{one:?}");
        let own = ahead(&[90, 91]).unwrap();
        assert!(own.about.starts_with("this node's clock is 90 s behind that of"), "{own:?}");
        assert!(own.about.ends_with("wrong by all of 2 nodes"), "{own:?}");
        assert!(own.fix.starts_with("timedatectl set-ntp true"), "{own:?}");
    }
}
