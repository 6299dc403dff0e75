//! An operator asks whether pods reach each other: this node makes a test pod, says where it is, and tries those of
//! other nodes when it is told of them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flannel_connectivity::cause::{self, Probed};
use flannel_connectivity::said::{self, Cause, Found, Said, State};
use flannel_connectivity::{News, PodPlan, TestPod};
use flannel_lease::Subnet;
use flannel_probe::{Known, Prober, Verdict};
use ipnet::IpNet;
use serde_json::Value;

use super::probing::{known_by, told};
use super::requests::{Asked, NodeNow};

/// What was found so far is told this often while more is tried.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// How long probes need to be sure of a fault that began just before the test.
const PROBES_NEED: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_millis(250);

/// Runs until it is dropped.
pub(super) async fn run(mut asked: Asked) {
    let node = asked.means.node.borrow().clone();
    let body = asked.body.borrow_and_update().clone();
    let (Some(node), Some(wanted)) = (node, read(&body)) else {
        return asked.answer(&failed("the request cannot be understood")).await;
    };
    let mut said = Said { mtu: node.mtu, ..empty(State::Ready) };
    let (pod, mut news) = match TestPod::start(plan(&asked, &node, wanted.port)) {
        Ok(started) => started,
        Err(error) => {
            return asked.answer(&failed(&format!("cannot start a thread: {error}"))).await;
        }
    };
    let mut last = Instant::now();
    let mut tried = Vec::new();
    let mut tried_since = SystemTime::now();
    loop {
        tokio::select! {
            changed = asked.body.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let body = asked.body.borrow_and_update().clone();
                let pods = read(&body).map(|wanted| wanted.pods).unwrap_or_default();
                if !pods.is_empty() && pods != tried {
                    tried.clone_from(&pods);
                    tried_since = SystemTime::now();
                    let (pods, refused) = said::confine(pods, &asked.means.lease_nets().await);
                    (said.state, said.found) = (State::Testing, untried(&refused));
                    pod.try_all(pods).await;
                }
            }
            Some(heard) = news.recv() => {
                let is_found = matches!(heard, News::Found(_));
                if heard == News::Done {
                    ask_the_probes(&mut said, &asked, wanted.port, tried_since).await;
                }
                take(&mut said, heard, &asked, wanted.port);
                if !is_found || last.elapsed() >= TOLD_EVERY {
                    last = Instant::now();
                    asked.answer(&said).await;
                }
            }
        }
    }
}

/// Of pods that are not where a pod of this network can be, as far as this node knows.
fn untried(refused: &[said::Pod]) -> Vec<Found> {
    let why = "this node knows no lease with this address: it sends nothing there";
    let each = refused.iter().flat_map(|pod| pod.addresses().map(|ip| (&pod.node, ip)));
    each.map(|(node, ip)| Found::untried(node, ip, why)).collect()
}

fn read(body: &Value) -> Option<said::Asked> {
    serde_json::from_value(body.clone()).ok()
}

fn empty(state: State) -> Said {
    Said { state, pod: None, mtu: 0, why: None, found: Vec::new() }
}

fn failed(why: &str) -> Said {
    Said { why: Some(why.to_owned()), ..empty(State::Failed) }
}

fn plan(asked: &Asked, node: &Arc<NodeNow>, port: u16) -> PodPlan {
    PodPlan {
        named: asked.named.to_string(),
        subnet: node.subnet,
        mtu: node.mtu,
        port,
        underlay: node.underlay,
        masquerades: node.masquerades,
    }
}

fn take(said: &mut Said, news: News, asked: &Asked, port: u16) {
    match news {
        News::Ready(pod) => said.pod = Some(pod),
        News::Failed(why) => {
            tracing::warn!("An operator asks for a test pod, but it cannot be made: {why}");
            (said.state, said.why) = (State::Failed, Some(why));
        }
        News::Done => said.state = State::Done,
        News::Found(found) => {
            let probed = asked.means.prober.as_ref().and_then(|prober| probed(prober, &found));
            let cause = cause::of(&found, probed, port);
            said.found.push(Found { cause, ..*found });
        }
    }
}

/// What the probes knew before the test may have changed since, for better or worse: they are given the time to look
/// again at every node whose pod was not reached, before a cause is named.
async fn ask_the_probes(said: &mut Said, asked: &Asked, port: u16, since: SystemTime) {
    let Some(prober) = &asked.means.prober else { return };
    let failed = said.found.iter().filter(|found| !found.is_whole());
    let is_unsettled = |key: &IpNet| {
        let peers = prober.peers();
        let is_settled = |known: Known| known.is_settled_since(since);
        peers.target(key).is_some() && !peers.known(key).is_some_and(is_settled)
    };
    let mut unsettled: Vec<IpNet> = failed.filter_map(peer_key).filter(is_unsettled).collect();
    prober.hasten(&unsettled);
    let began = Instant::now();
    while !unsettled.is_empty() && began.elapsed() < PROBES_NEED {
        tokio::time::sleep(LOOK).await;
        unsettled.retain(is_unsettled);
    }
    for found in said.found.iter_mut().filter(|found| !found.is_whole()) {
        found.cause = cause::of(found, probed(prober, found), port);
    }
}

/// What the probes say of the node of the other pod.
fn probed(prober: &Prober, found: &Found) -> Option<Probed> {
    let key = peer_key(found)?;
    let peers = prober.peers();
    let (own, target) = (peers.own()?, peers.target(&key)?);
    let known = peers.known(&key)?;
    if known.verdict == Verdict::Reached {
        return None;
    }
    let state = told(&known, own, &key, target);
    let cause = Cause { layer: state.layer?, why: state.why?, fix: state.fix };
    Some(Probed { cause, flows: state.traffic.unwrap_or(true) })
}

/// How the probes name the node of the other pod.
fn peer_key(found: &Found) -> Option<IpNet> {
    let subnet: Subnet = found.to.parse().ok()?;
    known_by(&subnet)
}
