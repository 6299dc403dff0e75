//! This node's routes in a cloud's table: found by what flanneld has noted of them, and taken away with the
//! credentials of the environment or of the machine's role.

use std::path::Path;

use flannel_cloud::{OwnRoute, recorded, remove_recorded};

use crate::commands::store_args::block_on;

pub(super) fn find(directory: &Path) -> Vec<String> {
    recorded(directory).iter().map(ToString::to_string).collect()
}

/// What went, and what would not.
pub(super) fn remove(directory: &Path) -> (Vec<String>, Vec<String>) {
    remove_those(directory, |_| true)
}

pub(crate) fn remove_those(
    directory: &Path,
    wanted: impl Fn(&OwnRoute) -> bool,
) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for own in recorded(directory).into_iter().filter(|own| wanted(own)) {
        let done = block_on(async { Ok(remove_recorded(directory, &own).await?) });
        match done {
            Ok(()) => removed.push(own.to_string()),
            Err(error) => failures.push(format!("remove the {own}: {error:#}")),
        }
    }
    (removed, failures)
}
