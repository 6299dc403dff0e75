//! `install-conf <source> <destination>`: puts a file in its place in one step, so that whoever watches the
//! directory, as container runtimes watch that of CNI, never sees half of it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

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
        Err(Failure(what, error)) => {
            eprintln!("install-conf: cannot {what}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What was attempted, and what came of it.
#[derive(Debug)]
struct Failure(String, io::Error);

trait Attempt<T> {
    fn or_fail(self, verb: &str, path: &Path) -> Result<T, Failure>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn or_fail(self, verb: &str, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{verb} {}", path.display()), error))
    }
}

fn install(source: &Path, destination: &Path) -> Result<(), Failure> {
    let name = destination.file_name().ok_or(io::ErrorKind::InvalidInput.into());
    name.or_fail("write to", destination)?;
    // Left by an older release that was killed.
    match fs::remove_file(temporary_path(destination, "tmp")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).or_fail("remove the stale copy beside", destination);
        }
        _ => {}
    }
    let mode = fs::metadata(source).or_fail("open", source)?.permissions().mode() & 0o777;
    let bytes = fs::read(source).or_fail("copy", source)?;
    replace_file(destination, &bytes, mode).or_fail("replace", destination)
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

        fn install(&self) -> Result<(), Failure> {
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
        let Failure(what, _) = case.install().unwrap_err();
        assert!(what.starts_with("replace "), "{what}");
        assert_eq!(case.files(), ["net.conf"]);

        fs::remove_file(case.path("source")).unwrap();
        fs::create_dir(case.path("source")).unwrap();
        let Failure(what, _) = case.install().unwrap_err();
        assert!(what.starts_with("copy "), "{what}");
        assert_eq!(case.files(), ["net.conf"]);
    }

    #[test]
    fn a_missing_source_or_directory_is_named() {
        let case = Case::new();
        let missing = case.path("missing/net.conf");
        let Failure(what, _) = install(&case.path("source"), &missing).unwrap_err();
        assert_eq!(what, format!("replace {}", missing.display()));
        let nothing = case.path("nothing");
        let Failure(what, _) = install(&nothing, &case.path("etc/net.conf")).unwrap_err();
        assert_eq!(what, format!("open {}", nothing.display()));
        let Failure(what, _) = install(&case.path("source"), Path::new("/")).unwrap_err();
        assert_eq!(what, "write to /");
    }
}
