//! The server's time: what the clock said at the start, and from there on only forward and never in
//! jumps, whoever sets the clock meanwhile.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::ledger::Millis;

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    started: Instant,
    at: Millis,
}

impl Clock {
    pub(super) fn start() -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), at: at.as_millis() as Millis }
    }

    pub(super) fn now(&self) -> Millis {
        self.at + self.started.elapsed().as_millis() as Millis
    }
}
