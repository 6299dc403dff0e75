//! TCP as two test pods speak it: one segment at a time, and who asks repeats what was not answered. Questions of full
//! size are answered in order: enough to know whether TCP passes, also through a firewall.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::exchange;
use crate::packet::{Flow, Segment};
use crate::protocol::TrialOutcome;
use crate::udp_trial::{RETRY_INTERVAL, TRIAL_TIMEOUT, judge, no_answer};

const QUESTIONS: u32 = 8;
/// A conversation whose peer falls silent is forgotten after this time.
const CONVERSATION_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CONVERSATIONS: usize = 4096;

/// Who asks. Time counts from when it began.
#[derive(Debug, Default)]
pub(crate) struct TcpTrial {
    number: u64,
    /// Of a question, in bytes.
    size: usize,
    from: Vec<IpAddr>,
    first: u32,
    /// What the other side has begun to count from, once it is known.
    theirs: Option<u32>,
    answered: u32,
    next: Duration,
    /// What a router, or the other host, has said of it.
    pub(crate) complaint: Option<String>,
    pub(crate) outcome: Option<TrialOutcome>,
    ended: bool,
}

impl TcpTrial {
    pub(crate) fn new(number: u64, size: usize, from: Vec<IpAddr>) -> Self {
        let size = size.max(exchange::SMALLEST);
        Self { number, size, from, first: number as u32, ..Self::default() }
    }

    /// What is to be sent now, if something is.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<Segment> {
        if self.outcome.is_some() {
            let ended = std::mem::replace(&mut self.ended, true);
            return (!ended && self.theirs.is_some()).then(|| self.segment(true, Vec::new()));
        }
        if now >= TRIAL_TIMEOUT {
            let why = match (self.complaint.take(), self.theirs.is_some()) {
                (Some(complaint), _) => complaint,
                (None, false) => no_answer(None),
                (None, true) => format!("connected, but {} bytes do not come back", self.size),
            };
            self.outcome = Some(TrialOutcome::Failed(why));
            return self.tick(now);
        }
        if now < self.next {
            return None;
        }
        self.next = now + RETRY_INTERVAL;
        Some(match self.theirs {
            None => Segment { seq: self.first, syn: true, ..Segment::default() },
            Some(_) => self.segment(false, exchange::question(self.ask_number(), self.size)),
        })
    }

    pub(crate) fn receive(&mut self, segment: &Segment, now: Duration) {
        if self.outcome.is_some() {
            return;
        }
        if segment.rst {
            self.complaint = Some("the connection is refused: something rejects it".to_owned());
            return;
        }
        match self.theirs {
            None if segment.syn && segment.ack == self.first.wrapping_add(1) => {
                self.theirs = Some(segment.seq);
                self.next = Duration::ZERO;
            }
            Some(_) if segment.ack == self.seq().wrapping_add(self.size as u32) => {
                let Some(seen) = exchange::seen(&segment.data, self.ask_number(), self.size) else {
                    return;
                };
                self.answered += 1;
                self.next = Duration::ZERO;
                let judged = judge(seen, &self.from, now);
                if self.answered == QUESTIONS || matches!(judged, TrialOutcome::Failed(_)) {
                    self.outcome = Some(judged);
                }
            }
            _ => {}
        }
    }

    fn ask_number(&self) -> u64 {
        self.number.wrapping_add(u64::from(self.answered) + 1)
    }

    fn seq(&self) -> u32 {
        self.first.wrapping_add(1).wrapping_add(self.answered * self.size as u32)
    }

    fn segment(&self, rst: bool, data: Vec<u8>) -> Segment {
        let theirs = self.theirs.unwrap_or_default().wrapping_add(1);
        let ack = theirs.wrapping_add(self.answered * self.size as u32);
        Segment { seq: self.seq(), ack, syn: false, rst, data }
    }
}

/// Who answers. It never speaks first, and what it has said it says again when it is asked again.
#[derive(Debug, Default)]
pub(crate) struct TcpAnswering(BTreeMap<Flow, Conversation>);

#[derive(Debug)]
struct Conversation {
    /// What comes next of theirs, and what was said to what came last.
    next: u32,
    said: Segment,
    heard: Duration,
}

impl TcpAnswering {
    pub(crate) fn receive(
        &mut self,
        flow: &Flow,
        segment: &Segment,
        now: Duration,
    ) -> Option<Segment> {
        if segment.rst {
            self.0.remove(flow);
            return None;
        }
        if segment.syn {
            // Two that answered each other's answers would never end.
            if segment.ack != 0 {
                return None;
            }
            if self.0.len() >= MAX_CONVERSATIONS {
                self.0.retain(|_, it| now.saturating_sub(it.heard) < CONVERSATION_TIMEOUT);
            }
            if self.0.len() >= MAX_CONVERSATIONS {
                return None;
            }
            let next = segment.seq.wrapping_add(1);
            // The same again if the answer was lost.
            let seq = segment.seq.rotate_left(16);
            let said = Segment { seq, ack: next, syn: true, ..Segment::default() };
            self.0.insert(*flow, Conversation { next, said: said.clone(), heard: now });
            return Some(said);
        }
        let known = self.0.get_mut(flow)?;
        known.heard = now;
        let answer = exchange::answer(&segment.data, flow.from.0)?;
        let end = segment.seq.wrapping_add(segment.data.len() as u32);
        if segment.seq == known.next {
            let after = u32::from(known.said.syn) + known.said.data.len() as u32;
            known.next = end;
            known.said = Segment {
                seq: known.said.seq.wrapping_add(after),
                ack: end,
                data: answer,
                ..Segment::default()
            };
        }
        // Said again if it was lost.
        (end == known.next).then(|| known.said.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that loses what `lost` says, counted over both directions.
    fn talk(lost: impl Fn(u32) -> bool, size: usize) -> TrialOutcome {
        let from: IpAddr = "10.5.1.254".parse().expect("an address");
        let to: IpAddr = "10.5.2.254".parse().expect("an address");
        let flow = Flow { from: (from, 9000), to: (to, 8476) };
        let mut trial = TcpTrial::new(7, size, vec![from]);
        let mut answering = TcpAnswering::default();
        let (mut now, mut count) = (Duration::ZERO, 0);
        let mut passes = || {
            count += 1;
            !lost(count)
        };
        loop {
            while let Some(segment) = trial.tick(now) {
                let answer = passes().then(|| answering.receive(&flow, &segment, now)).flatten();
                if let Some(answer) = answer.filter(|_| passes()) {
                    trial.receive(&answer, now);
                }
            }
            if let Some(outcome) = trial.outcome {
                return outcome;
            }
            now += Duration::from_millis(50);
        }
    }

    #[test]
    fn a_connection_carries_what_is_asked_and_answered() {
        assert_eq!(talk(|_| false, 1400), TrialOutcome::Passed(0));
    }

    #[test]
    fn what_is_lost_on_the_way_is_sent_again() {
        let outcome = talk(|count| count % 4 == 0, 1400);
        assert!(matches!(outcome, TrialOutcome::Passed(_)), "{outcome:?}");
    }

    #[test]
    fn a_connection_that_is_not_made_is_told_from_one_over_which_nothing_comes_back() {
        let TrialOutcome::Failed(why) = talk(|_| true, 1400) else { panic!("it failed") };
        assert!(why.contains("no answer"), "{why}");
        let TrialOutcome::Failed(why) = talk(|count| count > 2, 1400) else { panic!("it failed") };
        assert!(why.contains("1400 bytes do not come back"), "{why}");
    }
}
