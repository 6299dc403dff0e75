//! The server's time: the machine's clock at the start, and from there on only forward and never in jumps, whoever sets
//! that clock meanwhile. It stands still while the machine sleeps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flannel_store::Millis;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    at: Millis,
}

impl Clock {
    pub(crate) fn start(wall: Millis) -> Self {
        Self { started: Instant::now(), at: wall }
    }

    pub(crate) fn now(&self) -> Millis {
        self.at.saturating_add(self.started.elapsed().as_millis() as Millis)
    }
}

pub(crate) fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as Millis
}
