//! Whether other nodes are there at all, whether packets are lost on the way to them, whether their ports are open, and
//! how large a packet may be: before flannel is asked, the network below it.

use std::net::IpAddr;

use flannel_kernel::look::{self, Kernel};

use super::echo::{self, Asked};
use super::finding::Finding;
use super::ports;
use super::surroundings::{Network, Surroundings};

const SUBJECT: &str = "reach";
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
pub(super) fn look(around: &Surroundings) -> (Vec<Finding>, Vec<(IpAddr, u32)>) {
    let (mut findings, mut narrow) = (Vec::new(), Vec::new());
    for network in &around.networks {
        let Some(underlay) = &network.underlay else { continue };
        let Ok(reached) = ask(&peers(network)) else { continue };
        findings.extend(judge(&reached));
        findings.extend(judge_loss(&reached, underlay.link.as_str()));
        // Where packets are lost, one that is not answered says nothing.
        let there = reached.iter().filter(|one| one.answers() && !one.is_lossy());
        let there: Vec<IpAddr> = there.map(|one| one.peer).collect();
        // What the daemon has found out of a node is more exact.
        let told: Vec<IpAddr> = around.unreached_by_daemon().collect();
        let unknown: Vec<IpAddr> = there.iter().copied().filter(|ip| !told.contains(ip)).collect();
        findings.extend(ports::look(network, &unknown));
        narrow.extend(narrow_paths(&there, underlay.mtu).unwrap_or_default());
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
    for (peer, answered) in peers.iter().zip(echo::counted(peers, TIMES)?) {
        let way = kernel.decide(look::Asked { dst: *peer, from: None })?;
        let beside = way.is_ok_and(|way| way.via.is_none());
        reached.push(Reached { peer: *peer, asked: TIMES, answered, beside });
    }
    let mut doubtful: Vec<&mut Reached> =
        reached.iter_mut().filter(|one| one.answers() && one.answered < one.asked).collect();
    let again: Vec<IpAddr> = doubtful.iter().map(|one| one.peer).collect();
    for (one, answered) in doubtful.iter_mut().zip(echo::counted(&again, MORE_TIMES)?) {
        one.asked += MORE_TIMES;
        one.answered += answered;
    }
    Ok(reached)
}

/// Of those that answer at all, those that a full packet does not reach, with what does.
fn narrow_paths(peers: &[IpAddr], mtu: u32) -> std::io::Result<Vec<(IpAddr, u32)>> {
    let full: Vec<Asked> = peers.iter().map(|peer| (*peer, mtu)).collect();
    let answered = echo::answered(&full)?;
    let narrow: Vec<IpAddr> = peers
        .iter()
        .enumerate()
        .filter(|(number, _)| !answered.contains(number))
        .map(|(_, peer)| *peer)
        .collect();
    let sizes = || SIZES.iter().copied().filter(|size| *size < mtu);
    let asked: Vec<Asked> =
        narrow.iter().flat_map(|peer| sizes().map(|size| (*peer, size))).collect();
    let answered = echo::answered(&asked)?;
    let largest = |peer: IpAddr| {
        let of = asked.iter().enumerate().filter(|(_, (ip, _))| *ip == peer);
        of.filter(|(number, _)| answered.contains(number)).map(|(_, (_, size))| *size).max()
    };
    Ok(narrow.into_iter().filter_map(|peer| Some((peer, largest(peer)?))).collect())
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
        true => Finding::broken(SUBJECT, what, why, fix),
        false => Finding::warning(SUBJECT, what, why, fix),
    }]
}

fn judge_loss(reached: &[Reached], link: &str) -> Option<Finding> {
    let lossy: Vec<&Reached> = reached.iter().filter(|one| one.is_lossy()).collect();
    let worst = lossy.iter().max_by_key(|one| one.lost())?;
    let names: Vec<String> = lossy.iter().take(5).map(|one| one.peer.to_string()).collect();
    let more = if lossy.len() > names.len() { ", …" } else { "" };
    let what = format!(
        "of 100 packets to {}{more} and back, {} are lost",
        names.join(", "),
        if lossy.len() > 1 { format!("up to {}", worst.lost()) } else { worst.lost().to_string() }
    );
    let why = "connections of pods to that node are slow and stall, though both ends are well; or something on the way limits pings";
    let fix = format!(
        "here and on {}: ip -s link show {link}; tc -s qdisc show dev {link}; ethtool -S {link}: whose count of drops or \
         errors grows; then cables, switches and the hypervisor between",
        worst.peer
    );
    Some(match worst.lost() >= VERY_LOSSY {
        true => Finding::broken(SUBJECT, what, why, fix),
        false => Finding::warning(SUBJECT, what, why, fix),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::finding::Severity;

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
            found[0].what.starts_with("1 of 2 nodes do not answer a ping: 192.0.2.2"),
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
        assert_eq!(judge_loss(&[one(1, 100), one(2, 98), one(3, 0)], "eth0"), None);
        let found = judge_loss(&[one(1, 100), one(2, 97)], "eth0").expect("a finding");
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.what, "of 100 packets to 192.0.2.2 and back, 3 are lost");
        let found = judge_loss(&[one(1, 60), one(2, 97)], "eth0").expect("a finding");
        assert_eq!(found.severity, Severity::Broken);
        assert_eq!(
            found.what,
            "of 100 packets to 192.0.2.1, 192.0.2.2 and back, up to 40 are lost"
        );
        assert!(found.fix.starts_with("here and on 192.0.2.1: ip -s link show eth0"), "{found:?}");
    }
}
