//! The config that this node was last seen to work with, kept until the next boot beside the subnet file.
//!
//! A daemon that starts and finds another config goes on with what the former one left, and changes from there as a daemon
//! does that was running all the time: so it loses nothing to a config that this node cannot use.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flannel_common::replace_file;
use flannel_lease::NetworkConfig;

use super::starting::Membership;
use super::{Setup, needs};
use crate::appliers::Appliers;

/// A config has a few hundred bytes; anything much longer is some other file.
const LARGEST_CONFIG: u64 = 1 << 20;
/// It may hold secrets.
const MODE: u32 = 0o600;

fn path(subnet_file: &Path) -> PathBuf {
    subnet_file.with_extension("config")
}

/// `None` if there is none, or none that can be read.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LARGEST_CONFIG).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Keeps a config that is seen to work here.
pub(super) fn keep(subnet_file: &Path, text: &str) {
    let path = path(subnet_file);
    if read(&path).as_deref() == Some(text) {
        return;
    }
    if let Err(error) = replace_file(&path, text.as_bytes(), MODE) {
        tracing::warn!(
            "Cannot write {}: {error}; after a restart this node cannot go back to the config it has now",
            path.display()
        );
    }
}

/// The config that the former daemon worked with, if this node keeps its subnet with either, and its membership in that network.
/// `None` where it cannot be gone back to; decision 17 lists these cases and why.
pub(super) async fn join_as_before(
    setup: &Arc<Setup>,
    appliers: &Appliers,
    text: &str,
    config: &NetworkConfig,
) -> Option<(String, Membership)> {
    let former = read(&path(&setup.subnet_file)).filter(|former| former != text)?;
    let judged = flannel_backend::judge_config(&former, setup.store.subnets()).ok()?;
    setup.privileges.check(&judged.backend.privileges()).ok()?;
    // A subnet that does not fit the network any more may be anybody's by now.
    let previous = setup.previous.lease_subnet()?;
    if !judged.config.accepts(&previous) || !config.accepts(&previous) {
        return None;
    }
    let answers = needs::find_out(judged.backend.needs()).await.ok()?;
    let membership = Membership::try_join(setup, appliers, judged.config, answers).await.ok()?;
    tracing::info!(
        "The network config has changed since this node ran: starting with the former one"
    );
    Some((former, membership))
}
