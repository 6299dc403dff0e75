//! What a node says of itself on its probe port, and how much of it is kept.

use flannel_state::{DaemonState, HistoryEvent, NetworkState, PeerCondition, PeerState};
use serde::Deserialize;

/// Of a text that a node writes, so much is kept.
const LONGEST: usize = 600;
/// Of a list.
const MOST: usize = 50;

/// A daemon's state as far as it concerns one network.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) hostname: String,
    pub(crate) version: String,
    pub(crate) started: String,
    pub(crate) now: String,
    pub(crate) network: NetworkState,
}

impl Said {
    /// `None` if the daemon has no such network.
    pub(crate) fn of(state: DaemonState, network: &str) -> Option<Self> {
        let DaemonState { hostname, version, started, now, networks, .. } = state;
        let mut network = networks.into_iter().find(|of| of.name == network)?;
        network.why = network.why.map(brief);
        network.entries.problems.truncate(MOST);
        network.entries.hazards.truncate(MOST);
        for problem in &mut network.entries.problems {
            problem.entry = brief(std::mem::take(&mut problem.entry));
            problem.why = brief(std::mem::take(&mut problem.why));
        }
        for hazard in &mut network.entries.hazards {
            *hazard = brief(std::mem::take(hazard));
        }
        let [hostname, version, started, now] = [hostname, version, started, now].map(brief);
        Some(Self { hostname, version, started, now, network })
    }
}

/// How one node sees another.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SeenPeer {
    #[serde(flatten)]
    pub(crate) peer: PeerState,
    #[serde(default)]
    pub(crate) probe: Option<SeenProbe>,
}

/// What came back when it was probed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenProbe {
    #[serde(default)]
    pub(crate) verdict: String,
    #[serde(default)]
    pub(crate) traffic: Option<bool>,
    #[serde(default)]
    pub(crate) why: Option<String>,
    #[serde(default)]
    pub(crate) fix: Option<String>,
    #[serde(default)]
    pub(crate) latency_micros: Option<u64>,
}

impl SeenPeer {
    pub(crate) fn brief(mut self) -> Self {
        self.peer.why = self.peer.why.map(brief);
        self.peer.backend = brief(self.peer.backend);
        if let Some(probe) = &mut self.probe {
            probe.verdict = brief(std::mem::take(&mut probe.verdict));
            probe.why = probe.why.take().map(brief);
            probe.fix = probe.fix.take().map(brief);
        }
        self
    }

    pub(crate) fn words(&self) -> &'static str {
        match self.peer.condition {
            _ if self.is_unreached() => "not reached",
            PeerCondition::Programmed => "programmed",
            PeerCondition::Incomplete => "incomplete",
            PeerCondition::Vanished => "vanished",
            PeerCondition::Unusable => "unusable",
        }
    }

    pub(crate) fn is_unreached(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.traffic == Some(false))
    }
}

pub(crate) fn brief_event(mut event: HistoryEvent) -> HistoryEvent {
    event.what = brief(event.what);
    event.kind = brief(event.kind);
    event.at = brief(event.at);
    event
}

/// Not endless, and on one line.
pub(crate) fn brief(text: String) -> String {
    let plain = !text.chars().any(char::is_control);
    if plain && text.len() <= LONGEST {
        return text;
    }
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(LONGEST).map(shown).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

impl Said {
    pub(crate) fn health(&self) -> crate::health::Health {
        crate::health::Health::of(self.network.verdict, 0)
    }

    /// In a sentence.
    pub(crate) fn why(&self) -> Option<String> {
        let network = &self.network;
        let entry = network.entries.problems.first();
        let entry = || entry.map(|problem| format!("{}: {}", problem.entry, problem.why));
        let hazard = || network.entries.hazards.first().cloned();
        network.why.clone().or_else(entry).or_else(hazard)
    }
}
