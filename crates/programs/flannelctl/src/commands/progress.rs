//! A line of progress for who waits: after three seconds, on standard error, and once.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::daemon::plain;

const UNTIL_SAID: Duration = Duration::from_secs(3);

/// Says what is being done, unless it is dropped before.
pub(crate) struct Progress(
    #[expect(dead_code, reason = "the thread ends when it is dropped")] Sender<()>,
);

impl Progress {
    pub(crate) fn of(what: &str) -> Self {
        let (ended, wait) = channel();
        let what = plain(what);
        std::thread::spawn(move || {
            if wait.recv_timeout(UNTIL_SAID) == Err(RecvTimeoutError::Timeout) {
                let _ = writeln!(std::io::stderr(), "{what} …");
            }
        });
        Self(ended)
    }
}
