//! Small files that this node keeps: replaced in one step, since others read them, and only when they say something new.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use flannel_common::replace_file;

/// Bytes that are read of a file that has a few lines; anything much longer is some other file.
pub(crate) const A_FEW_LINES: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {}: {source}", .path.display())]
pub struct FileError {
    attempt: &'static str,
    path: PathBuf,
    source: io::Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    New,
    /// The file said so already and was not touched.
    Unchanged,
}

/// The beginning of a file, `longest` bytes at most; `None` when there is no file.
pub(crate) fn read(path: &Path, longest: u64) -> Result<Option<String>, FileError> {
    let failed = |source| FileError { attempt: "read", path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(longest).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Makes a file that everybody may read say `content`. Even after a power cut it is the former or the new one. Permissions
/// that somebody narrowed or widened stay.
pub(crate) fn write(path: &Path, content: &str) -> Result<Written, FileError> {
    let mode = match fs::metadata(path) {
        Ok(existing) if existing.is_file() => existing.permissions().mode() & 0o777,
        _ => 0o644,
    };
    replace(path, content, mode)
}

/// The same for a file that nobody else may read, at no moment.
pub(crate) fn write_secret(path: &Path, content: &str) -> Result<Written, FileError> {
    replace(path, content, 0o600)
}

fn replace(path: &Path, content: &str, mode: u32) -> Result<Written, FileError> {
    let longest = content.len() as u64 + 1;
    if read(path, longest).is_ok_and(|old| old.as_deref() == Some(content)) {
        return Ok(Written::Unchanged);
    }
    let failed = |attempt, path: &Path| {
        let path = path.to_owned();
        move |source| FileError { attempt, path, source }
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(failed("create the directory", directory))?;
    replace_file(path, content.as_bytes(), mode).map_err(failed("replace", path))?;
    Ok(Written::New)
}
