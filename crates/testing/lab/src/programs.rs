//! Finding the programs that a lab runs.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{LabError, Result};

/// Directories that hold `ip` and its like but are not in everybody's PATH.
const ADMIN_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Checks what no lab can do without: root, and iproute2.
pub fn check_host() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    for tool in ["ip", "tc", "bridge"] {
        if in_path(tool).is_none() {
            let hint = "install the package iproute2";
            return Err(LabError::MissingTool { tool, hint });
        }
    }
    Ok(())
}

/// Lets a command find programs of the administrator.
pub(crate) fn with_admin_path(command: &mut Command) {
    command.env("PATH", search_path());
}

/// The etcd to run: as asked, else from the environment, else where `scripts/deps` puts it.
pub fn etcd(asked: Option<&Path>) -> Result<PathBuf> {
    let mut search = Search::default();
    if let Some(path) = asked {
        return executable(path);
    }
    for name in ["FLANNEL_ETCD", "FLANNEL_TEST_ETCD"] {
        if let Some(path) = env::var_os(name) {
            return executable(Path::new(&path));
        }
        search.looked.push(format!("${name}"));
    }
    if let Some(home) = env::var_os("HOME") {
        search.look(Path::new(&home).join(".cache/flannel-rs/bin/etcd"));
    }
    search.look_in_path("etcd");
    search.end("etcd", "`scripts/deps etcd` fetches it, --etcd or FLANNEL_ETCD names another one")
}

/// The flanneld to run on nodes for which no other was named.
pub fn flanneld(asked: Option<&Path>) -> Result<PathBuf> {
    let mut search = Search::default();
    if let Some(path) = asked {
        return executable(path);
    }
    if let Ok(me) = env::current_exe() {
        // A test's executable lies one directory below the binaries.
        for dir in me.ancestors().skip(1).take(2) {
            search.look(dir.join("flanneld"));
        }
    }
    if let Some(dir) = env::var_os("FLANNEL_BIN_DIR") {
        search.look(Path::new(&dir).join("flanneld"));
    } else {
        search.looked.push("$FLANNEL_BIN_DIR".into());
    }
    // Cargo marks its target directory; another profile may have what ours lacks.
    let me = env::current_exe().unwrap_or_default();
    if let Some(target) = me.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists()) {
        for profile in ["release", "debug"] {
            search.look(target.join(profile).join("flanneld"));
        }
    }
    search.look_in_path("flanneld");
    search.end("flanneld", "`cargo build -p flanneld` makes it, --node N=PATH names another one")
}

/// The Go flannel to compare with: from the environment, else where `scripts/deps` puts it.
pub fn go_flanneld() -> Result<PathBuf> {
    if let Some(path) = env::var_os("FLANNEL_TEST_GO_FLANNELD") {
        return executable(Path::new(&path));
    }
    let mut search = Search::default();
    search.looked.push("$FLANNEL_TEST_GO_FLANNELD".into());
    if let Some(home) = env::var_os("HOME") {
        search.look(Path::new(&home).join(".cache/flannel-rs/bin/go-flanneld"));
    }
    search.end("go-flanneld", "`scripts/deps go-flannel` builds it")
}

/// A path that must be a program, made absolute because nodes have another working directory.
pub(crate) fn executable(path: &Path) -> Result<PathBuf> {
    if !is_executable(path) {
        return Err(LabError::NotExecutable { path: path.to_owned() });
    }
    std::path::absolute(path).map_err(|_| LabError::NotExecutable { path: path.to_owned() })
}

#[derive(Default)]
struct Search {
    looked: Vec<String>,
    found: Option<PathBuf>,
}

impl Search {
    fn look(&mut self, path: PathBuf) {
        if self.found.is_none() && is_executable(&path) {
            self.found = std::path::absolute(&path).ok();
        }
        self.looked.push(path.display().to_string());
    }

    fn look_in_path(&mut self, name: &str) {
        self.found = self.found.take().or_else(|| in_path(name));
        self.looked.push("$PATH".into());
    }

    fn end(self, name: &'static str, hint: &'static str) -> Result<PathBuf> {
        let looked = self.looked.join(", ");
        self.found.ok_or(LabError::MissingBinary { name, looked, hint })
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&search_path()).map(|dir| dir.join(name)).find(|path| is_executable(path))
}

pub(crate) fn search_path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut dirs: Vec<PathBuf> = env::split_paths(&path).collect();
    for dir in ADMIN_DIRS {
        if !dirs.iter().any(|known| known == Path::new(dir)) {
            dirs.push(dir.into());
        }
    }
    env::join_paths(dirs).unwrap_or(path)
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
