//! The host's iptables programs: which there are, and of which kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use flannel_common::SearchPath;
use flannel_nft::TableFamily;

use super::NAT;
use crate::protocol::{ErrorContext, Result, internal};
use crate::subprocess;

const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nftables,
    Legacy,
}

/// One family's programs of one kind.
pub(super) struct Program {
    pub(super) kind: Kind,
    /// The one called `iptables`, or the one that is all of them by another name.
    path: PathBuf,
    is_all: bool,
    name: &'static str,
}

impl Program {
    /// The one that others on this host use, the Go plugins among them: the first on the path.
    pub(super) fn of_host(family: TableFamily) -> Result<Self> {
        let name = name(family);
        Self::on_path(name).ok_or_else(|| {
            internal!("there is no {name} on the path of the container runtime").with_details(
                "install iptables, or ask for \"nftables\" where a plugin knows that backend",
            )
        })
    }

    /// Of a certain kind, wherever it is. `None`: this host does not have it, and so no rules made with it.
    pub(super) fn of_kind(family: TableFamily, kind: Kind) -> Option<Self> {
        let name = name(family);
        let suffix = match kind {
            Kind::Nftables => "nft",
            Kind::Legacy => "legacy",
        };
        // Runtimes start plugins with a short path, or with none.
        let path = SearchPath::of_environment();
        [format!("{name}-{suffix}"), name.to_owned()]
            .iter()
            .filter_map(|called| path.find(called))
            .map(|path| Self::at(path, name))
            .find(|program| program.kind == kind)
    }

    fn on_path(name: &'static str) -> Option<Self> {
        SearchPath::of_path_alone().find(name).map(|path| Self::at(path, name))
    }

    fn at(path: PathBuf, name: &'static str) -> Self {
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let file = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file.ends_with("-multi") {
            let is_nft = file.contains("nft") || file.contains("compat");
            let kind = if is_nft { Kind::Nftables } else { Kind::Legacy };
            return Self { kind, path: real, is_all: true, name };
        }
        // A script in its place, as some distributions have it, or a build of somebody's own.
        let kind = match subprocess::run(&path, &["--version"], &[], b"", PROGRAM_TIMEOUT) {
            Ok(said) if String::from_utf8_lossy(&said.stdout).contains("nf_tables") => {
                Kind::Nftables
            }
            _ => Kind::Legacy,
        };
        Self { kind, path, is_all: false, name }
    }

    /// Feeds `iptables-restore`, which does all of it or nothing.
    pub(super) fn restore(&self, options: &[&str], text: &str) -> Result<Output> {
        self.run("-restore", &[&["--noflush", "--wait"], options].concat(), text)
    }

    /// The table as `iptables-restore` would take it.
    pub(super) fn save(&self) -> Result<String> {
        let saved = self.run("-save", &["-t", NAT], "")?;
        if !saved.status.success() {
            let why = String::from_utf8_lossy(&saved.stderr).trim().to_owned();
            return Err(internal!("{}-save failed: {why}", self.name));
        }
        Ok(String::from_utf8_lossy(&saved.stdout).into_owned())
    }

    fn run(&self, suffix: &str, arguments: &[&str], input: &str) -> Result<Output> {
        let name = format!("{}{suffix}", self.name);
        let mut all = Vec::with_capacity(arguments.len() + 1);
        let path = if self.is_all {
            all.push(name.as_str());
            self.path.clone()
        } else {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            path.into()
        };
        all.extend(arguments);
        subprocess::run_with_us(&path, &all, input.as_bytes(), PROGRAM_TIMEOUT)
            .or_cni(format_args!("could not run {name} ({})", path.display()))
    }
}

/// Whether the host's iptables can be used at all: there is a program, and a kernel that it can talk to.
pub(super) fn works() -> bool {
    /// It was understood, whether or not there is such a chain.
    const UNDERSTOOD: [Option<i32>; 2] = [Some(0), Some(1)];
    let Some(program) = Program::on_path(name(TableFamily::Ipv4)) else { return false };
    // Then it needs what we need without it.
    if program.kind == Kind::Nftables || Path::new("/proc/self/net/ip_tables_names").exists() {
        return true;
    }
    let mut arguments = vec!["-w", "-t", "filter", "-S", "INPUT", "1"];
    if program.is_all {
        arguments.insert(0, program.name);
    }
    subprocess::run(&program.path, &arguments, &[], b"", PROGRAM_TIMEOUT)
        .is_ok_and(|asked| UNDERSTOOD.contains(&asked.status.code()))
}

/// Whether the kernel holds such a table of the older kind of iptables.
pub(super) fn has_legacy_table(family: TableFamily) -> bool {
    let names = match family {
        TableFamily::Ipv6 => "/proc/self/net/ip6_tables_names",
        _ => "/proc/self/net/ip_tables_names",
    };
    fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == NAT))
}

fn name(family: TableFamily) -> &'static str {
    match family {
        TableFamily::Ipv6 => "ip6tables",
        _ => "iptables",
    }
}
