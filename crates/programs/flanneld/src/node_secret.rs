//! The secret by which a lease server knows this machine again, whatever address it has: a token may have been given to
//! several nodes, and none of them is to have the leases of the others.

use std::io;
use std::path::Path;

use flannel_common::{hex, random_bytes, replace_file};
use flannel_store::Secret;

const FILE: &str = "node-secret";

/// `None` where it can neither be read nor kept: then the server goes by the address that this node asks from.
pub(crate) fn read_or_make(data_dir: &Path) -> Option<Secret> {
    let file = data_dir.join(FILE);
    let made = match std::fs::read_to_string(&file) {
        Ok(text) if !text.trim().is_empty() => return Some(Secret::new(text.trim())),
        Ok(_) => make(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&file),
        Err(error) => Err(error),
    };
    made.inspect_err(|error| {
        tracing::warn!(
            "The lease server will know this node by its address alone, and give it another subnet when that \
             changes: cannot keep {}: {error}",
            file.display()
        );
    })
    .ok()
}

fn make(file: &Path) -> io::Result<Secret> {
    let secret = hex(&random_bytes::<32>()?);
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    replace_file(file, format!("{secret}\n").as_bytes(), 0o600)?;
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
