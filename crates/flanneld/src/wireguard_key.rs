//! The file with this node's WireGuard key. The same key in it after a restart is what keeps sessions.

use std::io;
use std::path::{Path, PathBuf};

use flannel_common::replace_file;
use flannel_kernel::PrivateKey;

/// Where the Go flannel has it.
const DEFAULT: &str = "/run/flannel/wgkey";
/// The variable that names another place; the Go flannel's too.
const VARIABLE: &str = "WIREGUARD_KEY_FILE";

/// The key of this node. What is wrong is told for people, without a word of what the file holds.
pub(crate) fn read_or_make() -> Result<PrivateKey, String> {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    read_or_make_at(&path.map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from))
}

fn read_or_make_at(path: &Path) -> Result<PrivateKey, String> {
    let shown = path.display();
    match std::fs::read_to_string(path) {
        Ok(text) => text.parse().map_err(|error| {
            format!(
                "the WireGuard key in {shown} cannot be used: {error}. Put the right one there, or remove \
                 the file and a new key is made"
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)
            .map_err(|error| format!("cannot write a new WireGuard key to {shown}: {error}")),
        Err(error) => Err(format!("cannot read the WireGuard key in {shown}: {error}")),
    }
}

fn make(path: &Path) -> io::Result<PrivateKey> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let key = PrivateKey::from_random(bytes);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    // Nobody else may read it, at no moment.
    replace_file(path, key.reveal().as_bytes(), 0o600)?;
    tracing::info!("Made a WireGuard key, {}: its public part is {}", path.display(), key.public());
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn defect_47_a_key_is_made_once_and_only_its_owner_can_read_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("flannel/wgkey");
        let key = read_or_make_at(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // As the Go flannel writes it.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() == 44 && text.ends_with('='), "{} characters", text.len());
        assert_eq!(read_or_make_at(&path).unwrap(), key);
    }

    #[test]
    fn a_file_that_holds_no_key_is_named_and_not_shown_and_not_replaced() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("wgkey");
        std::fs::write(&path, "hunter2").unwrap();
        let why = read_or_make_at(&path).unwrap_err();
        assert!(why.contains("wgkey") && why.contains("remove"), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hunter2");
    }
}
