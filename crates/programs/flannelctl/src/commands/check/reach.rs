//! The network below flannel: whether nodes are there, packets are lost, ports are open, large packets pass.

use std::io;
use std::net::IpAddr;

use flannel_common::Family;
use flannel_kernel::look::{Kernel, RouteQuery};

use super::echo::{self, SizedEcho};
use super::node_context::{Network, NodeContext};
use super::{few, ports};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Reach;
const SAMPLE: usize = 64;
const TIMES: usize = 10;
const MORE_TIMES: usize = 90;
/// So many lost packets of a hundred are not chance.
const LOSSY: usize = 3;
/// With so many, connections stall.
const VERY_LOSSY: usize = 10;
const FULL_TIMES: usize = 30;
const SIZES_AT_ONCE: u32 = 64;
/// The smallest size that is tried: what every IPv4 host takes.
const LEAST_SIZE: u32 = 576;

#[derive(Clone, Copy)]
struct Reached {
    peer: IpAddr,
    end: IpAddr,
    asked: usize,
    answered: usize,
}

impl Reached {
    fn answers(&self) -> bool {
        self.answered > 0
    }

    fn lost(&self) -> usize {
        100 * self.asked.saturating_sub(self.answered) / self.asked.max(1)
    }

    fn is_lossy(&self) -> bool {
        self.answers() && self.lost() >= LOSSY
    }
}

/// With paths that carry less than the card does.
pub(super) fn look(context: &NodeContext) -> (Vec<Finding>, Vec<(IpAddr, u32)>) {
    let (mut findings, mut narrow) = (Vec::new(), Vec::new());
    let mut kernel = Kernel::open();
    for network in &context.networks {
        let Some(underlay) = &network.underlay else { continue };
        let ends: Vec<_> = peers(network).into_iter().map(|peer| (peer, peer)).collect();
        let Ok(reached) = ask(&ends) else { continue };
        let is_beside = |one: &Reached| {
            let asked = RouteQuery { dst: one.peer, from: None, protocol: None };
            let way = kernel.as_mut().ok().and_then(|kernel| kernel.decide(asked).ok()?.ok());
            way.is_some_and(|way| way.via.is_none())
        };
        findings.extend(judge(&reached, is_beside));
        findings.extend(judge_loss(&reached, underlay.link.as_str(), ""));
        // Where packets are lost, one that is not answered says nothing.
        let there = reached.iter().filter(|one| one.answers() && !one.is_lossy());
        let there: Vec<IpAddr> = there.map(|one| one.peer).collect();
        // What the daemon has found out of a node is more exact.
        let told: Vec<IpAddr> = context.unreached_by_daemon().collect();
        let unknown: Vec<IpAddr> = there.iter().copied().filter(|ip| !told.contains(ip)).collect();
        findings.extend(ports::look(network, &unknown, context.commands));
        let narrower = narrow_paths(&unknown, underlay.mtu).unwrap_or_default();
        let whole = |ip: &&IpAddr| !narrower.iter().any(|(narrow, _)| narrow == *ip);
        let wide: Vec<IpAddr> = unknown.iter().filter(whole).copied().collect();
        findings.extend(through_tunnel(network, &wide).unwrap_or_default());
        narrow.extend(narrower);
    }
    (findings, narrow)
}

fn peers(network: &Network) -> Vec<IpAddr> {
    // A reservation is of a node that has not come yet.
    let come = network.peers.iter().filter(|peer| !peer.backend.is_empty());
    let own = network.public();
    let mut peers: Vec<IpAddr> = come.filter_map(|peer| peer.public.first().copied()).collect();
    peers.retain(|peer| !own.contains(peer));
    peers.sort();
    peers.dedup();
    peers.truncate(SAMPLE);
    peers
}

/// Asks nodes at these addresses of theirs, and once more at length where some of it was answered.
fn ask(ends: &[(IpAddr, IpAddr)]) -> io::Result<Vec<Reached>> {
    let addresses: Vec<IpAddr> = ends.iter().map(|(_, end)| *end).collect();
    let counts = echo::counted(&addresses, TIMES, echo::SMALL)?;
    let first = ends.iter().zip(counts);
    let mut reached: Vec<Reached> = first
        .map(|((peer, end), answered)| Reached { peer: *peer, end: *end, asked: TIMES, answered })
        .collect();
    let mut doubtful: Vec<&mut Reached> =
        reached.iter_mut().filter(|one| one.answers() && one.answered < one.asked).collect();
    let again: Vec<IpAddr> = doubtful.iter().map(|one| one.end).collect();
    for (one, answered) in doubtful.iter_mut().zip(echo::counted(&again, MORE_TIMES, echo::SMALL)?)
    {
        one.asked += MORE_TIMES;
        one.answered += answered;
    }
    Ok(reached)
}

/// Nodes that answer beside the tunnel, asked through it: with small packets, and with large ones.
fn through_tunnel(network: &Network, nodes: &[IpAddr]) -> io::Result<Vec<Finding>> {
    let (Some(mtu), Some(underlay)) = (network.mtu, &network.underlay) else {
        return Ok(Vec::new());
    };
    if network.tunnel_device(Family::V4).is_none() {
        return Ok(Vec::new());
    }
    let end = |node: &IpAddr| {
        let peer = network.peers.iter().find(|peer| peer.public.contains(node))?;
        peer.subnets.iter().map(ipnet::IpNet::network).find(IpAddr::is_ipv4)
    };
    let ends: Vec<(IpAddr, IpAddr)> =
        nodes.iter().filter_map(|node| Some((*node, end(node)?))).collect();
    let reached = ask(&ends)?;
    let link = underlay.link.as_str();
    let small = judge_loss(&reached, link, " through the tunnel");
    // Of those that answer all small ones.
    let well: Vec<Reached> = reached.into_iter().filter(|one| one.answered == one.asked).collect();
    let ends: Vec<IpAddr> = well.iter().map(|one| one.end).collect();
    let counts = echo::counted(&ends, FULL_TIMES, mtu)?;
    let full: Vec<Reached> = well
        .into_iter()
        .zip(counts)
        .map(|(one, answered)| Reached { asked: FULL_TIMES, answered, ..one })
        .collect();
    let none = full.iter().find(|one| !one.answers()).map(|Reached { peer, .. }| {
        let what = format!(
            "no packet of {mtu} bytes comes back through the tunnel from {peer}, and small ones do"
        );
        let why = "connections of pods are made, and hang with the first full packet; on which side they are lost is not known";
        let fix = format!(
            "here and on {peer}: flannelctl check names rules, queues and filters that drop long packets; flannelctl trace \
             --live between two pods says where they are last seen"
        );
        Finding::broken(LAYER, what, why, fix)
    });
    let sized = format!(", of {mtu} bytes, through the tunnel");
    Ok(small.into_iter().chain(none).chain(judge_loss(&full, link, &sized)).collect())
}

/// Of those that answer at all, those that a full packet does not reach, with what does.
fn narrow_paths(peers: &[IpAddr], mtu: u32) -> io::Result<Vec<(IpAddr, u32)>> {
    let full: Vec<SizedEcho> = peers.iter().map(|peer| (*peer, mtu)).collect();
    let answered = echo::answered(&full)?;
    let narrow = peers.iter().enumerate().filter(|(number, _)| !answered.contains(number));
    let mut found = Vec::new();
    for (_, peer) in narrow {
        let (mut passes, mut too_large) = (LEAST_SIZE - 1, mtu);
        // Until it is known to the byte, or nothing passes at all.
        loop {
            let tried = between(passes, too_large);
            let asked: Vec<SizedEcho> = tried.iter().map(|size| (*peer, *size)).collect();
            let answered = echo::answered(&asked)?;
            let Some(last) = answered.last() else { break };
            passes = tried[*last];
            too_large = tried.get(last + 1).copied().unwrap_or(too_large);
        }
        found.extend((passes >= LEAST_SIZE).then_some((*peer, passes)));
    }
    Ok(found)
}

/// Sizes between one that passes and one that does not, evenly; none if there is none.
fn between(passes: u32, too_large: u32) -> Vec<u32> {
    let room = too_large.saturating_sub(passes + 1);
    let step = room.div_ceil(SIZES_AT_ONCE).max(1);
    (passes + 1..too_large).step_by(step as usize).collect()
}

/// `is_beside`: without a gateway between.
fn judge(reached: &[Reached], mut is_beside: impl FnMut(&Reached) -> bool) -> Option<Finding> {
    let silent: Vec<&Reached> = reached.iter().filter(|one| !one.answers()).collect();
    let first = silent.first()?;
    let (count, names) = (silent.len(), few(silent.iter().map(|one| one.peer)));
    let what = format!("{count} of {} nodes do not answer a ping: {names}", reached.len());
    let why = "the network below flannel is cut between here and there, or that node is down; or it answers no ICMP";
    let fix = format!(
        "ping {}; look whether it runs, and at cables, security groups and firewalls between",
        first.peer
    );
    // Where others of the same wire answer, it is not for want of ICMP.
    let usual = reached.iter().any(|one| one.answers() && is_beside(one));
    let is_cut = usual && silent.iter().any(|one| is_beside(one));
    let judge = if is_cut { Finding::broken } else { Finding::warning };
    Some(judge(LAYER, what, why, fix))
}

/// `how`: they were sent.
fn judge_loss(reached: &[Reached], link: &str, how: &str) -> Option<Finding> {
    let lossy: Vec<&Reached> = reached.iter().filter(|one| one.is_lossy()).collect();
    let worst = lossy.iter().max_by_key(|one| one.lost())?;
    let what = format!(
        "of 100 packets to {} and back{how}, {} are lost",
        few(lossy.iter().map(|one| one.peer)),
        if lossy.len() > 1 { format!("up to {}", worst.lost()) } else { worst.lost().to_string() }
    );
    let why = "connections of pods to that node are slow and stall; on which side, or between, is not known; or something on the way limits pings";
    let fix = format!(
        "here and on {}: flannelctl check names rules, queues and filters that drop; ip -s link show {link} and ethtool -S \
         {link}: whose count of errors grows; then cables, switches and the hypervisor between",
        worst.peer
    );
    let judge = if worst.lost() >= VERY_LOSSY { Finding::broken } else { Finding::warning };
    Some(judge(LAYER, what, why, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_state::Severity;

    #[test]
    fn who_does_not_answer_beside_others_that_do_is_cut_off() {
        // By their last numbers.
        let judged = |answering: &[u8], silent: &[u8], beside: &[u8]| {
            let one = |last: &u8, answered| {
                let peer = [192, 0, 2, *last].into();
                Reached { peer, end: peer, asked: TIMES, answered }
            };
            let silent = silent.iter().map(|last| one(last, 0));
            let all: Vec<Reached> =
                answering.iter().map(|last| one(last, TIMES)).chain(silent).collect();
            let beside: Vec<IpAddr> = beside.iter().map(|last| [192, 0, 2, *last].into()).collect();
            judge(&all, |one| beside.contains(&one.peer))
        };
        assert_eq!(judged(&[1, 2], &[], &[1]), None);
        let found = judged(&[1], &[2], &[1, 2]).expect("a finding");
        assert_eq!(found.severity, Severity::Broken);
        assert!(
            found.about.starts_with("1 of 2 nodes do not answer a ping: 192.0.2.2"),
            "{found:?}"
        );
        let severity = |found: Option<Finding>| found.map(|it| it.severity);
        assert_eq!(severity(judged(&[], &[1], &[1])), Some(Severity::Warning), "nobody may answer");
        assert_eq!(severity(judged(&[1], &[2], &[1])), Some(Severity::Warning));
    }

    #[test]
    fn packets_that_are_lost_beyond_chance_are_told_of() {
        let one = |last: u8, answered| {
            let peer = [192, 0, 2, last].into();
            Reached { peer, end: peer, asked: 100, answered }
        };
        assert_eq!(judge_loss(&[one(1, 100), one(2, 98), one(3, 0)], "eth0", ""), None);
        let found = judge_loss(&[one(1, 100), one(2, 97)], "eth0", "").expect("a finding");
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.about, "of 100 packets to 192.0.2.2 and back, 3 are lost");
        let found = judge_loss(&[one(1, 60), one(2, 97)], "eth0", "").expect("a finding");
        assert_eq!(found.severity, Severity::Broken);
        assert_eq!(
            found.about,
            "of 100 packets to 192.0.2.1, 192.0.2.2 and back, up to 40 are lost"
        );
        assert!(found.fix.starts_with("here and on 192.0.2.1: flannelctl check"), "{found:?}");
    }

    #[test]
    fn the_largest_packet_is_found_to_the_byte_in_two_rounds() {
        for limit in [577, 1279, 1399, 1400, 1450, 8_000] {
            let (mut passes, mut too_large) = (576, 9_000);
            let mut rounds = 0;
            loop {
                let tried = between(passes, too_large);
                if tried.is_empty() {
                    break;
                }
                passes =
                    tried.iter().copied().filter(|size| *size <= limit).max().unwrap_or(passes);
                let larger = tried.iter().copied().filter(|size| *size > limit);
                too_large = larger.min().unwrap_or(too_large);
                rounds += 1;
            }
            assert!(passes == limit && rounds <= 4, "{limit}: {passes} after {rounds}");
        }
    }
}
