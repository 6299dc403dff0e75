//! The present by every clock that decisions depend on. It is passed in, so that a node can be run by a clock of a test.

use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

/// Timers stand still while the machine sleeps, so this is the longest wait before the clock is read again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    /// The instant by the clock that goes on while the machine sleeps.
    pub(super) uptime: Uptime,
    /// The instant by the clock that people and stores use.
    pub(super) time: SystemTime,
}

impl Now {
    pub(super) fn read() -> Self {
        Self { instant: Instant::now(), uptime: Uptime::read(), time: SystemTime::now() }
    }
}

#[cfg(test)]
impl Now {
    pub(super) fn for_test() -> Self {
        Self::read()
    }

    pub(super) fn later(&self, wait: Duration) -> Self {
        Self { instant: self.instant + wait, uptime: self.uptime + wait, time: self.time + wait }
    }
}

/// Time since the machine was started, by a clock that nobody sets and that goes on while the machine sleeps: a lease ends
/// in its store while its node is suspended, so the node must know how long it was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Uptime(Duration);

impl Uptime {
    fn read() -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // The C library's function, like that of the other clocks: a simulation replaces it.
        // SAFETY: `now` outlives the call, which fills it in. Every kernel that this runs on has the clock.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    pub(super) fn next_look(self, now: &Now) -> Instant {
        now.instant + self.0.saturating_sub(now.uptime.0).min(LONGEST_WAIT)
    }
}

impl Add<Duration> for Uptime {
    type Output = Self;

    fn add(self, pause: Duration) -> Self {
        Self(self.0 + pause)
    }
}
