//! ICMP echo from inside a namespace, to one address or to many at once.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_link::Pinger;

/// How to ping.
#[derive(Clone, Copy, Debug)]
pub struct PingOptions {
    /// How long to go on until an answer came.
    pub limit: Duration,
    /// After what time an unanswered echo is sent again.
    pub interval: Duration,
    /// Bytes of payload; the packet has 28 more (IPv4) or 48 more (IPv6).
    pub payload: usize,
    /// Whether routers must not cut the packet into fragments.
    pub dont_fragment: bool,
}

impl Default for PingOptions {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(2),
            interval: Duration::from_millis(200),
            payload: 32,
            dont_fragment: false,
        }
    }
}

/// One answer per target: its round trip, or why there is none.
pub(crate) type Answers = Vec<Result<Duration, String>>;

/// Echoes to all targets from the network of the calling thread.
pub(crate) fn sweep(targets: &[IpAddr], options: PingOptions) -> io::Result<Answers> {
    let pinger = Pinger::open(targets, !options.dont_fragment)?;
    let mut sweep = Sweep {
        pinger,
        sequence: 0,
        sent: HashMap::new(),
        answers: vec![Err("no answer".into()); targets.len()],
    };
    let deadline = Instant::now() + options.limit;
    loop {
        for (index, &target) in targets.iter().enumerate() {
            if sweep.answers[index].is_err() {
                sweep.send(index, target, options.payload);
                // Answers must not pile up behind a long list of targets.
                sweep.receive(targets, Instant::now())?;
            }
        }
        sweep.receive(targets, deadline.min(Instant::now() + options.interval))?;
        if sweep.answers.iter().all(Result::is_ok) || Instant::now() >= deadline {
            return Ok(sweep.answers);
        }
    }
}

struct Sweep {
    pinger: Pinger,
    sequence: u16,
    sent: HashMap<u16, (usize, Instant)>,
    answers: Answers,
}

impl Sweep {
    fn send(&mut self, index: usize, target: IpAddr, payload: usize) {
        self.sequence = self.sequence.wrapping_add(1);
        let now = Instant::now();
        match self.pinger.send(target, self.sequence, payload) {
            Ok(()) => {
                self.sent.insert(self.sequence, (index, now));
            }
            Err(error) => self.answers[index] = Err(error.to_string()),
        }
    }

    /// Takes in answers until all are there or the time has come.
    fn receive(&mut self, targets: &[IpAddr], until: Instant) -> io::Result<()> {
        while self.answers.iter().any(Result::is_err)
            && let Some((from, sequence)) = self.pinger.receive(until)?
        {
            let now = Instant::now();
            if let Some(&(index, sent)) = self.sent.get(&sequence)
                && targets[index] == from
                && self.answers[index].is_err()
            {
                self.answers[index] = Ok(now - sent);
            }
        }
        Ok(())
    }
}
