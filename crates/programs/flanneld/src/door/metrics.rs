//! All metrics of this node, for Prometheus, collected on request from the parts that keep them anyway.

use std::collections::BTreeSet;
use std::time::Duration;

use flannel_backend::WantedBy;
use flannel_metrics::{Format, Scrape, node};
use flannel_state::PeerCounts;
use flannel_tunnel::{CounterSnapshot, DropReason};
use flannel_wanted::Tally;
use hyper::header::ACCEPT;
use hyper::{HeaderMap, Response, StatusCode};

use super::entries::with_incomplete;
use super::{Body, Door, Question, ask, response, whole};
use crate::appliers::{Appliers, KERNEL, RULES};
use crate::readiness::Reading;

/// Parts that do not answer by then are left out: Prometheus waits ten seconds by default.
const LIMIT: Duration = Duration::from_secs(2);

impl Door {
    pub(super) async fn metrics(&self, headers: &HeaderMap) -> Response<Body> {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let format = Format::accepted(accept);
        let text = self.scrape().await.text(format);
        response(StatusCode::OK, format.content_type(), whole(text))
    }

    async fn scrape(&self) -> Scrape {
        let mut scrape = Scrape::default();
        scrape.number(&node::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        scrape.moment(&node::STARTED, &[], self.0.began);
        for reading in self.0.report.of_each_network() {
            add_network(&mut scrape, &reading).await;
        }
        scrape
    }
}

async fn add_network(scrape: &mut Scrape, reading: &Reading) {
    let network = reading.network.as_str();
    let ready = reading.readiness.verdict.is_healthy();
    scrape.is(&node::READY, &[network], ready);
    let Some(figures) = ask(reading, Question::Figures).await else { return };
    scrape.append(figures.scrape);
    let incomplete = add_appliers(scrape, network, &figures.appliers).await;
    add_peers(scrape, network, with_incomplete(figures.peers, &incomplete));
}

fn add_peers(scrape: &mut Scrape, network: &str, counts: PeerCounts) {
    let PeerCounts { known, unusable, vanished, incomplete } = counts;
    let programmed = known.saturating_sub(unusable + incomplete);
    for (state, count) in [
        ("programmed", programmed),
        ("incomplete", incomplete),
        ("unusable", unusable),
        ("vanished", vanished),
    ] {
        scrape.number(&node::PEERS, &[network, state], count as f64);
    }
}

async fn add_appliers(
    scrape: &mut Scrape,
    network: &str,
    appliers: &Appliers,
) -> BTreeSet<WantedBy> {
    let mut incomplete = BTreeSet::new();
    for (name, applier) in appliers.each() {
        let tally = tokio::time::timeout(LIMIT, applier.tally()).await;
        let Ok(Ok(tally)) = tally else { continue };
        add_tally(scrape, network, name, &tally);
        if name == RULES {
            add_rules(scrape, network, appliers, &tally).await;
        }
        incomplete.extend(tally.incomplete);
    }
    let totals = tokio::time::timeout(LIMIT, appliers.tunnel.totals()).await;
    for (device, totals) in totals.ok().and_then(Result::ok).into_iter().flatten() {
        add_tunnel(scrape, network, &device, &totals);
    }
    incomplete
}

/// What is told of masquerade and forward rules beside what is told of all entries.
async fn add_rules(
    scrape: &mut Scrape,
    network: &str,
    appliers: &Appliers,
    tally: &Tally<WantedBy>,
) {
    let rules: Vec<_> =
        ["masquerade", "forward"].iter().filter_map(|kind| tally.kinds.get(kind)).collect();
    if rules.iter().all(|kind| kind.wanted == 0) {
        return;
    }
    let are_ok = rules.iter().all(|kind| kind.programmed() == kind.wanted);
    scrape.is(&node::RULES_OK, &[network], are_ok);
    let restored = tokio::time::timeout(LIMIT, appliers.rules.restored()).await;
    let restored = restored.ok().and_then(Result::ok).into_iter().flatten();
    for (family, restored) in ["ipv4", "ipv6"].into_iter().zip(restored) {
        scrape.count(&node::RULES_REPAIRED, &[network, family], restored);
    }
}

fn add_tally(scrape: &mut Scrape, network: &str, applier: &str, tally: &Tally<WantedBy>) {
    if applier == KERNEL {
        scrape.count(&node::RESYNCS, &[network], tally.comparisons);
        scrape.count(&node::OVERFLOWS, &[network], tally.overflows);
    }
    if applier == KERNEL || !tally.kinds.is_empty() {
        let contested = tally.contested as f64;
        scrape.number(&node::CONTESTED, &[network, applier], contested);
    }
    for (kind, counts) in &tally.kinds {
        let of = &[network, applier, kind];
        scrape.number(&node::WANTED, of, counts.wanted as f64);
        scrape.number(&node::PROGRAMMED, of, counts.programmed() as f64);
        scrape.number(&node::MISSING, of, counts.missing as f64);
        scrape.count(&node::REPAIRED, of, counts.repaired);
        let mut refused = counts.refused.clone();
        refused.entry("other").or_default();
        for (reason, count) in &refused {
            let of = &[network, applier, kind, reason];
            scrape.number(&node::REFUSED, of, *count as f64);
        }
    }
}

fn add_tunnel(scrape: &mut Scrape, network: &str, device: &str, totals: &CounterSnapshot) {
    let (sent, received) = (&[network, device, "sent"], &[network, device, "received"]);
    scrape.count(&node::TUNNEL_PACKETS, sent, totals.sent_packets);
    scrape.count(&node::TUNNEL_PACKETS, received, totals.received_packets);
    scrape.count(&node::TUNNEL_BYTES, sent, totals.sent_bytes);
    scrape.count(&node::TUNNEL_BYTES, received, totals.received_bytes);
    for reason in DropReason::ALL {
        let of = &[network, device, reason.name()];
        scrape.count(&node::TUNNEL_DROPPED, of, totals.drops(*reason));
    }
}
