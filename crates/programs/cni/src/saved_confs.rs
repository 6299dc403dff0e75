//! The configuration that an ADD handed to its delegate, kept on disk for DEL to hand on the very same.
//!
//! The Go plugin knows one file for a container, named by its id, and finds ours under that name. A
//! container may have a second attachment, though, which must not take the first one's file: every
//! interface but `eth0`, which is what runtimes call the first, has its name appended. A colon can
//! occur in neither.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use flannel_common::replace_by;

/// Nobody takes so long to write a file.
const TORN_FILE_GRACE: Duration = Duration::from_secs(60);

/// The interface whose file has the Go plugin's name.
pub const FIRST_INTERFACE: &str = "eth0";

#[derive(Debug)]
pub struct Saved {
    pub text: Vec<u8>,
    path: PathBuf,
    /// It may be another interface's: the Go plugin does not write down whose it is.
    borrowed: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct SavedFile {
    pub container_id: String,
    /// Unknown of a file under the Go plugin's name.
    pub ifname: Option<String>,
    pub path: PathBuf,
}

pub fn exists(directory: &Path, container_id: &str, ifname: &str) -> bool {
    own_path(directory, container_id, ifname).exists()
}

/// Writes the file whole or not at all. It need not outlive a crash of the host, as no attachment does.
pub fn save(directory: &Path, container_id: &str, ifname: &str, text: &str) -> io::Result<()> {
    let own = own_path(directory, container_id, ifname);
    let write = |temporary: &Path| create(temporary)?.write_all(text.as_bytes());
    match replace_by(&own, &temporary_path(&own), write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            replace_by(&own, &temporary_path(&own), write)
        }
        other => other,
    }
}

/// `None`: nothing was saved, or it was forgotten already.
pub fn load(directory: &Path, container_id: &str, ifname: &str) -> io::Result<Option<Saved>> {
    let own = own_path(directory, container_id, ifname);
    if let Some(text) = read(&own)? {
        return Ok(Some(Saved { text, path: own, borrowed: false }));
    }
    // Of an ADD that was killed while it wrote. If it cannot be removed, it does no harm.
    let _ = remove(&temporary_path(&own));
    if ifname == FIRST_INTERFACE {
        return Ok(None);
    }
    let path = directory.join(container_id);
    Ok(read(&path)?.map(|text| Saved { text, path, borrowed: true }))
}

pub fn list(directory: &Path) -> io::Result<Vec<SavedFile>> {
    let mut entries = Vec::new();
    let listing = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entries),
        other => other?,
    };
    for item in listing {
        let item = item?;
        let name = item.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.starts_with('.') || !item.file_type()?.is_file() {
            continue;
        }
        let (container_id, ifname) = match name.split_once(':') {
            Some((id, ifname)) => (id, Some(ifname.to_owned())),
            None => (name, None),
        };
        entries.push(SavedFile {
            container_id: container_id.to_owned(),
            ifname,
            path: item.path(),
        });
    }
    Ok(entries)
}

/// Removes what ADDs were killed over while they wrote it, in case that nobody ever deletes their
/// containers. It takes no time to write one, so an old one has no writer.
pub fn remove_torn(directory: &Path, now: SystemTime) {
    for item in fs::read_dir(directory).into_iter().flatten().flatten() {
        let written = item.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| now.duration_since(written).ok());
        let is_torn = item.file_name().as_encoded_bytes().starts_with(b".");
        if is_torn && age.is_some_and(|age| age > TORN_FILE_GRACE) {
            // The next one to collect may have more luck.
            let _ = remove(&item.path());
        }
    }
}

/// As if nothing had been saved.
pub fn forget(directory: &Path, container_id: &str, ifname: &str) -> io::Result<()> {
    remove(&own_path(directory, container_id, ifname))
}

impl Saved {
    /// Once the delegate has undone all that was done by it.
    pub fn forget(&self) -> io::Result<()> {
        if self.borrowed {
            return Ok(());
        }
        remove(&temporary_path(&self.path))?;
        remove(&self.path)
    }
}

pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn own_path(directory: &Path, container_id: &str, ifname: &str) -> PathBuf {
    if ifname == FIRST_INTERFACE {
        directory.join(container_id)
    } else {
        directory.join(format!("{container_id}:{ifname}"))
    }
}

/// Where a file is before it is whole. No container's id begins with a dot. An attachment has but one:
/// whoever comes after an ADD that was killed finds it.
fn temporary_path(own: &Path) -> PathBuf {
    let name = own.file_name().unwrap_or_default().to_string_lossy();
    own.with_file_name(format!(".{name}"))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn defect_74_two_attachments_of_one_container_keep_their_own_files() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        save(directory, "abc", "eth0", "first").unwrap();
        save(directory, "abc", "net1", "second").unwrap();
        assert_eq!(names(directory), ["abc", "abc:net1"]);
        let second = load(directory, "abc", "net1").unwrap().unwrap();
        assert_eq!(second.text, b"second");
        second.forget().unwrap();
        let first = load(directory, "abc", "eth0").unwrap().unwrap();
        assert_eq!(first.text, b"first");
        first.forget().unwrap();
        assert!(names(directory).is_empty());
    }

    #[test]
    fn a_file_of_the_go_plugin_serves_any_interface_and_is_not_taken_from_the_first() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("abc"), "go").unwrap();
        let borrowed = load(directory.path(), "abc", "net1").unwrap().unwrap();
        assert_eq!(borrowed.text, b"go");
        borrowed.forget().unwrap();
        load(directory.path(), "abc", "eth0").unwrap().unwrap().forget().unwrap();
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn defect_77_a_file_is_whole_private_and_leaves_no_other_behind() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b");
        save(&directory, "abc", "eth0", "a long one").unwrap();
        save(&directory, "abc", "eth0", "short").unwrap();
        assert_eq!(load(&directory, "abc", "eth0").unwrap().unwrap().text, b"short");
        assert_eq!(names(&directory), ["abc"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&directory.join("abc"))), (0o700, 0o600));
    }

    #[test]
    fn what_was_torn_is_removed_once_nobody_can_be_writing_it() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(".abc"), "{\"na").unwrap();
        save(root.path(), "def", "eth0", "{}").unwrap();
        remove_torn(root.path(), SystemTime::now());
        assert_eq!(names(root.path()), [".abc", "def"], "it may be under way");
        remove_torn(root.path(), SystemTime::now() + Duration::from_secs(120));
        assert_eq!(names(root.path()), ["def"]);
    }

    #[test]
    fn what_was_never_saved_is_nothing_unusual() {
        let root = tempfile::tempdir().unwrap();
        let absent = root.path().join("absent");
        assert!(load(&absent, "abc", "eth0").unwrap().is_none());
        assert!(list(&absent).unwrap().is_empty());
    }
}
