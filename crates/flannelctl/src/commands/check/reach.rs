//! Whether other nodes are there at all, whether their ports are open, and how large a packet may be on the way to them:
//! before flannel is asked, the network below it.

use std::net::IpAddr;

use flannel_kernel::look::{self, Kernel};

use super::echo::{self, Asked};
use super::finding::Finding;
use super::ports;
use super::surroundings::{Network, Surroundings};

const SUBJECT: &str = "reach";
/// So many peers are asked.
const SAMPLE: usize = 64;
const SMALL: u32 = 64;
/// What tunnels, lines and clouds leave of 1500, and of 9000.
const SIZES: [u32; 24] = [
    8951, 8900, 8500, 4000, 1492, 1480, 1476, 1472, 1462, 1460, 1450, 1440, 1430, 1420, 1412, 1400,
    1380, 1360, 1340, 1320, 1300, 1280, 1200, 576,
];

/// What came back of one peer.
struct Reached {
    peer: IpAddr,
    answers: bool,
    /// Without a gateway between.
    beside: bool,
}

/// With paths that carry less than the card does.
pub(super) fn look(around: &Surroundings) -> (Vec<Finding>, Vec<(IpAddr, u32)>) {
    let (mut findings, mut narrow) = (Vec::new(), Vec::new());
    for network in &around.networks {
        let Some(mtu) = network.underlay.as_ref().map(|underlay| underlay.mtu) else { continue };
        let peers = peers(network);
        let Ok(reached) = ask(&peers) else { continue };
        findings.extend(judge(&reached));
        let there: Vec<IpAddr> =
            reached.iter().filter(|one| one.answers).map(|one| one.peer).collect();
        // What the daemon has found out of a node is more exact.
        let told: Vec<IpAddr> = around.unreached_by_daemon().collect();
        let unknown: Vec<IpAddr> = there.iter().copied().filter(|ip| !told.contains(ip)).collect();
        findings.extend(ports::look(network, &unknown));
        narrow.extend(narrow_paths(&there, mtu).unwrap_or_default());
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
    let asked: Vec<Asked> = peers.iter().map(|peer| (*peer, SMALL)).collect();
    let answered = echo::answered(&asked)?;
    let mut reached = Vec::new();
    for (number, peer) in peers.iter().enumerate() {
        let way = kernel.decide(look::Asked { dst: *peer, from: None })?;
        let beside = way.is_ok_and(|way| way.via.is_none());
        reached.push(Reached { peer: *peer, answers: answered.contains(&number), beside });
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
    let silent: Vec<&Reached> = reached.iter().filter(|one| !one.answers).collect();
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
    let usual = reached.iter().any(|one| one.answers && one.beside);
    let broken = usual && silent.iter().any(|one| one.beside);
    vec![match broken {
        true => Finding::broken(SUBJECT, what, why, fix),
        false => Finding::warning(SUBJECT, what, why, fix),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::finding::Severity;

    #[test]
    fn who_does_not_answer_beside_others_that_do_is_cut_off() {
        let one =
            |last: u8, answers, beside| Reached { peer: [192, 0, 2, last].into(), answers, beside };
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
}
