//! An operator asks whether pods reach each other: this node makes a test pod, and tries those of nodes that it is told of.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flannel_connectivity::cause::{self, ProbeFinding};
use flannel_connectivity::protocol::{self, Cause, TestReport, TestState, TrialResult};
use flannel_connectivity::{PodEvent, PodPlan, TestPod};
use flannel_lease::Subnet;
use flannel_probe::finding::finding;
use flannel_probe::{PeerReachability, Prober};
use flannel_state::Finding;
use ipnet::IpNet;

use super::probing::known_by;
use super::requests::{NodeNow, NodeRequest};

const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long probes need to be sure of a fault that began just before the test.
const PROBE_SETTLE_TIMEOUT: Duration = Duration::from_secs(6);
const PROBE_POLL: Duration = Duration::from_millis(250);

pub(super) async fn run(mut request: NodeRequest) {
    let node = request.context.node.borrow().clone();
    let (Some(node), Some(wanted)) = (node, request.read::<protocol::TestRequest>()) else {
        return request.answer(&failed("the request cannot be understood")).await;
    };
    let mut report = TestReport { mtu: node.mtu, ..empty(TestState::Ready) };
    let (pod, mut news) = match TestPod::start(plan(&request, &node, wanted.port)) {
        Ok(started) => started,
        Err(error) => {
            return request.answer(&failed(&format!("cannot start a thread: {error}"))).await;
        }
    };
    let mut last = Instant::now();
    let mut tried = Vec::new();
    let mut tried_since = SystemTime::now();
    loop {
        tokio::select! {
            changed = request.body.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let wanted = request.read::<protocol::TestRequest>();
                let pods = wanted.map(|wanted| wanted.pods).unwrap_or_default();
                if !pods.is_empty() && pods != tried {
                    tried.clone_from(&pods);
                    tried_since = SystemTime::now();
                    let (pods, refused) = protocol::confine(pods, &request.context.lease_nets().await);
                    (report.state, report.found) = (TestState::Testing, untried(&refused));
                    pod.try_all(pods).await;
                }
            }
            Some(heard) = news.recv() => {
                let is_found = matches!(heard, PodEvent::Found(_));
                if heard == PodEvent::Done {
                    ask_the_probes(&mut report, &request, wanted.port, tried_since).await;
                }
                take(&mut report, heard, &request, wanted.port);
                if !is_found || last.elapsed() >= REPORT_INTERVAL {
                    last = Instant::now();
                    request.answer(&report).await;
                }
            }
        }
    }
}

fn untried(refused: &[protocol::Pod]) -> Vec<TrialResult> {
    let why = "this node knows no lease with this address: it sends nothing there";
    let each = refused.iter().flat_map(|pod| pod.addresses().map(|ip| (&pod.node, ip)));
    each.map(|(node, ip)| TrialResult::untried(node, ip, why)).collect()
}

fn empty(state: TestState) -> TestReport {
    TestReport { state, pod: None, mtu: 0, why: None, found: Vec::new() }
}

fn failed(why: &str) -> TestReport {
    TestReport { why: Some(why.to_owned()), ..empty(TestState::Failed) }
}

fn plan(request: &NodeRequest, node: &Arc<NodeNow>, port: u16) -> PodPlan {
    let NodeNow { subnet, mtu, underlay, masquerades, .. } = **node;
    PodPlan { named: request.named.to_string(), subnet, mtu, port, underlay, masquerades }
}

fn take(report: &mut TestReport, news: PodEvent, request: &NodeRequest, port: u16) {
    match news {
        PodEvent::Ready(pod) => report.pod = Some(pod),
        PodEvent::Failed(why) => {
            tracing::warn!("An operator asks for a test pod, but it cannot be made: {why}");
            (report.state, report.why) = (TestState::Failed, Some(why));
        }
        PodEvent::Done => report.state = TestState::Done,
        PodEvent::Found(found) => {
            let probed = request.context.prober.as_ref().and_then(|prober| probed(prober, &found));
            let cause = cause::of(&found, probed, port);
            report.found.push(TrialResult { cause, ..*found });
        }
    }
}

/// Gives the probes time to look again at every node whose pod was not reached, before a cause is named.
async fn ask_the_probes(
    report: &mut TestReport,
    request: &NodeRequest,
    port: u16,
    since: SystemTime,
) {
    let Some(prober) = &request.context.prober else { return };
    let failed = report.found.iter().filter(|found| !found.is_whole());
    let is_unsettled = |key: &IpNet| {
        let peers = prober.peers();
        let is_settled = |known: PeerReachability| known.is_settled_since(since);
        peers.target(key).is_some() && !peers.known(key).is_some_and(is_settled)
    };
    let mut unsettled: Vec<IpNet> = failed.filter_map(peer_key).filter(is_unsettled).collect();
    prober.hasten(&unsettled);
    let began = Instant::now();
    while !unsettled.is_empty() && began.elapsed() < PROBE_SETTLE_TIMEOUT {
        tokio::time::sleep(PROBE_POLL).await;
        unsettled.retain(is_unsettled);
    }
    for found in report.found.iter_mut().filter(|found| !found.is_whole()) {
        found.cause = cause::of(found, probed(prober, found), port);
    }
}

fn probed(prober: &Prober, found: &TrialResult) -> Option<ProbeFinding> {
    let key = peer_key(found)?;
    let peers = prober.peers();
    let (own, target) = (peers.own()?, peers.target(&key)?);
    let known = peers.known(&key)?;
    let Finding { layer, cause, fix, traffic_flows, .. } = finding(&known, own, &key, target)?;
    let cause = Cause { layer: layer.to_string(), why: cause, fix: Some(fix) };
    Some(ProbeFinding { cause, flows: traffic_flows })
}

fn peer_key(found: &TrialResult) -> Option<IpNet> {
    let subnet: Subnet = found.to.parse().ok()?;
    known_by(&subnet)
}
