//! What programs can, by their version.

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

#[cfg(test)]
pub(crate) mod samples {
    use std::os::unix::fs::PermissionsExt as _;

    use flannel_common::SearchPath;

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
        let version = |text| Version::parse(text).map(|Version(numbers)| numbers);
        assert_eq!(version("iptables v1.8.9 (nf_tables)"), Some([1, 8, 9]));
        assert_eq!(version("iptables v1.6.1"), Some([1, 6, 1]));
        assert_eq!(version("nftables v1.0.6 (Lester Gooch #5)\n"), Some([1, 0, 6]));
        assert_eq!(version("nftables v1.1"), Some([1, 1, 0]));
        assert_eq!(version("nftables v1.0.2-rc1"), Some([1, 0, 2]));
        assert_eq!(version("BusyBox"), None);
        assert!(Version([1, 10, 0]) > Version([1, 9, 9]));
    }
}
