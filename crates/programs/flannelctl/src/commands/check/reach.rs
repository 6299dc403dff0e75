//! Whether other nodes are there at all, whether packets are lost on the way to them, whether their ports are open, and
//! how large a packet may be: before flannel is asked, the network below it.

use std::net::IpAddr;

use flannel_common::Family;
use flannel_kernel::look::{self, Kernel};

use super::echo::{self, SizedEcho};
use super::node_context::{Network, NodeContext};
use super::ports;
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Reach;
/// So many peers are asked.
const SAMPLE: usize = 64;
/// So often each of them is asked.
const TIMES: usize = 10;
/// And so often again, if some of these were answered and some were not.
const MORE_TIMES: usize = 90;
/// So many lost packets of a hundred are not chance.
const LOSSY: usize = 3;
/// With so many, connections stall.
const VERY_LOSSY: usize = 10;
/// What tunnels, lines and clouds leave of 1500, and of 9000.
/// Packets of full size that each of them is sent through the tunnel.
const FULL_TIMES: usize = 30;
/// So many sizes are tried at once.
const SIZES_AT_ONCE: u32 = 64;
const SIZES: [u32; 24] = [
    8951, 8900, 8500, 4000, 1492, 1480, 1476, 1472, 1462, 1460, 1450, 1440, 1430, 1420, 1412, 1400,
    1380, 1360, 1340, 1320, 1300, 1280, 1200, 576,
];

/// What came back of one peer.
struct Reached {
    peer: IpAddr,
    asked: usize,
    answered: usize,
    /// Without a gateway between.
    beside: bool,
}

impl Reached {
    fn answers(&self) -> bool {
        self.answered > 0
    }

    /// Of a hundred packets.
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
    for network in &context.networks {
        let Some(underlay) = &network.underlay else { continue };
        let Ok(reached) = ask(&peers(network)) else { continue };
        findings.extend(judge(&reached));
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

fn ask(peers: &[IpAddr]) -> anyhow::Result<Vec<Reached>> {
    let mut kernel = Kernel::open()?;
    let mut reached = Vec::new();
    for (peer, answered) in peers.iter().zip(echo::counted(peers, TIMES, echo::SMALL)?) {
        let way = kernel.decide(look::RouteQuery { dst: *peer, from: None, protocol: None })?;
        let beside = way.is_ok_and(|way| way.via.is_none());
        reached.push(Reached { peer: *peer, asked: TIMES, answered, beside });
    }
    let mut doubtful: Vec<&mut Reached> =
        reached.iter_mut().filter(|one| one.answers() && one.answered < one.asked).collect();
    let again: Vec<IpAddr> = doubtful.iter().map(|one| one.peer).collect();
    for (one, answered) in doubtful.iter_mut().zip(echo::counted(&again, MORE_TIMES, echo::SMALL)?)
    {
        one.asked += MORE_TIMES;
        one.answered += answered;
    }
    Ok(reached)
}

/// Nodes that answer beside the tunnel, asked through it: with small packets, and with large ones.
fn through_tunnel(network: &Network, nodes: &[IpAddr]) -> anyhow::Result<Vec<Finding>> {
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
    let inside: Vec<IpAddr> = ends.iter().map(|(_, end)| *end).collect();
    let mut reached: Vec<Reached> = Vec::new();
    for ((node, _), answered) in ends.iter().zip(echo::counted(&inside, TIMES, echo::SMALL)?) {
        reached.push(Reached { peer: *node, asked: TIMES, answered, beside: true });
    }
    let doubtful = |one: &Reached| one.answers() && one.answered < one.asked;
    let again: Vec<usize> = (0..reached.len()).filter(|at| doubtful(&reached[*at])).collect();
    let ends_again: Vec<IpAddr> = again.iter().map(|at| inside[*at]).collect();
    for (at, more) in again.iter().zip(echo::counted(&ends_again, MORE_TIMES, echo::SMALL)?) {
        reached[*at].asked += MORE_TIMES;
        reached[*at].answered += more;
    }
    let link = underlay.link.as_str();
    let small = judge_loss(&reached, link, " through the tunnel");
    // Of those that answer all small ones.
    let well: Vec<usize> =
        (0..reached.len()).filter(|at| reached[*at].answered == reached[*at].asked).collect();
    let ends_well: Vec<IpAddr> = well.iter().map(|at| inside[*at]).collect();
    let full: Vec<Reached> = well
        .iter()
        .zip(echo::counted(&ends_well, FULL_TIMES, mtu)?)
        .map(|(at, answered)| Reached {
            peer: reached[*at].peer,
            asked: FULL_TIMES,
            answered,
            beside: true,
        })
        .collect();
    let none = full.iter().find(|one| !one.answers()).map(|one| {
        Finding::broken(
            LAYER,
            format!(
                "no packet of {mtu} bytes comes back through the tunnel from {}, and small ones do",
                one.peer
            ),
            "connections of pods are made, and hang with the first full packet; on which side they are lost is not known",
            format!(
                "here and on {}: flannelctl check names rules, queues and filters that drop long packets; flannelctl trace \
                 --live between two pods says where they are last seen",
                one.peer
            ),
        )
    });
    let sized = format!(", of {mtu} bytes, through the tunnel");
    Ok(small.into_iter().chain(none).chain(judge_loss(&full, link, &sized)).collect())
}

/// Of those that answer at all, those that a full packet does not reach, with what does.
fn narrow_paths(peers: &[IpAddr], mtu: u32) -> std::io::Result<Vec<(IpAddr, u32)>> {
    let full: Vec<SizedEcho> = peers.iter().map(|peer| (*peer, mtu)).collect();
    let answered = echo::answered(&full)?;
    let narrow: Vec<IpAddr> = peers
        .iter()
        .enumerate()
        .filter(|(number, _)| !answered.contains(number))
        .map(|(_, peer)| *peer)
        .collect();
    let mut found = Vec::new();
    for peer in narrow {
        let sizes = SIZES.iter().copied().filter(|size| *size < mtu).collect();
        let (mut passes, mut too_large) = (0, mtu);
        let mut tried: Vec<u32> = sizes;
        // First what is usual, then all that is between, until it is known to the byte.
        while !tried.is_empty() {
            let asked: Vec<SizedEcho> = tried.iter().map(|size| (peer, *size)).collect();
            let answered = echo::answered(&asked)?;
            let passing = tried.iter().enumerate().filter(|(at, _)| answered.contains(at));
            passes = passing.map(|(_, size)| *size).max().unwrap_or(passes).max(passes);
            let larger = tried.iter().copied().filter(|size| *size > passes);
            too_large = larger.min().unwrap_or(too_large).min(too_large);
            tried = match passes {
                0 => Vec::new(),
                _ => between(passes, too_large),
            };
        }
        found.extend((passes > 0).then_some((peer, passes)));
    }
    Ok(found)
}

/// Sizes between one that passes and one that does not, evenly; none if there is none.
fn between(passes: u32, too_large: u32) -> Vec<u32> {
    let room = too_large.saturating_sub(passes + 1);
    let step = room.div_ceil(SIZES_AT_ONCE).max(1);
    (passes + 1..too_large).step_by(step as usize).collect()
}

fn judge(reached: &[Reached]) -> Vec<Finding> {
    let silent: Vec<&Reached> = reached.iter().filter(|one| !one.answers()).collect();
    let Some(first) = silent.first() else { return Vec::new() };
    let names: Vec<String> = silent.iter().take(5).map(|one| one.peer.to_string()).collect();
    let more = if silent.len() > names.len() { ", …" } else { "" };
    let what = format!(
        "{} of {} nodes do not answer a ping: {}{more}",
        silent.len(),
        reached.len(),
        names.join(", ")
    );
    let why = "the network below flannel is cut between here and there, or that node is down; or it answers no ICMP";
    let fix = format!(
        "ping {}; look whether it runs, and at cables, security groups and firewalls between",
        first.peer
    );
    // Where others of the same wire answer, it is not for want of ICMP.
    let usual = reached.iter().any(|one| one.answers() && one.beside);
    let broken = usual && silent.iter().any(|one| one.beside);
    vec![match broken {
        true => Finding::broken(LAYER, what, why, fix),
        false => Finding::warning(LAYER, what, why, fix),
    }]
}

/// `how`: they were sent.
fn judge_loss(reached: &[Reached], link: &str, how: &str) -> Option<Finding> {
    let lossy: Vec<&Reached> = reached.iter().filter(|one| one.is_lossy()).collect();
    let worst = lossy.iter().max_by_key(|one| one.lost())?;
    let names: Vec<String> = lossy.iter().take(5).map(|one| one.peer.to_string()).collect();
    let more = if lossy.len() > names.len() { ", …" } else { "" };
    let what = format!(
        "of 100 packets to {}{more} and back{how}, {} are lost",
        names.join(", "),
        if lossy.len() > 1 { format!("up to {}", worst.lost()) } else { worst.lost().to_string() }
    );
    let why = "connections of pods to that node are slow and stall; on which side, or between, is not known; or something on the way limits pings";
    let fix = format!(
        "here and on {}: flannelctl check names rules, queues and filters that drop; ip -s link show {link} and ethtool -S \
         {link}: whose count of errors grows; then cables, switches and the hypervisor between",
        worst.peer
    );
    Some(match worst.lost() >= VERY_LOSSY {
        true => Finding::broken(LAYER, what, why, fix),
        false => Finding::warning(LAYER, what, why, fix),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flannel_state::Severity;

    #[test]
    fn who_does_not_answer_beside_others_that_do_is_cut_off() {
        let one = |last: u8, answers, beside| {
            let answered = if answers { TIMES } else { 0 };
            Reached { peer: [192, 0, 2, last].into(), asked: TIMES, answered, beside }
        };
        assert_eq!(judge(&[one(1, true, true), one(2, true, false)]), []);
        let found = judge(&[one(1, true, true), one(2, false, true)]);
        assert_eq!(found[0].severity, Severity::Broken);
        assert!(
            found[0].about.starts_with("1 of 2 nodes do not answer a ping: 192.0.2.2"),
            "{found:?}"
        );
        assert_eq!(
            judge(&[one(1, false, true)])[0].severity,
            Severity::Warning,
            "nobody may answer"
        );
        assert_eq!(
            judge(&[one(1, true, true), one(2, false, false)])[0].severity,
            Severity::Warning
        );
    }

    #[test]
    fn packets_that_are_lost_beyond_chance_are_told_of() {
        let one = |last: u8, answered| Reached {
            peer: [192, 0, 2, last].into(),
            asked: 100,
            answered,
            beside: true,
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
