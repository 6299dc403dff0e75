//! What installing flannel has put into a container runtime's directories, and what its pods have left.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::commands::cni_conf::{self, CniConf};

/// The program, and what its links lead to.
const PROGRAM: &str = "flannel";

#[derive(Debug, Args)]
pub(super) struct CniArgs {
    /// Also the CNI configuration of flannel in this directory, such as /etc/cni/net.d
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Also the CNI plugin in this directory and its links, such as /opt/cni/bin
    #[arg(long, value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// Also what the plugin keeps of pods, such as /var/lib/cni, and the pods' bridge if no pod is on it
    #[arg(long, value_name = "DIR")]
    cni_state_dir: Option<PathBuf>,
}

impl CniArgs {
    pub(super) fn of_pods(&self) -> bool {
        self.cni_state_dir.is_some()
    }

    /// Files and directories that are there, state before what it is known by.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let confs = self.cni_conf_dir.as_deref().map(confs).unwrap_or_default();
        let mut paths = Vec::new();
        if let Some(state) = &self.cni_state_dir {
            paths.push(state.join(PROGRAM));
            let networks = confs.iter().filter_map(|(_, network)| network.as_deref());
            for network in networks.chain(["cbr0"]) {
                paths.push(state.join("networks").join(network));
                let prefix = format!("{network}-");
                paths.extend(within(&state.join("results"), |name| name.starts_with(&prefix)));
            }
        }
        paths.extend(confs.into_iter().map(|(path, _)| path));
        if let Some(programs) = &self.cni_bin_dir {
            let is_link = |name: &str| {
                fs::read_link(programs.join(name)).is_ok_and(|to| to == Path::new(PROGRAM))
            };
            paths.extend(within(programs, |name| name == PROGRAM || is_link(name)));
        }
        // A link that leads nowhere is there.
        paths.retain(|path| path.symlink_metadata().is_ok());
        paths.sort();
        paths.dedup();
        paths
    }
}

/// Configurations in which flannel is a plugin, with the names of their networks.
fn confs(dir: &Path) -> Vec<(PathBuf, Option<String>)> {
    // After a reboot, flanneld's link leads nowhere.
    let is_link =
        |conf: &CniConf| fs::read_link(&conf.path).is_ok_and(|to| to.starts_with("/run/flannel"));
    let all = cni_conf::read_all(dir).into_iter();
    let ours = all.filter(|conf| conf.is_flannels() || is_link(conf));
    let network = |conf: &CniConf| Some(conf.content.as_ref().ok()?["name"].as_str()?.to_owned());
    ours.map(|conf| (conf.path.clone(), network(&conf))).collect()
}

fn within(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn flannels_files_are_found_and_those_of_others_are_not() {
        let root = std::env::temp_dir().join(format!("flannelctl-cni-{}", std::process::id()));
        let path = |name: &str| root.join(name);
        for dir in ["conf", "bin", "state/flannel", "state/networks/blue", "state/networks/other"] {
            fs::create_dir_all(path(dir)).unwrap();
        }
        fs::write(path("conf/10-a.conflist"), r#"{"name":"blue","plugins":[{"type":"flannel"}]}"#)
            .unwrap();
        fs::write(path("conf/20-b.conf"), r#"{"name":"other","type":"bridge"}"#).unwrap();
        symlink("/run/flannel/none.conflist", path("conf/30-c.conflist")).unwrap();
        fs::write(path("bin/flannel"), "").unwrap();
        fs::write(path("bin/host-local"), "").unwrap();
        symlink("flannel", path("bin/bridge")).unwrap();
        symlink("elsewhere", path("bin/portmap")).unwrap();
        let args = CniArgs {
            cni_conf_dir: Some(path("conf")),
            cni_bin_dir: Some(path("bin")),
            cni_state_dir: Some(path("state")),
        };
        let found = args.paths();
        let expected = [
            "bin/bridge",
            "bin/flannel",
            "conf/10-a.conflist",
            "conf/30-c.conflist",
            "state/flannel",
            "state/networks/blue",
        ];
        assert_eq!(found, expected.map(path));
        fs::remove_dir_all(&root).unwrap();
    }
}
