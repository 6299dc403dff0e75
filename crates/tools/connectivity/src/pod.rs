//! All conversations of a test pod: it answers questions and asks others, a few at a time. Pure: packets in and out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::packet::{self, Content, Flow};
use crate::protocol::TrialResult;
use crate::tcp_trial::{TcpAnswering, TcpTrial};
use crate::udp_trial::UdpTrial;

const SMALL: usize = 64;
const MAX_RUNNING_TRIALS: usize = 16;
/// Ports from which is asked, three for each conversation.
const PORTS: std::ops::Range<u16> = 20_000..60_000;

#[derive(Debug)]
pub(crate) struct PodTalk {
    addresses: Vec<IpAddr>,
    port: u16,
    mtu: u32,
    answering: TcpAnswering,
    waiting: VecDeque<Target>,
    running: Vec<Job>,
    rng: fastrand::Rng,
}

#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its node, as the request names it.
    pub(crate) node: String,
    pub(crate) address: IpAddr,
    /// From which addresses it may seem to come what this node itself asks; nothing if it does not ask.
    pub(crate) node_seen_as: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outgoing {
    Packet(Vec<u8>),
    /// By the node itself.
    OfNode(IpAddr, Vec<u8>),
}

#[derive(Debug)]
struct Job {
    target: Target,
    own: IpAddr,
    began: Duration,
    /// Of TCP; those of the small and the full question follow.
    port: u16,
    tcp: TcpTrial,
    udp: UdpTrial,
    full: UdpTrial,
    node: Option<UdpTrial>,
}

impl PodTalk {
    pub(crate) fn new(addresses: Vec<IpAddr>, port: u16, mtu: u32, rng: fastrand::Rng) -> Self {
        Self {
            addresses,
            port,
            mtu,
            answering: TcpAnswering::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            rng,
        }
    }

    pub(crate) fn ask(&mut self, targets: impl IntoIterator<Item = Target>) {
        self.waiting.extend(targets);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(crate) fn receive(&mut self, packet: &[u8], now: Duration) -> Option<Vec<u8>> {
        let (flow, content) = packet::read(packet)?;
        if let Content::Complaint(words) = &content {
            self.job(flow.to.0, flow.from.1)?.complain(flow.from.1, words);
            return None;
        }
        if !self.addresses.contains(&flow.to.0) {
            return None;
        }
        if flow.to.1 != self.port {
            self.job(flow.from.0, flow.to.1)?.receive(flow.to.1, &content, now);
            return None;
        }
        let answer = match content {
            Content::Udp(data) => Content::Udp(crate::exchange::answer(&data, flow.from.0)?),
            Content::Tcp(segment) => Content::Tcp(self.answering.receive(&flow, &segment, now)?),
            Content::Complaint(_) => return None,
        };
        Some(packet::write(&flow.back(), &answer))
    }

    /// What came back to the node itself.
    pub(crate) fn receive_at_node(&mut self, from: IpAddr, data: &[u8], now: Duration) {
        for job in self.running.iter_mut().filter(|job| job.target.address == from) {
            if let Some(node) = &mut job.node {
                node.receive(data, now.saturating_sub(job.began));
            }
        }
    }

    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Outgoing> {
        while self.running.len() < MAX_RUNNING_TRIALS
            && let Some(target) = self.waiting.pop_front()
        {
            self.begin(target, now);
        }
        self.running.iter_mut().flat_map(|job| job.tick(self.port, now)).collect()
    }

    pub(crate) fn finished(&mut self) -> Vec<TrialResult> {
        let ended = self.running.extract_if(.., |job| job.found().is_some());
        ended.filter_map(|job| job.found()).collect()
    }

    fn begin(&mut self, target: Target, now: Duration) {
        let is_v4 = target.address.is_ipv4();
        let Some(own) = self.addresses.iter().copied().find(|own| own.is_ipv4() == is_v4) else {
            return;
        };
        let size = |is_tcp| (self.mtu as usize).saturating_sub(packet::headers(is_v4, is_tcp));
        let mut number = || self.rng.u64(..);
        let seen_as = target.node_seen_as.clone();
        let job = Job {
            own,
            began: now,
            tcp: TcpTrial::new(number(), size(true), vec![own]),
            udp: UdpTrial::new(number(), SMALL, vec![own]),
            full: UdpTrial::new(number(), size(false), vec![own]),
            node: (!seen_as.is_empty()).then(|| UdpTrial::new(number(), SMALL, seen_as)),
            port: loop {
                let port = self.rng.u16(PORTS);
                if self.running.iter().all(|job| job.port.abs_diff(port) > 2) {
                    break port;
                }
            },
            target,
        };
        self.running.push(job);
    }

    /// The conversation with somebody from a port of ours.
    fn job(&mut self, with: IpAddr, port: u16) -> Option<&mut Job> {
        self.running
            .iter_mut()
            .find(|job| job.target.address == with && (job.port..job.port + 3).contains(&port))
    }
}

impl Job {
    fn tick(&mut self, to: u16, now: Duration) -> Vec<Outgoing> {
        let now = now.saturating_sub(self.began);
        let (own, other, port) = (self.own, self.target.address, self.port);
        let packet = |offset: u16, content| {
            let flow = Flow { from: (own, port + offset), to: (other, to) };
            Outgoing::Packet(packet::write(&flow, &content))
        };
        let tcp = self.tcp.tick(now).map(|segment| packet(0, Content::Tcp(segment)));
        let udp = self.udp.tick(now).map(|data| packet(1, Content::Udp(data)));
        let full = self.full.tick(now).map(|data| packet(2, Content::Udp(data)));
        let node = self.node.as_mut().and_then(|node| node.tick(now));
        let node = node.map(|data| Outgoing::OfNode(other, data));
        [tcp, udp, full, node].into_iter().flatten().collect()
    }

    fn receive(&mut self, port: u16, content: &Content, now: Duration) {
        let now = now.saturating_sub(self.began);
        match (content, port - self.port) {
            (Content::Tcp(segment), 0) => self.tcp.receive(segment, now),
            (Content::Udp(data), 1) => self.udp.receive(data, now),
            (Content::Udp(data), 2) => self.full.receive(data, now),
            _ => {}
        }
    }

    fn complain(&mut self, port: u16, words: &str) {
        let complaint = match port - self.port {
            0 => &mut self.tcp.complaint,
            1 => &mut self.udp.complaint,
            _ => &mut self.full.complaint,
        };
        *complaint = Some(words.to_owned());
    }

    fn found(&self) -> Option<TrialResult> {
        let node = match &self.node {
            Some(node) => Some(node.outcome.clone()?),
            None => None,
        };
        Some(TrialResult {
            to: self.target.node.clone(),
            address: self.target.address,
            tcp: self.tcp.outcome.clone()?,
            udp: self.udp.outcome.clone()?,
            full: self.full.outcome.clone()?,
            node,
            cause: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::TrialOutcome;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn pod(addresses: &[&str]) -> PodTalk {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        PodTalk::new(addresses, 8476, 1450, fastrand::Rng::with_seed(1))
    }

    fn target(address: &str, node_seen_as: Vec<IpAddr>) -> Target {
        Target { node: "10.5.2.0-24".to_owned(), address: ip(address), node_seen_as }
    }

    /// Both of them, with a path between that `passes` packets, until the first has nobody left to ask.
    fn talk(
        one: &mut PodTalk,
        two: &mut PodTalk,
        passes: impl Fn(&[u8]) -> bool,
    ) -> Vec<TrialResult> {
        let (mut now, mut found) = (Duration::ZERO, Vec::new());
        while !one.is_idle() {
            for out in one.tick(now) {
                match out {
                    Outgoing::Packet(packet) => {
                        let answer = passes(&packet).then(|| two.receive(&packet, now)).flatten();
                        if let Some(answer) = answer.filter(|answer| passes(answer)) {
                            one.receive(&answer, now);
                        }
                    }
                    Outgoing::OfNode(to, data) => {
                        let answer = crate::exchange::answer(&data, ip("10.5.1.0"));
                        one.receive_at_node(to, &answer.expect("an answer"), now);
                    }
                }
            }
            found.extend(one.finished());
            now += Duration::from_millis(20);
        }
        found
    }

    #[test]
    fn a_pod_reaches_another_in_both_families() {
        let mut one = pod(&["10.5.1.254", "fd00:1::254"]);
        let mut two = pod(&["10.5.2.254", "fd00:2::254"]);
        one.ask([target("10.5.2.254", vec![ip("10.5.1.0")]), target("fd00:2::254", vec![])]);
        let found = talk(&mut one, &mut two, |packet| packet.len() <= 1450);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(TrialResult::is_whole), "{found:?}");
        assert!(found[0].node.is_some() && found[1].node.is_none());
    }

    #[test]
    fn a_path_that_carries_less_fails_in_what_is_large_alone() {
        let (mut one, mut two) = (pod(&["10.5.1.254"]), pod(&["10.5.2.254"]));
        one.ask([target("10.5.2.254", vec![])]);
        let found = talk(&mut one, &mut two, |packet| packet.len() <= 1400).remove(0);
        assert!(matches!(found.udp, TrialOutcome::Passed(_)), "{found:?}");
        assert!(matches!(found.full, TrialOutcome::Failed(_)), "{found:?}");
        assert!(matches!(found.tcp, TrialOutcome::Failed(_)), "{found:?}");
    }

    #[test]
    fn many_are_asked_some_at_a_time() {
        let (mut one, mut two) = (pod(&["10.5.1.254"]), pod(&["10.5.2.254"]));
        one.ask((0..100).map(|_| target("10.5.2.254", vec![])));
        assert!(one.tick(Duration::ZERO).len() <= 3 * MAX_RUNNING_TRIALS);
        let found = talk(&mut one, &mut two, |_| true);
        assert_eq!(found.len(), 100);
    }
}
