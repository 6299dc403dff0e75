//! `flannel --install DIRECTORY`: puts the program where a runtime looks for plugins, with a link for
//! each of the plugins that are built in, so that an image needs no shell and a node no other package.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use flannel_common::{replace_by, temporary_path};

use crate::builtin::BUILT_IN;

const PROGRAM: &str = "flannel";

#[derive(Debug, thiserror::Error)]
#[error("could not {attempted} {}: {error}", path.display())]
pub struct InstallError {
    attempted: &'static str,
    path: PathBuf,
    error: io::Error,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Installed {
    Program,
    Link,
    /// Somebody else's program has this name.
    Kept,
}

/// Programs of others that have the name of a link stay, unless `force` says otherwise.
pub fn install(
    own: &Path,
    directory: &Path,
    force: bool,
) -> Result<Vec<(&'static str, Installed)>, InstallError> {
    let mut report = vec![(PROGRAM, Installed::Program)];
    put_program(own, directory)?;
    for (name, _) in BUILT_IN {
        let path = directory.join(name);
        let is_program = fs::symlink_metadata(&path).is_ok_and(|it| !it.file_type().is_symlink());
        let leads_elsewhere = fs::read_link(&path).is_ok_and(|target| target != Path::new(PROGRAM));
        if (is_program || leads_elsewhere) && !force {
            report.push((name, Installed::Kept));
            continue;
        }
        replace(directory, name, "link", |temporary| symlink(PROGRAM, temporary))?;
        report.push((name, Installed::Link));
    }
    Ok(report)
}

/// Whether the plugin of this name in this directory is ours, as [`install`] has left it. Ours is also behind
/// `flannel` only if a link leads to it: the Go plugin has the same name.
pub fn is_installed(directory: &Path, name: &str) -> bool {
    let is_link =
        |name: &str| fs::read_link(directory.join(name)).is_ok_and(|to| to == Path::new(PROGRAM));
    let known = BUILT_IN.map(|(name, _)| name);
    match name {
        PROGRAM => directory.join(PROGRAM).is_file() && known.into_iter().any(is_link),
        other => known.contains(&other) && is_link(other),
    }
}

/// A runtime may start it at this very moment: it finds the old one or the new one, both whole.
fn put_program(own: &Path, directory: &Path) -> Result<(), InstallError> {
    fs::create_dir_all(directory).map_err(|error| InstallError {
        attempted: "make the directory",
        path: directory.to_owned(),
        error,
    })?;
    replace(directory, PROGRAM, "write", |temporary| {
        fs::copy(own, temporary)?;
        fs::set_permissions(temporary, fs::Permissions::from_mode(0o755))?;
        fs::File::open(temporary)?.sync_all()
    })
}

fn replace(
    directory: &Path,
    name: &str,
    attempted: &'static str,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), InstallError> {
    let path = directory.join(name);
    replace_by(&path, &temporary_path(&path, "new"), make).map_err(|error| InstallError {
        attempted,
        path,
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_and_programs_of_others_stay_unless_they_must_not() {
        let root = tempfile::tempdir().unwrap();
        let (own, directory) = (root.path().join("own"), root.path().join("opt/cni/bin"));
        fs::write(&own, "new").unwrap();
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("flannel"), "old").unwrap();
        fs::write(directory.join("portmap"), "somebody else's").unwrap();
        let report = install(&own, &directory, false).unwrap();
        assert!(report.contains(&("portmap", Installed::Kept)));
        assert_eq!(fs::read_to_string(directory.join("flannel")).unwrap(), "new");
        assert_eq!(fs::read_to_string(directory.join("bridge")).unwrap(), "new");
        assert_eq!(fs::read_to_string(directory.join("portmap")).unwrap(), "somebody else's");
        assert_eq!(
            fs::metadata(directory.join("flannel")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        install(&own, &directory, true).unwrap();
        assert_eq!(fs::read_link(directory.join("portmap")).unwrap(), Path::new("flannel"));
        assert_eq!(
            fs::read_dir(&directory).unwrap().count(),
            1 + BUILT_IN.len(),
            "nothing else is left"
        );
    }
}
