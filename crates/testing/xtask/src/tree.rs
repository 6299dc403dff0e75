//! The build directory: a copy of the clone at a fixed path, with cargo's target directory beside it.
//!
//! Cargo knows a changed source by its time and its path, and in a fresh clone both are new. In the copy a file is
//! written only when its content differs, so cargo builds again what has changed since the last run and nothing else,
//! whichever clone that was. Nothing that is edited during a run reaches it.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const BUILD_DIRS: usize = 3;
const TARGET_LIMIT_GB: u64 = 20;

/// A build directory that no other run uses until this value is dropped.
pub(crate) struct BuildDir {
    /// Copy of the clone.
    pub(crate) tree: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// What each step printed.
    pub(crate) logs: PathBuf,
    /// Held for its lock.
    _lock: File,
}

impl BuildDir {
    /// Claims the first directory that no other run holds.
    pub(crate) fn claim(cache: &Path) -> io::Result<Self> {
        for number in 1..=BUILD_DIRS {
            let home = cache.join(format!("build-{number}"));
            fs::create_dir_all(&home)?;
            let lock = File::create(home.join("lock"))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let [tree, target, logs] = ["tree", "target", "logs"].map(|name| home.join(name));
            remove_when_too_large(&target)?;
            let _ = fs::remove_dir_all(&logs);
            for directory in [&tree, &target, &logs] {
                fs::create_dir_all(directory)?;
            }
            return Ok(Self { tree, target, logs, _lock: lock });
        }
        Err(io::Error::other(format!(
            "{BUILD_DIRS} other runs use {}/build-*: wait for one to end",
            cache.display()
        )))
    }
}

/// Removes what cargo has piled up over many versions.
fn remove_when_too_large(target: &Path) -> io::Result<()> {
    if !target.exists() {
        return Ok(());
    }
    let output = Command::new("du").args(["-s", "--block-size=1G"]).arg(target).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let size: u64 = text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
    if size > TARGET_LIMIT_GB {
        eprintln!(
            "xtask: {} has grown over {TARGET_LIMIT_GB} GB: starting afresh",
            target.display()
        );
        fs::remove_dir_all(target)?;
    }
    Ok(())
}

/// Makes `tree` equal to the files of the clone, and says how many of its files changed.
pub(crate) fn sync(clone: &Path, tree: &Path) -> io::Result<usize> {
    let wanted = files_of_clone(clone)?;
    let mut changed = 0;
    for path in files_below(tree)?.difference(&wanted) {
        fs::remove_file(tree.join(path))?;
        remove_empty_parents(tree, path);
        changed += 1;
    }
    for path in &wanted {
        changed += usize::from(copy_if_different(&clone.join(path), &tree.join(path))?);
    }
    Ok(changed)
}

/// The tracked files, and those that would be tracked after `git add`.
fn files_of_clone(clone: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(clone)
        .output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("git ls-files in {}: {why}", clone.display())));
    }
    let paths = output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    let paths = paths.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)));
    Ok(paths.filter(|path| clone.join(path).symlink_metadata().is_ok()).collect())
}

fn files_below(tree: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(tree.join(&directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                directories.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    Ok(files)
}

fn remove_empty_parents(tree: &Path, path: &Path) {
    for directory in path.ancestors().skip(1).filter(|path| *path != Path::new("")) {
        if fs::remove_dir(tree.join(directory)).is_err() {
            return;
        }
    }
}

fn copy_if_different(from: &Path, to: &Path) -> io::Result<bool> {
    let metadata = from.symlink_metadata()?;
    if is_same(from, &metadata, to)? {
        return Ok(false);
    }
    match to.symlink_metadata() {
        Ok(old) if old.is_dir() => fs::remove_dir_all(to)?,
        Ok(_) => fs::remove_file(to)?,
        Err(_) => {}
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if metadata.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else {
        fs::write(to, fs::read(from)?)?;
        fs::set_permissions(to, metadata.permissions())?;
    }
    Ok(true)
}

fn is_same(from: &Path, metadata: &Metadata, to: &Path) -> io::Result<bool> {
    let Ok(other) = to.symlink_metadata() else { return Ok(false) };
    if metadata.file_type() != other.file_type() {
        return Ok(false);
    }
    if metadata.is_symlink() {
        return Ok(fs::read_link(from)? == fs::read_link(to)?);
    }
    // Whoever clones decides by their umask who may read and write.
    let is_executable = |metadata: &Metadata| metadata.permissions().mode() & 0o100 != 0;
    Ok(is_executable(metadata) == is_executable(&other)
        && metadata.len() == other.len()
        && fs::read(from)? == fs::read(to)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use std::time::{Duration, SystemTime};

    use super::*;

    /// A directory that is removed when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// A clone with these files, and an empty tree.
        fn clone_and_tree(&self, files: &[(&str, &str)]) -> (PathBuf, PathBuf) {
            let (clone, tree) = (self.0.join("clone"), self.0.join("tree"));
            fs::create_dir_all(&tree).unwrap();
            for (name, content) in files {
                let path = clone.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            assert!(
                Command::new("git").args(["init", "-q"]).arg(&clone).status().unwrap().success()
            );
            (clone, tree)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set_old_time(path: &Path) -> SystemTime {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        time
    }

    fn time(path: &Path) -> SystemTime {
        fs::metadata(path).unwrap().modified().unwrap()
    }

    #[test]
    fn unchanged_file_keeps_its_time_though_the_clone_is_new() {
        let scratch = Scratch::new("unchanged");
        let (clone, tree) = scratch.clone_and_tree(&[("src/a.rs", "a"), ("src/b.rs", "b")]);
        assert_eq!(sync(&clone, &tree).unwrap(), 2);
        let old = set_old_time(&tree.join("src/a.rs"));
        set_old_time(&tree.join("src/b.rs"));
        fs::write(clone.join("src/a.rs"), "a").unwrap();
        fs::write(clone.join("src/b.rs"), "B").unwrap();
        assert_eq!(sync(&clone, &tree).unwrap(), 1);
        assert_eq!(time(&tree.join("src/a.rs")), old);
        assert!(time(&tree.join("src/b.rs")) > old);
        assert_eq!(fs::read_to_string(tree.join("src/b.rs")).unwrap(), "B");
    }

    #[test]
    fn removed_and_ignored_files_are_not_in_the_tree() {
        let scratch = Scratch::new("removed");
        let (clone, tree) =
            scratch.clone_and_tree(&[("gone/x", ""), ("kept", ""), (".gitignore", "target/")]);
        sync(&clone, &tree).unwrap();
        fs::remove_dir_all(clone.join("gone")).unwrap();
        fs::create_dir(clone.join("target")).unwrap();
        fs::write(clone.join("target/x"), "").unwrap();
        fs::write(tree.join("litter"), "").unwrap();
        assert_eq!(sync(&clone, &tree).unwrap(), 2);
        let left: Vec<PathBuf> = files_below(&tree).unwrap().into_iter().collect();
        assert_eq!(left, [PathBuf::from(".gitignore"), "kept".into()]);
        assert!(!tree.join("gone").exists());
    }

    #[test]
    fn links_and_modes_are_copied() {
        let scratch = Scratch::new("modes");
        let (clone, tree) = scratch.clone_and_tree(&[("run", "#!/bin/sh")]);
        symlink("run", clone.join("link")).unwrap();
        sync(&clone, &tree).unwrap();
        fs::set_permissions(clone.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(sync(&clone, &tree).unwrap(), 1);
        fs::set_permissions(clone.join("run"), fs::Permissions::from_mode(0o775)).unwrap();
        assert_eq!(sync(&clone, &tree).unwrap(), 0, "another umask is no change");
        assert_eq!(fs::metadata(tree.join("run")).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_link(tree.join("link")).unwrap(), PathBuf::from("run"));
    }

    #[test]
    fn second_run_claims_another_directory() {
        let scratch = Scratch::new("claim");
        let first = BuildDir::claim(&scratch.0).unwrap();
        let second = BuildDir::claim(&scratch.0).unwrap();
        assert_ne!(first.tree, second.tree);
        drop(first);
        assert!(BuildDir::claim(&scratch.0).unwrap().tree.ends_with("build-1/tree"));
    }
}
