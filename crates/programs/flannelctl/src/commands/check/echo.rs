//! Asking many addresses at once whether they are there, by ICMP, with packets of a given size that nobody may cut.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_link::{ECHO_HEADER, Pinger};

/// There and back; what is not there by then is asked once more.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
const TRIES: usize = 2;
/// Between questions that are counted: a burst of them would itself be dropped by some.
const PACE: Duration = Duration::from_millis(10);
pub(super) const SMALL: u32 = 64;

pub(super) type SizedEcho = (IpAddr, u32);

pub(super) fn answered(all: &[SizedEcho]) -> io::Result<BTreeSet<usize>> {
    let targets: Vec<IpAddr> = all.iter().map(|(ip, _)| *ip).collect();
    let pinger = Pinger::open(&targets, false)?;
    let mut answered = BTreeSet::new();
    for _ in 0..TRIES {
        for (number, (ip, size)) in all.iter().enumerate() {
            if !answered.contains(&number) {
                send(&pinger, *ip, number, *size);
            }
        }
        collect(&pinger, ANSWER_TIMEOUT, all.len(), &mut answered)?;
    }
    Ok(answered)
}

/// Number of `times` questions that each peer has answered; they are sent with pauses, and not repeated.
pub(super) fn counted(peers: &[IpAddr], times: usize, size: u32) -> io::Result<Vec<usize>> {
    let mut counts = vec![0; peers.len()];
    if peers.is_empty() {
        return Ok(counts);
    }
    let pinger = Pinger::open(peers, false)?;
    let (total, mut answered) = (times * peers.len(), BTreeSet::new());
    for round in 0..times {
        for (number, ip) in peers.iter().enumerate() {
            send(&pinger, *ip, round * peers.len() + number, size);
        }
        collect(&pinger, PACE, usize::MAX, &mut answered)?;
    }
    collect(&pinger, ANSWER_TIMEOUT, total, &mut answered)?;
    let numbers = answered.into_iter().filter(|number| *number < total);
    numbers.for_each(|number| counts[number % peers.len()] += 1);
    Ok(counts)
}

fn send(pinger: &Pinger, to: IpAddr, number: usize, size: u32) {
    let around = if to.is_ipv4() { 20 } else { 40 };
    // What this host itself cannot send is not answered.
    let _ = pinger.send(to, number as u16, (size as usize).saturating_sub(around + ECHO_HEADER));
}

fn collect(
    pinger: &Pinger,
    timeout: Duration,
    enough: usize,
    answered: &mut BTreeSet<usize>,
) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    while answered.len() < enough
        && let Some((_, number)) = pinger.receive(deadline)?
    {
        answered.insert(usize::from(number));
    }
    Ok(())
}
