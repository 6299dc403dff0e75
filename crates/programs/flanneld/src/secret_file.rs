//! A secret in a file of this node. The network config names the file, so it may name any.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use flannel_common::Secret;

const MOST_BYTES: u64 = 16 * 1024;
const READABLE_BY_ALL: u32 = 0o004;

/// Reads it without white space around it. What is wrong is told for people, without a word of what the file holds.
pub(crate) fn read(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("cannot read the secret in {shown}: {error}");
    // Opening a pipe would wait for somebody to write to it.
    let mut options = File::options();
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = options.read(true).custom_flags(nonblock).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(format!("cannot read the secret in {shown}: it is not a file"));
    }
    if metadata.permissions().mode() & READABLE_BY_ALL != 0 {
        tracing::warn!(
            "Everybody on this node can read the secret in {shown}: `chmod 600 {shown}`"
        );
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!(
            "cannot use the secret in {shown}: it has more than {MOST_BYTES} bytes"
        ));
    }
    Ok(Secret::new(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_a_plain_file_of_bounded_size_alone() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("psk");
        std::fs::write(&path, "  hunter2\n").expect("it can be written");
        assert_eq!(read(&path).expect("it is there").reveal(), "hunter2");
        std::fs::write(&path, "x".repeat(17 * 1024)).expect("it can be written");
        assert!(read(&path).expect_err("too long").contains("more than 16384 bytes"));
        for (path, why) in [
            (home.path(), "it is not a file"),
            (Path::new("/dev/zero"), "it is not a file"),
            (&home.path().join("none"), "No such file"),
        ] {
            let error = read(path).expect_err(why);
            assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
        }
    }
}
