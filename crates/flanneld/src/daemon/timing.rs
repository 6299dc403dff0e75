//! How long things take and when they are tried again.

use std::time::{Duration, Instant};

/// Between two looks for a network config.
pub(super) const CONFIG_POLL: Duration = Duration::from_secs(1);
/// How often the log says that there is none.
pub(super) const CONFIG_REMINDER: Duration = Duration::from_secs(10);
/// Between two looks for a subnet that is yet to be assigned to this node.
pub(super) const ASSIGNMENT_POLL: Duration = Duration::from_secs(2);
/// How often the log says that it is not.
pub(super) const ASSIGNMENT_REMINDER: Duration = Duration::from_secs(60);
/// A peer whose entries the kernel keeps refusing holds up readiness this long, no longer.
pub(super) const PATIENCE_WITH_PEERS: Duration = Duration::from_secs(30);
pub(super) const SUBNET_FILE_RETRY: Duration = Duration::from_secs(5);
/// Between two looks whether it is still there and says the same.
pub(super) const SUBNET_FILE_LOOK: Duration = Duration::from_secs(2);
/// What is not written by then is not about to be: peers that ask are told so.
pub(super) const ABOUT_TO_BE_WRITTEN: Duration = Duration::from_secs(1);
/// Between two looks at who of the peers lacks something, as long as anything is missing.
pub(super) const LOOK_FOR_INCOMPLETE_PEERS: Duration = Duration::from_secs(5);
/// What was missing and has been there for so long is there to stay: whoever undoes entries again and again does it sooner.
pub(super) const THERE_TO_STAY: Duration = Duration::from_secs(3);
/// Start-up is over by then, and what it needed is free: memory, and pages of the program.
pub(super) const TIDY_AFTER: Duration = Duration::from_secs(1);
/// What comes once after it, such as the first probes and rules, is over too.
pub(super) const TIDY_AGAIN: Duration = Duration::from_secs(2);
/// From then on: comparisons and other rare work need pages of the program for a moment.
pub(super) const TIDY_EVERY: Duration = Duration::from_secs(600);
/// How long a peer that is missing from a whole new list is still sent to. A store restored from an
/// old backup has forgotten nodes that are alive; they write themselves back within seconds.
pub(super) const GRACE_FOR_THE_VANISHED: Duration = Duration::from_secs(60);

pub(super) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
