//! Atomic replacement of files: readers see the old or the complete new file, also after a crash.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Writes a file, which is on the disk when this returns. The directory must exist.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let unique = format!("{:016x}", fastrand::u64(..));
    replace_by(path, &temporary_path(path, &unique), |temporary| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
        file.write_all(bytes)?;
        // Set afterwards, because the umask limits the mode at creation.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    })?;
    // It holds the file's name.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Replaces `path` by what `make` writes at `temporary`, in the same directory. A failure leaves nothing of it.
pub fn replace_by(
    path: &Path,
    temporary: &Path,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    // Left by a process that was killed half-way.
    let _ = fs::remove_file(temporary);
    let replaced = make(temporary).and_then(|()| fs::rename(temporary, path));
    if replaced.is_err() {
        // The first error is returned; a second one, of the removal, would only hide it.
        let _ = fs::remove_file(temporary);
    }
    replaced
}

/// Path `.name.suffix` beside a file: on the same file system, and hidden from listings.
pub fn temporary_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_replaced_whole_with_its_mode_and_nothing_is_left_beside_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("subnet.env");
        for (text, mode) in [("old", 0o644), ("new", 0o600)] {
            replace_file(&path, text.as_bytes(), mode).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(listing(home.path()), ["subnet.env"]);
    }

    #[test]
    fn what_cannot_be_made_leaves_the_former_file_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "old").unwrap();
        let temporary = temporary_path(&path, "new");
        fs::write(&temporary, "of somebody who was killed").unwrap();
        let failed = replace_by(&path, &temporary, |temporary| {
            fs::write(temporary, "half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(listing(home.path()), ["file"]);
        assert!(replace_file(&home.path().join("no/such/file"), b"", 0o644).is_err());
    }
}
