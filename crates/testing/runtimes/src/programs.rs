//! Where the programs are that these tests run.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flannel_lab::Node;

/// Programs unpacked from Debian's packages, with the libraries that the machine lacks.
#[derive(Debug)]
pub(crate) struct Unpacked {
    root: PathBuf,
}

impl Unpacked {
    /// What `scripts/deps PIECE` has got.
    pub(crate) fn find(piece: &str) -> Self {
        let variable = format!("FLANNEL_TEST_{}_ROOT", piece.to_uppercase());
        let root = fetched(&variable, &format!("{piece}-root"), piece);
        let root = root.canonicalize().expect("resolve the cache's links");
        Self { root }
    }

    /// The path of one of its programs.
    pub(crate) fn program(&self, name: &str) -> String {
        ["usr/bin", "usr/sbin", "bin", "sbin"]
            .map(|dir| self.root.join(dir).join(name))
            .into_iter()
            .find(|path| path.is_file())
            .unwrap_or_else(|| panic!("no {name} in {}", self.root.display()))
            .display()
            .to_string()
    }

    /// A setting for `env` by which the programs find each other.
    pub(crate) fn path(&self) -> String {
        let own = ["usr/bin", "usr/sbin"].map(|dir| self.root.join(dir));
        let host = env::var_os("PATH").unwrap_or_default();
        let admin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        setting("PATH", own.into_iter().chain(env::split_paths(&host)).chain(admin))
    }

    /// A setting for `env` by which the programs find their libraries.
    pub(crate) fn libraries(&self) -> String {
        let holding = ["usr/lib", "lib"].map(|dir| self.root.join(dir));
        let entries = holding.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("-gnu"));
        setting("LD_LIBRARY_PATH", named.map(|entry| entry.path()))
    }
}

fn setting(name: &str, dirs: impl Iterator<Item = PathBuf>) -> String {
    let joined = env::join_paths(dirs).unwrap_or_else(|error| panic!("{name}: {error}"));
    format!("{name}={}", joined.display())
}

/// The static busybox that containers run.
pub(crate) fn busybox() -> PathBuf {
    fetched("FLANNEL_TEST_BUSYBOX", "busybox", "busybox")
}

/// The flanneld under test.
pub fn flanneld() -> PathBuf {
    built("flanneld")
}

/// The flannelctl under test.
pub fn flannelctl() -> String {
    built("flannelctl").display().to_string()
}

/// The flannel-lab under test.
pub fn flannel_lab() -> String {
    built("flannel-lab").display().to_string()
}

/// The CNI plugin under test.
pub(crate) fn cni_plugin() -> PathBuf {
    built("flannel")
}

/// A file of this repository.
pub fn of_repository(path: &str) -> String {
    let package = env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests, and says where");
    format!("{package}/../../../{path}")
}

pub(crate) fn fetched(variable: &str, name: &str, piece: &str) -> PathBuf {
    let path = env::var_os(variable).map(PathBuf::from).unwrap_or_else(|| {
        let home = env::var_os("HOME").expect("HOME is set");
        Path::new(&home).join(".cache/flannel-rs/bin").join(name)
    });
    assert!(
        path.exists(),
        "nothing at {}: run `scripts/deps {piece}` or set {variable}",
        path.display()
    );
    path
}

fn built(name: &str) -> PathBuf {
    let dir = env::var_os("FLANNEL_BIN_DIR").map(PathBuf::from).unwrap_or_else(|| {
        // A test's executable lies one directory below the binaries.
        let me = env::current_exe().expect("know this program's path");
        me.ancestors().nth(2).expect("a target directory").to_owned()
    });
    let path = dir.join(name);
    assert!(path.exists(), "no {name} in {}: run `cargo build --workspace`", dir.display());
    path
}

/// Gives the node its own copy of a directory: changes stay in the node and end with it.
pub(crate) fn own_directory(node: &Node, dir: &str) {
    let [upper, work] =
        ["upper", "work"].map(|part| format!("/run/own{}/{part}", dir.replace('/', "-")));
    let options = format!("lowerdir={dir},upperdir={upper},workdir={work}");
    node.exec(&["mkdir", "-p", &upper, &work]).expect("make room for the node's own files");
    node.exec(&["mount", "-t", "overlay", "overlay", "-o", &options, dir])
        .expect("give the node its own copy of a directory");
}

/// The environment besides which a runtime gets only what it is given.
pub(crate) fn env_command(settings: &[String]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["env".into()];
    words.extend(settings.iter().map(OsString::from));
    words
}

/// Puts a figure where people see it, also when the test passes.
pub fn measured(what: impl Display) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "measured: {name}: {what}");
}
