//! `install-conf <source> <destination>`: replaces a file in one step, so that container runtimes never see half of it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use flannel_common::{replace_file, temporary_path};

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_else(|| "install-conf".into());
    let [source, destination] = words.collect::<Vec<_>>().try_into().unwrap_or_default();
    if source.is_empty() || destination.is_empty() {
        eprintln!("usage: {} <source> <destination>", program.display());
        return ExitCode::FAILURE;
    }
    match install(Path::new(&source), Path::new(&destination)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("install-conf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn install(source: &Path, destination: &Path) -> anyhow::Result<()> {
    let (from, to) = (source.display(), destination.display());
    destination
        .file_name()
        .with_context(|| format!("cannot write to {to}: it is not the path of a file"))?;
    // Left by an older release that was killed.
    match fs::remove_file(temporary_path(destination, "tmp")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove the stale copy beside {to}"));
        }
        _ => {}
    }
    let metadata = fs::metadata(source).with_context(|| format!("cannot open {from}"))?;
    let bytes = fs::read(source).with_context(|| format!("cannot copy {from}"))?;
    let replaced = replace_file(destination, &bytes, metadata.permissions().mode() & 0o777);
    replaced.with_context(|| format!("cannot replace {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Case(tempfile::TempDir);

    impl Case {
        fn new() -> Self {
            let case = Self(tempfile::tempdir().unwrap());
            fs::write(case.path("source"), "new").unwrap();
            fs::create_dir(case.path("etc")).unwrap();
            case
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn install(&self) -> anyhow::Result<()> {
            install(&self.path("source"), &self.path("etc/net.conf"))
        }

        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(self.path("etc")).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    #[test]
    fn the_file_takes_its_place_with_its_mode_and_nothing_else_stays() {
        let case = Case::new();
        for (text, mode) in [("new", 0o600), ("newer", 0o644)] {
            fs::write(case.path("source"), text).unwrap();
            fs::set_permissions(case.path("source"), fs::Permissions::from_mode(mode)).unwrap();
            case.install().unwrap();
            assert_eq!(fs::read_to_string(case.path("etc/net.conf")).unwrap(), text);
            let metadata = fs::metadata(case.path("etc/net.conf")).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, mode);
            assert_eq!(case.files(), ["net.conf"]);
        }
    }

    #[test]
    fn a_stale_copy_is_removed() {
        let case = Case::new();
        fs::write(case.path("etc/.net.conf.tmp"), "old").unwrap();
        case.install().unwrap();
        assert_eq!(case.files(), ["net.conf"]);
    }

    #[test]
    fn who_reads_meanwhile_sees_the_old_or_the_new() {
        let case = Case::new();
        let (old, new) = ("o".repeat(100_000), "n".repeat(100_000));
        fs::write(case.path("etc/net.conf"), &old).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..500 {
                    let text = fs::read_to_string(case.path("etc/net.conf")).unwrap();
                    assert!(text == old || text == new, "{} bytes", text.len());
                }
            });
            for number in 0..100 {
                let text = if number % 2 == 0 { &new } else { &old };
                fs::write(case.path("source"), text).unwrap();
                case.install().unwrap();
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn defect_72_a_failure_leaves_the_old_file_and_no_copy() {
        let case = Case::new();
        // A directory that is not empty cannot be replaced.
        fs::create_dir_all(case.path("etc/net.conf/full")).unwrap();
        let what = case.install().unwrap_err().to_string();
        assert!(what.starts_with("cannot replace "), "{what}");
        assert_eq!(case.files(), ["net.conf"]);

        fs::remove_file(case.path("source")).unwrap();
        fs::create_dir(case.path("source")).unwrap();
        let what = case.install().unwrap_err().to_string();
        assert!(what.starts_with("cannot copy "), "{what}");
        assert_eq!(case.files(), ["net.conf"]);
    }

    #[test]
    fn a_missing_source_or_directory_is_named() {
        let case = Case::new();
        let missing = case.path("missing/net.conf");
        let what = install(&case.path("source"), &missing).unwrap_err().to_string();
        assert_eq!(what, format!("cannot replace {}", missing.display()));
        let nothing = case.path("nothing");
        let what = install(&nothing, &case.path("etc/net.conf")).unwrap_err().to_string();
        assert_eq!(what, format!("cannot open {}", nothing.display()));
        let what = install(&case.path("source"), Path::new("/")).unwrap_err().to_string();
        assert_eq!(what, "cannot write to /: it is not the path of a file");
    }
}
