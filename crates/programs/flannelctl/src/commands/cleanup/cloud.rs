//! This node's routes in a cloud's table, as flanneld has noted them; removed with the credentials found here.

use std::path::Path;

use flannel_cloud::{OwnRoute, recorded, remove_recorded};

use super::Report;
use crate::commands::store_args::block_on;

pub(crate) fn clean(report: &mut Report, directory: &Path, wanted: impl Fn(&OwnRoute) -> bool) {
    for own in recorded(directory).into_iter().filter(|own| wanted(own)) {
        report.clean(own.to_string(), || {
            block_on(async { Ok(remove_recorded(directory, &own).await?) })
        });
    }
}
