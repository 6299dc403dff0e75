//! What a test pod says to packets, without a kernel, for fuzzers and tests: packets in, packets out.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::PORT;
use crate::packet::{self, Content, Flow, Segment};
use crate::pod::{Outgoing, PodTalk, Target};

const TICK: Duration = Duration::from_millis(20);

/// A test pod that is asking another one.
pub struct AskingPod {
    address: IpAddr,
    other: IpAddr,
    talk: PodTalk,
    now: Duration,
}

impl AskingPod {
    /// Two pods that ask each other.
    pub fn pair() -> (Self, Self) {
        let [one, two] = [1, 2].map(|node| IpAddr::from(Ipv4Addr::new(10, 5, node, 254)));
        (Self::new(one, two), Self::new(two, one))
    }

    fn new(address: IpAddr, other: IpAddr) -> Self {
        let mut talk = PodTalk::new(vec![address], PORT, 1450, fastrand::Rng::with_seed(1));
        let node = other.to_string();
        talk.ask([Target { node, address: other, node_seen_as: vec![address] }]);
        Self { address, other, talk, now: Duration::ZERO }
    }

    /// What the pod answers to a packet.
    pub fn receive(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        self.talk.receive(packet, self.now)
    }

    /// What the pod sends by itself, a little later.
    pub fn tick(&mut self) -> Vec<Vec<u8>> {
        self.now += TICK;
        let sent = self.talk.tick(self.now).into_iter().map(|out| match out {
            Outgoing::Packet(bytes) | Outgoing::OfNode(_, bytes) => bytes,
        });
        sent.collect()
    }

    /// A datagram from the other pod.
    pub fn datagram(&self, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
        self.packet(ports, &Content::Udp(data.to_vec()))
    }

    /// A segment of TCP from the other pod.
    pub fn segment(
        &self,
        ports: (u16, u16),
        (seq, ack): (u32, u32),
        syn: bool,
        data: &[u8],
    ) -> Vec<u8> {
        let segment = Segment { seq, ack, syn, rst: false, data: data.to_vec() };
        self.packet(ports, &Content::Tcp(segment))
    }

    fn packet(&self, (from, to): (u16, u16), content: &Content) -> Vec<u8> {
        let flow = Flow { from: (self.other, from), to: (self.address, to) };
        packet::write(&flow, content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many packets follow from one that comes to the first pod, whose answers the second gets and back.
    fn packets_after(packet: Vec<u8>, one: &mut AskingPod, two: &mut AskingPod) -> usize {
        let (mut packet, mut count) = (Some(packet), 0);
        while let Some(said) = packet.filter(|_| count < 100) {
            let pod = if count % 2 == 0 { &mut *one } else { &mut *two };
            (packet, count) = (pod.receive(&said), count + 1);
        }
        count
    }

    #[test]
    fn pods_do_not_answer_each_others_answers_for_ever() {
        let (mut one, mut two) = AskingPod::pair();
        // As if the other's own port had sent it.
        let syn = one.segment((PORT, PORT), (7, 0), true, &[]);
        assert!(packets_after(syn, &mut one, &mut two) <= 3);
        let question = crate::exchange::question(9, 64);
        let asked = one.datagram((PORT, PORT), &question);
        assert!(packets_after(asked, &mut one, &mut two) <= 3);
        let asked = one.segment((PORT, PORT), (8, 0), false, &question);
        assert!(packets_after(asked, &mut one, &mut two) <= 3);
    }
}
