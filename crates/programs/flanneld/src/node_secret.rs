//! The secret by which a lease server knows this machine again: other nodes may have the same token.

use std::path::Path;

use flannel_common::{hex, random_bytes};
use flannel_store::Secret;

use crate::state_file::{self, A_FEW_LINES};

const FILE: &str = "node-secret";

/// `None` where it can neither be read nor kept: then the server goes by the address that this node asks from.
pub(crate) fn read_or_make(data_dir: &Path) -> Option<Secret> {
    let found = read_or_make_at(&data_dir.join(FILE));
    found
        .inspect_err(|error| {
            tracing::warn!(
                "The lease server will know this node by its address alone, and give it another subnet when that \
                 changes: {error}"
            );
        })
        .ok()
}

fn read_or_make_at(file: &Path) -> anyhow::Result<Secret> {
    let kept = state_file::read(file, A_FEW_LINES)?.unwrap_or_default();
    if !kept.trim().is_empty() {
        return Ok(Secret::new(kept.trim()));
    }
    let secret = hex(&random_bytes::<32>()?);
    state_file::write_secret(file, &format!("{secret}\n"))?;
    Ok(Secret::new(secret))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_secret_is_made_once_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("home");
        let first = read_or_make(&home).expect("made");
        assert_eq!(read_or_make(&home), Some(first.clone()));
        assert_eq!(first.reveal().len(), 64);
        let mode = std::fs::metadata(home.join(FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(read_or_make(Path::new("/proc/nowhere")), None);
    }
}
