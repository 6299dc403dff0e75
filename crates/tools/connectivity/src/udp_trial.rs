//! One question in a datagram, asked again until it is answered or time is up.

use std::net::IpAddr;
use std::time::Duration;

use crate::exchange;
use crate::protocol::TrialOutcome;

pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(250);
pub(crate) const TRIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// Time counts from when it began.
#[derive(Debug, Default)]
pub(crate) struct UdpTrial {
    number: u64,
    size: usize,
    /// From which addresses it may seem to come.
    from: Vec<IpAddr>,
    next: Duration,
    /// What a router has said of it.
    pub(crate) complaint: Option<String>,
    pub(crate) outcome: Option<TrialOutcome>,
}

impl UdpTrial {
    pub(crate) fn new(number: u64, size: usize, from: Vec<IpAddr>) -> Self {
        Self { number, size: size.max(exchange::SMALLEST), from, ..Self::default() }
    }

    /// What is to be sent now, if something is.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.outcome.is_some() {
            return None;
        }
        if now >= TRIAL_TIMEOUT {
            self.outcome = Some(TrialOutcome::Failed(no_answer(self.complaint.take())));
            return None;
        }
        if now < self.next {
            return None;
        }
        self.next = now + RETRY_INTERVAL;
        Some(exchange::question(self.number, self.size))
    }

    pub(crate) fn receive(&mut self, data: &[u8], now: Duration) {
        if self.outcome.is_none()
            && let Some(seen) = exchange::seen(data, self.number, self.size)
        {
            self.outcome = Some(judge(seen, &self.from, now));
        }
    }
}

pub(crate) fn no_answer(complaint: Option<String>) -> String {
    complaint.unwrap_or_else(|| format!("no answer within {} s", TRIAL_TIMEOUT.as_secs()))
}

/// It came back: whether it had come from where it should.
pub(crate) fn judge(seen: IpAddr, from: &[IpAddr], after: Duration) -> TrialOutcome {
    if from.contains(&seen) {
        return TrialOutcome::Passed(after.as_micros() as u64);
    }
    let expected: Vec<String> = from.iter().map(ToString::to_string).collect();
    TrialOutcome::Failed(format!(
        "it arrives, but as if from {seen} instead of {}",
        expected.join(" or ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "10.5.1.254";

    fn own() -> IpAddr {
        OWN.parse().expect("an address")
    }

    #[test]
    fn it_asks_again_until_it_is_answered() {
        let mut trial = UdpTrial::new(7, 64, vec![own()]);
        let asked = trial.tick(Duration::ZERO).expect("a question");
        assert_eq!(trial.tick(RETRY_INTERVAL / 2), None);
        assert_eq!(trial.tick(RETRY_INTERVAL), Some(asked.clone()));
        let answer = exchange::answer(&asked, own()).expect("an answer");
        trial.receive(&answer, RETRY_INTERVAL);
        assert_eq!(trial.outcome, Some(TrialOutcome::Passed(250_000)));
        assert_eq!(trial.tick(2 * RETRY_INTERVAL), None);
    }

    #[test]
    fn what_arrives_from_another_address_was_masqueraded() {
        let mut trial = UdpTrial::new(7, 64, vec![own()]);
        let asked = trial.tick(Duration::ZERO).expect("a question");
        let answer = exchange::answer(&asked, "10.5.1.0".parse().expect("an address"));
        trial.receive(&answer.expect("an answer"), RETRY_INTERVAL);
        let Some(TrialOutcome::Failed(why)) = trial.outcome else { panic!("it failed") };
        assert!(why.contains("10.5.1.0 instead of 10.5.1.254"), "{why}");
    }

    #[test]
    fn what_is_not_answered_fails_with_what_a_router_said() {
        let mut trial = UdpTrial::new(7, 64, vec![own()]);
        trial.tick(Duration::ZERO);
        trial.complaint = Some("10.0.0.1 says no".to_owned());
        trial.tick(TRIAL_TIMEOUT);
        assert_eq!(trial.outcome, Some(TrialOutcome::Failed("10.0.0.1 says no".to_owned())));
    }
}
