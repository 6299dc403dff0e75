//! The subnet file on disk. Container runtimes read it at any moment.

use std::path::Path;

use flannel_lease::SubnetFile;

use crate::state_file::{self, A_FEW_LINES, FileError, Written};

/// What a former run left behind, if anything. Lines that cannot be used are logged and left out.
pub fn previous(path: &Path) -> Result<SubnetFile, FileError> {
    let Some(text) = state_file::read(path, A_FEW_LINES)? else { return Ok(SubnetFile::default()) };
    let (previous, problems) = SubnetFile::parse(&text);
    for problem in problems {
        tracing::warn!(path = %path.display(), "Ignored in the former subnet file: {problem}");
    }
    Ok(previous)
}

pub fn write(path: &Path, content: &SubnetFile) -> Result<Written, FileError> {
    state_file::write(path, &content.render())
}

/// Writes the file and logs what became of it. `is_expected`: it was there before, so that a missing one was removed.
pub(crate) fn restore(
    path: &Path,
    content: &SubnetFile,
    is_expected: bool,
) -> Result<Written, FileError> {
    if is_expected && !path.exists() {
        tracing::warn!(
            event = "file-restored",
            "Somebody has removed the subnet file {}: writing it again",
            path.display()
        );
    }
    let written = write(path, content)?;
    if written == Written::New {
        tracing::info!("Wrote subnet file to {}", path.display());
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::io::Read as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn content(mtu: u32) -> SubnetFile {
        SubnetFile {
            networks: vec!["10.244.0.0/16".parse().expect("a network")],
            subnet: Some("10.244.1.0/24".parse().expect("a subnet")),
            mtu: Some(mtu),
            ip_masq: Some(true),
            ..SubnetFile::default()
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("the file is there").permissions().mode() & 0o7777
    }

    #[test]
    fn the_file_and_its_directory_are_made_readable_for_all() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("run/flannel/subnet.env");
        assert_eq!(write(&path, &content(1450)).expect("it can be written"), Written::New);
        assert_eq!(
            fs::read_to_string(&path).expect("text"),
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
        assert_eq!(mode(&path), 0o644);
        let expected = 0o755 & !umask();
        assert_eq!(mode(path.parent().expect("a directory")), expected);
    }

    /// The umask of this process, read without changing it.
    fn umask() -> u32 {
        let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).expect("a umask");
        u32::from_str_radix(line.trim(), 8).expect("an octal number")
    }

    #[test]
    fn what_was_written_is_found_again_at_the_next_start() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("subnet.env");
        assert_eq!(previous(&path).expect("a missing file is not an error"), SubnetFile::default());
        write(&path, &content(1450)).expect("it can be written");
        assert_eq!(previous(&path).expect("it can be read"), content(1450));
    }

    #[test]
    fn a_file_that_says_the_same_is_not_touched() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("subnet.env");
        write(&path, &content(1450)).expect("it can be written");
        let inode = fs::metadata(&path).expect("it is there").ino();
        assert_eq!(write(&path, &content(1450)).expect("nothing to do"), Written::Unchanged);
        assert_eq!(fs::metadata(&path).expect("it is there").ino(), inode);
        assert_eq!(write(&path, &content(1400)).expect("it can be written"), Written::New);
        assert!(fs::read_to_string(&path).expect("text").contains("FLANNEL_MTU=1400\n"));
    }

    #[test]
    fn permissions_that_somebody_set_are_kept() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("subnet.env");
        for bits in [0o600, 0o664] {
            fs::write(&path, "old").expect("it can be written");
            fs::set_permissions(&path, Permissions::from_mode(bits)).expect("they can be set");
            write(&path, &content(1450)).expect("it can be written");
            assert_eq!(mode(&path), bits);
        }
    }

    #[test]
    fn a_reader_sees_the_former_file_whole_while_a_new_one_takes_its_place() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("subnet.env");
        write(&path, &content(1450)).expect("it can be written");
        let mut reader = File::open(&path).expect("it is there");
        write(&path, &content(1400)).expect("it can be written");
        let mut seen = String::new();
        reader.read_to_string(&mut seen).expect("text");
        assert_eq!(seen, content(1450).render());
    }

    #[test]
    fn nothing_is_left_lying_about_whether_writing_succeeds_or_not() {
        let home = tempfile::tempdir().expect("a directory");
        let names = || {
            let mut names: Vec<_> = fs::read_dir(home.path())
                .expect("it is there")
                .map(|entry| entry.expect("an entry").file_name())
                .collect();
            names.sort();
            names
        };
        write(&home.path().join("subnet.env"), &content(1450)).expect("it can be written");
        assert_eq!(names(), ["subnet.env"]);
        // A directory is in the way of the rename.
        let blocked = home.path().join("blocked");
        fs::create_dir(&blocked).expect("a directory");
        let error = write(&blocked, &content(1450)).expect_err("a directory cannot be replaced");
        let said = format!("cannot replace {}: ", blocked.display());
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!(names(), ["blocked", "subnet.env"]);
    }

    #[test]
    fn an_error_names_what_was_attempted_and_where() {
        let home = tempfile::tempdir().expect("a directory");
        let file = home.path().join("file");
        fs::write(&file, "").expect("it can be written");
        let error =
            write(&file.join("subnet.env"), &content(1450)).expect_err("a file is not a directory");
        assert!(error.to_string().starts_with("cannot create the directory /"), "{error}");
    }

    #[test]
    fn a_former_file_of_any_bytes_is_no_reason_to_fail() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("subnet.env");
        fs::write(&path, b"FLANNEL_SUBNET=\xff\xfe\0\nFLANNEL_NETWORK=10.244.0.0/16\n")
            .expect("bytes");
        let found = previous(&path).expect("it can be read");
        assert_eq!((found.networks, found.subnet), (content(0).networks, None));
        assert_eq!(write(&path, &content(1450)).expect("it can be written"), Written::New);
    }
}
