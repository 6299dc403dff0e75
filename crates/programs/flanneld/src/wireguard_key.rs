//! The file with this node's WireGuard key. The same key in it after a restart is what keeps sessions.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use flannel_common::{PrivateKey, random_bytes};

use crate::state_file::{self, A_FEW_LINES};

const DEFAULT: &str = "/run/flannel/wgkey";
/// The variable that names another place; the Go flannel's too.
const VARIABLE: &str = "WIREGUARD_KEY_FILE";

/// Suffix of the file with the next key: `flannelctl key rotate` writes it, and sees by its going that it is in use.
const NEXT: &str = ".next";

pub(crate) fn path() -> PathBuf {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    path.map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

fn next_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(NEXT);
    name.into()
}

/// The key that is to take the place of the one in use, if somebody has put one there.
pub(crate) fn read_next(path: &Path) -> Result<Option<PrivateKey>, String> {
    let path = next_path(path);
    let found = state_file::read(&path, A_FEW_LINES)
        .map_err(|error| format!("the next WireGuard key is not looked at: {error}"))?;
    let key = found.map(|text| text.parse()).transpose();
    key.map_err(|error| {
        let shown = path.display();
        format!("the next WireGuard key in {shown} cannot be used: {error}. Remove the file")
    })
}

/// Makes the next key the one in use. It is on the disk when this returns.
pub(crate) fn adopt_next(path: &Path) -> io::Result<()> {
    std::fs::rename(next_path(path), path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// The key of this node. What is wrong is told for people, without a word of what the file holds.
pub(crate) fn read_or_make(path: &Path) -> Result<PrivateKey, String> {
    let failed = |error: &dyn Display| format!("this node has no WireGuard key: {error}");
    match state_file::read(path, A_FEW_LINES).map_err(|error| failed(&error))? {
        Some(text) => text.parse().map_err(|error| {
            format!(
                "the WireGuard key in {} cannot be used: {error}. Put the right one there, or remove the file and a \
                 new key is made",
                path.display()
            )
        }),
        None => make(path).map_err(|error| failed(&error)),
    }
}

fn make(path: &Path) -> anyhow::Result<PrivateKey> {
    let key = PrivateKey::from_random(random_bytes()?);
    state_file::write_secret(path, &key.reveal())?;
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
        let key = read_or_make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // As the Go flannel writes it.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() == 44 && text.ends_with('='), "{} characters", text.len());
        assert_eq!(read_or_make(&path).unwrap(), key);
    }

    #[test]
    fn a_next_key_takes_the_place_of_the_one_in_use_at_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("wgkey");
        read_or_make(&path).unwrap();
        assert_eq!(read_next(&path), Ok(None));
        let next = PrivateKey::from_random([7; 32]);
        std::fs::write(home.path().join("wgkey.next"), next.reveal()).unwrap();
        assert_eq!(read_next(&path), Ok(Some(next.clone())));
        adopt_next(&path).unwrap();
        assert_eq!((read_or_make(&path).unwrap(), read_next(&path)), (next, Ok(None)));
        std::fs::write(home.path().join("wgkey.next"), "hunter2").unwrap();
        let why = read_next(&path).unwrap_err();
        assert!(why.contains("wgkey.next") && !why.contains("hunter2"), "{why}");
    }

    #[test]
    fn a_file_that_holds_no_key_is_named_and_not_shown_and_not_replaced() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("wgkey");
        std::fs::write(&path, "hunter2").unwrap();
        let why = read_or_make(&path).unwrap_err();
        assert!(why.contains("wgkey") && why.contains("remove"), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hunter2");
    }
}
