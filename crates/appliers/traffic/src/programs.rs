//! Which programs there are, and what they can.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Where `nft` and `iptables` are even if `PATH` does not say so.
const USUAL: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Directories that are looked through, in order.
#[derive(Clone, Debug)]
pub(crate) struct SearchPath(Vec<PathBuf>);

impl SearchPath {
    pub(crate) fn of_environment() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let usual: Vec<OsString> = USUAL.map(OsString::from).into();
        Self(std::env::split_paths(&path).chain(usual.into_iter().map(PathBuf::from)).collect())
    }

    /// These directories and no others.
    pub(crate) fn exactly(path: &OsStr) -> Self {
        Self(std::env::split_paths(path).collect())
    }

    pub(crate) fn find(&self, program: &str) -> Option<PathBuf> {
        self.0.iter().map(|directory| directory.join(program)).find(|path| {
            path.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
    }
}

/// The numbers of a version: `1.8.9` of `iptables v1.8.9 (nf_tables)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) [u32; 3]);

impl Version {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
        let mut numbers = text.split('.').map(|part| {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            part[..digits].parse().ok()
        });
        let mut next = || numbers.next().flatten();
        Some(Self([next()?, next().unwrap_or(0), next().unwrap_or(0)]))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// A directory in which these programs seem to be installed, and no others.
    pub(crate) fn directory_with(programs: &[&str]) -> (tempfile::TempDir, SearchPath) {
        let directory = tempfile::tempdir().unwrap();
        for program in programs {
            let path = directory.path().join(program);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = SearchPath::exactly(directory.path().as_os_str());
        (directory, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_programs_say() {
        let version = |text| Version::parse(text).map(|version| version.to_string());
        assert_eq!(version("iptables v1.8.9 (nf_tables)").as_deref(), Some("1.8.9"));
        assert_eq!(version("iptables v1.6.1").as_deref(), Some("1.6.1"));
        assert_eq!(version("nftables v1.0.6 (Lester Gooch #5)\n").as_deref(), Some("1.0.6"));
        assert_eq!(version("nftables v1.1").as_deref(), Some("1.1.0"));
        assert_eq!(version("nftables v1.0.2-rc1").as_deref(), Some("1.0.2"));
        assert_eq!(version("BusyBox"), None);
        assert!(Version([1, 10, 0]) > Version([1, 9, 9]));
    }

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
}
