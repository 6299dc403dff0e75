//! The flannel that runs in this network namespace now, of whatever make: how it was started.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use flannel_common::OperatorCommands;
use flannel_node::options::{self, Options, Parsed, StoreOptions};

const NAME: &str = "flanneld";

pub(crate) struct DaemonProcess {
    pid: u32,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

/// What an operator of this node types: by the daemon that runs here, else by what this host is.
pub(crate) fn operator_commands() -> OperatorCommands {
    match DaemonProcess::find() {
        Ok(Some(process)) => process.operator_commands(),
        Ok(None) | Err(_) => {
            let here = OperatorCommands::here(false);
            OperatorCommands { in_pods: here.in_pods || is_run_by_kubelet(Path::new("/")), ..here }
        }
    }
}

/// Whether a daemon that does not run now is one of a kubelet's pods: a kubelet is here, and no unit of systemd.
fn is_run_by_kubelet(root: &Path) -> bool {
    let units = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
    let is_unit = units.iter().any(|it| root.join(it).join("flanneld.service").exists());
    root.join("var/lib/kubelet/pods").is_dir() && !is_unit
}

/// Process id of the flanneld, of whatever make, that runs in this command's network namespace.
pub(crate) fn running() -> Option<u32> {
    processes().find(|(_, name)| name == NAME).map(|(pid, _)| pid)
}

/// Processes with their names, which the kernel cuts at 15 characters.
pub(crate) fn processes() -> impl Iterator<Item = (u32, String)> {
    let here = namespace(Path::new("/proc/thread-self"));
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let (pid, process) = (entry.file_name().to_str()?.parse().ok()?, entry.path());
        let name = fs::read_to_string(process.join("comm")).ok()?;
        let is_here = here.is_some() && namespace(&process) == here;
        is_here.then(|| (pid, name.trim_end().to_owned()))
    })
}

fn namespace(process: &Path) -> Option<u64> {
    Some(fs::metadata(process.join("ns/net")).ok()?.ino())
}

impl DaemonProcess {
    pub(crate) fn find() -> anyhow::Result<Option<Self>> {
        let Some(pid) = running() else { return Ok(None) };
        let read = |name: &str| {
            let file = format!("/proc/{pid}/{name}");
            fs::read(&file).with_context(|| format!("read {file}"))
        };
        let owned = |part: &[u8]| OsString::from_vec(part.to_vec());
        let split = |bytes: Vec<u8>| -> Vec<OsString> {
            bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty()).map(owned).collect()
        };
        let pair = |variable: OsString| {
            let mut parts = variable.as_bytes().splitn(2, |byte| *byte == b'=').map(owned);
            parts.next().zip(parts.next())
        };
        let environment = split(read("environ")?).into_iter().filter_map(pair).collect();
        Ok(Some(Self { pid, arguments: split(read("cmdline")?), environment }))
    }

    /// Without values of flags: there may be secrets among them.
    pub(crate) fn describe(&self) -> String {
        let program = fs::read_link(format!("/proc/{}/exe", self.pid));
        let program = program.map_or("flanneld".to_owned(), |path| path.display().to_string());
        format!("{program} (pid {})", self.pid)
    }

    /// Its flags and variables, by name. There may be secrets among them.
    pub(crate) fn given(&self) -> Vec<(String, String)> {
        let mut given = Vec::new();
        let mut words = self.arguments.iter().skip(1).map(|word| word.to_string_lossy()).peekable();
        while let Some(word) = words.next() {
            let name = word.trim_start_matches('-');
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                // A flag of two words.
                None => match words.next_if(|next| !next.starts_with('-')) {
                    Some(value) => (name.to_owned(), value.into_owned()),
                    None => (name.to_owned(), "true".to_owned()),
                },
            };
            given.push((format!("--{name}"), value));
        }
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        given.extend(self.environment.iter().map(|(name, value)| (text(name), text(value))));
        given
    }

    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let parsed =
            options::parse(self.arguments.iter().cloned(), self.environment.iter().cloned());
        match parsed? {
            Parsed::Run { options, .. } => Ok(*options),
            Parsed::Help(_) | Parsed::Version => {
                bail!("it only prints help or its version, and ends")
            }
        }
    }

    fn operator_commands(&self) -> OperatorCommands {
        let is_kube = |options: Options| {
            options.networks.iter().any(|it| matches!(it.store, StoreOptions::Kube(_)))
        };
        OperatorCommands {
            leases_are_nodes: self.options().is_ok_and(is_kube),
            in_pods: self.variable("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }

    /// A file as that process sees it: it may have a file system of its own.
    pub(crate) fn inside(&self, file: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let file = match file.is_relative() {
            true => fs::read_link(format!("/proc/{}/cwd", self.pid)).unwrap_or_default().join(file),
            false => file.to_owned(),
        };
        root.join(file.strip_prefix("/").unwrap_or(&file))
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let found = self.environment.iter().find(|(found, _)| found.as_os_str() == name)?;
        found.1.to_str().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_run_is_a_pod_where_a_kubelet_is_and_no_unit() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_run_by_kubelet(root.path()));
        fs::create_dir_all(root.path().join("var/lib/kubelet/pods")).unwrap();
        assert!(is_run_by_kubelet(root.path()));
        let units = root.path().join("etc/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::write(units.join("flanneld.service"), "").unwrap();
        assert!(!is_run_by_kubelet(root.path()));
    }
}
