//! A point in time by a clock that nobody sets and that goes on while the machine sleeps: a lease ends
//! in its store while its node is suspended, so the node must know how long it was away.

use std::ops::Add;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Timers stand still while the machine sleeps, so nobody waits longer than this before looking again.
const LOOK: Duration = Duration::from_secs(60);

/// Since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Uptime(Duration);

impl Uptime {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    pub(super) fn has_come(self) -> bool {
        self <= Self::now()
    }

    /// When to look whether it has come.
    pub(super) fn next_look(self) -> Instant {
        Instant::now() + self.0.saturating_sub(Self::now().0).min(LOOK)
    }
}

impl Add<Duration> for Uptime {
    type Output = Self;

    fn add(self, pause: Duration) -> Self {
        Self(self.0 + pause)
    }
}
