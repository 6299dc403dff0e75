//! Where programs are found.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where programs for administrators are even if `PATH` does not say so.
const USUAL: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];

#[derive(Clone, Debug)]
pub struct SearchPath(Vec<PathBuf>);

impl SearchPath {
    /// Those of `PATH`, and then the usual ones.
    pub fn of_environment() -> Self {
        let mut path = Self::of_path_alone();
        path.0.extend(USUAL.map(PathBuf::from));
        path
    }

    /// Those of `PATH` and no others.
    pub fn of_path_alone() -> Self {
        Self::exactly(&std::env::var_os("PATH").unwrap_or_default())
    }

    /// These directories, separated as in `PATH`, and no others.
    pub fn exactly(path: &OsStr) -> Self {
        // An empty name would be the directory that we happen to be in.
        let is_named = |directory: &PathBuf| !directory.as_os_str().is_empty();
        Self(std::env::split_paths(path).filter(is_named).collect())
    }

    pub fn find(&self, program: &str) -> Option<PathBuf> {
        self.0.iter().map(|directory| directory.join(program)).find(|path| can_run(path))
    }
}

fn can_run(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_order_and_only_if_they_can_be_run() {
        let directories = tempfile::tempdir().unwrap();
        let (one, two) = (directories.path().join("1"), directories.path().join("2"));
        for directory in [&one, &two] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("nft"), "").unwrap();
        }
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(two.join("nft"), executable).unwrap();
        let path = SearchPath::exactly(&std::env::join_paths([&one, &two]).unwrap());
        assert_eq!(path.find("nft"), Some(two.join("nft")));
        assert_eq!(path.find("iptables"), None);
    }

    #[test]
    fn no_program_is_found_in_the_directory_that_we_happen_to_be_in() {
        let path = SearchPath::exactly(OsStr::new(""));
        assert!(Path::new("Cargo.toml").exists());
        assert!(path.0.is_empty(), "{path:?}");
        assert!(SearchPath::exactly(OsStr::new(":/bin:")).find("sh").is_some());
    }
}
