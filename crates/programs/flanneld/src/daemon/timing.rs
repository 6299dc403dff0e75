//! How long things take and when they are tried again.

use std::time::Duration;

/// Between two looks for a network config.
pub(super) const CONFIG_POLL: Duration = Duration::from_secs(1);
/// How often the log says that there is none.
pub(super) const CONFIG_REMINDER: Duration = Duration::from_secs(10);
/// Between two looks for a subnet that is yet to be assigned to this node.
pub(super) const ASSIGNMENT_POLL: Duration = Duration::from_secs(2);
/// How often the log says that it is not.
pub(super) const ASSIGNMENT_REMINDER: Duration = Duration::from_secs(60);
/// A peer whose entries the kernel keeps refusing holds up readiness this long, no longer.
pub(super) const REFUSED_PEER_GRACE: Duration = Duration::from_secs(30);
pub(super) const SUBNET_FILE_RETRY: Duration = Duration::from_secs(5);
/// Between two looks whether it is still there and says the same.
pub(super) const SUBNET_FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// What is not written by then is not about to be: peers that ask are told so.
pub(super) const INCOMPLETE_PEER_GRACE: Duration = Duration::from_secs(1);
/// Between two looks at who of the peers lacks something, as long as anything is missing.
pub(super) const INCOMPLETE_PEER_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// What was missing and has been there for so long is there to stay: whoever undoes entries again and again does it sooner.
pub(super) const COMPLETE_PEER_GRACE: Duration = Duration::from_secs(3);
/// How long a peer that is missing from a whole new list is still sent to. A store restored from an
/// old backup has forgotten nodes that are alive; they write themselves back within seconds.
pub(super) const MISSING_PEER_GRACE: Duration = Duration::from_secs(60);
