//! The config that this node was last seen to work with, kept until the next boot beside the subnet file. A daemon that finds
//! another one goes on with this, and changes from there: it loses nothing to a config that this node cannot use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flannel_lease::NetworkConfig;

use super::starting::Membership;
use super::{Setup, needs};
use crate::appliers::Appliers;
use crate::state_file;

/// A config has a few hundred bytes; anything much longer is some other file.
const LARGEST_CONFIG: u64 = 1 << 20;

fn path(subnet_file: &Path) -> PathBuf {
    subnet_file.with_extension("config")
}

/// Keeps a config that is seen to work here. It may hold secrets.
pub(super) fn keep(subnet_file: &Path, text: &str) {
    if let Err(error) = state_file::write_secret(&path(subnet_file), text) {
        tracing::warn!(
            "{error}; after a restart this node cannot go back to the config it has now"
        );
    }
}

/// Membership in the network of the former config, if this node keeps its subnet with either. Decision 17 lists exceptions.
pub(super) async fn join_as_before(
    setup: &Arc<Setup>,
    appliers: &Appliers,
    text: &str,
    config: &NetworkConfig,
) -> Option<Membership> {
    let former = state_file::read(&path(&setup.subnet_file), LARGEST_CONFIG).ok()??;
    if former == text {
        return None;
    }
    let judged = flannel_backend::judge_config(&former, setup.store.subnets()).ok()?;
    setup.privileges.check(&judged.backend.privileges()).ok()?;
    // A subnet that does not fit the network any more may be anybody's by now.
    let previous = setup.previous.lease_subnet()?;
    if !judged.config.accepts(&previous) || !config.accepts(&previous) {
        return None;
    }
    let answers = needs::find_out(judged.backend.needs()).await.ok()?;
    let joined =
        Membership::try_join(setup, appliers, former, judged.config, answers).await.ok()?;
    tracing::info!(
        "The network config has changed since this node ran: starting with the former one"
    );
    Some(joined)
}
