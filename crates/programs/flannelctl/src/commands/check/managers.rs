//! Programs that manage network devices and might take flannel's for theirs.

use std::fs;
use std::path::{Path, PathBuf};

use super::node_context::NodeContext;
use crate::commands::daemon_process::processes;
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Managers;
const NETWORK_MANAGER: [&str; 3] =
    ["/etc/NetworkManager/conf.d", "/run/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d"];
const NETWORKD: [&str; 4] = [
    "/etc/systemd/network",
    "/run/systemd/network",
    "/usr/local/lib/systemd/network",
    "/usr/lib/systemd/network",
];

const NETWORKD_CONF: [&str; 3] = [
    "/etc/systemd/networkd.conf.d",
    "/run/systemd/networkd.conf.d",
    "/usr/lib/systemd/networkd.conf.d",
];

struct Facts {
    running: Vec<String>,
    network_manager: Vec<(String, String)>,
    /// `.network` files of systemd-networkd, those that are read first coming first.
    networkd: Vec<(String, String)>,
    networkd_conf: Vec<(String, String)>,
    devices: Vec<String>,
    routes_on_card: bool,
}

pub(super) fn look(context: &NodeContext) -> Vec<Finding> {
    let mut network_manager = files(&NETWORK_MANAGER, ".conf");
    network_manager.extend(file(Path::new("/etc/NetworkManager/NetworkManager.conf")));
    let mut networkd_conf = files(&NETWORKD_CONF, ".conf");
    networkd_conf.extend(file(Path::new("/etc/systemd/networkd.conf")));
    let devices = context.networks.iter().flat_map(|network| network.devices.iter().cloned());
    judge(&Facts {
        running: processes().map(|(_, name)| name).collect(),
        network_manager,
        networkd: files(&NETWORKD, ".network"),
        networkd_conf,
        devices: devices.chain(["cni0".to_owned()]).collect(),
        routes_on_card: context.networks.iter().any(|network| network.devices.is_empty()),
    })
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let runs = |name: &str| facts.running.iter().any(|program| program == name);
    let mut findings = Vec::new();
    if runs("NetworkManager") {
        let is_ours = |one: &str| {
            let glob = one.trim().strip_prefix("interface-name:");
            glob.is_some_and(|glob| matches(glob, flannel_entries::devices::USUAL_DEVICE))
        };
        let mut settings = facts.network_manager.iter();
        let left_alone = settings.any(|(_, text)| {
            values(text, "unmanaged-devices").any(|value| value.split([';', ',']).any(is_ours))
        });
        if !left_alone {
            findings.push(Finding::warning(
                LAYER,
                "NetworkManager runs here, and is not told to leave flannel's devices alone",
                "it may take addresses and routes off them, which flanneld has to put back, and make connections for pods' devices",
                "printf '[keyfile]\\nunmanaged-devices=interface-name:flannel*;interface-name:cni*;interface-name:veth*\\n' > \
                 /etc/NetworkManager/conf.d/flannel.conf && systemctl reload NetworkManager",
            ));
        }
    }
    if runs("systemd-network") {
        for device in &facts.devices {
            // The first file that matches is the one that counts.
            let taken = facts.networkd.iter().find(|(_, text)| {
                values(text, "Name")
                    .any(|names| names.split_whitespace().any(|glob| matches(glob, device)))
            });
            if let Some((file, text)) = taken
                && !values(text, "Unmanaged")
                    .any(|value| ["yes", "true", "1", "on"].contains(&value))
            {
                findings.push(Finding::broken(
                    LAYER,
                    format!("systemd-networkd manages {device}, by {file}"),
                    "it takes the addresses and routes off it that flanneld has written, whenever it is restarted",
                    "printf '[Match]\\nName=flannel* cni0\\n[Link]\\nUnmanaged=yes\\n' > /etc/systemd/network/00-flannel.network && \
                     networkctl reload",
                ));
                break;
            }
        }
        let keeps = facts.networkd_conf.iter().any(|(_, text)| {
            values(text, "ManageForeignRoutes")
                .any(|value| ["no", "false", "0", "off"].contains(&value))
        });
        if facts.routes_on_card && !keeps {
            findings.push(Finding::warning(
                LAYER,
                "systemd-networkd removes routes of others from the devices that it manages",
                "flannel's routes to peers are on such a device: each restart of systemd-networkd removes them, and flanneld puts them back",
                "mkdir -p /etc/systemd/networkd.conf.d && printf '[Network]\\nManageForeignRoutes=no\\n' > \
                 /etc/systemd/networkd.conf.d/flannel.conf && systemctl restart systemd-networkd",
            ));
        }
    }
    findings
}

/// Values of a key in a file of `Key=value` lines.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// As a shell matches names, with `*` and `?`.
fn matches(glob: &str, name: &str) -> bool {
    match glob.as_bytes() {
        [] => name.is_empty(),
        [b'*', ..] => {
            (0..=name.len()).any(|at| name.get(at..).is_some_and(|rest| matches(&glob[1..], rest)))
        }
        [b'?', ..] => !name.is_empty() && matches(&glob[1..], &name[1..]),
        [one, ..] => name.as_bytes().first() == Some(one) && matches(&glob[1..], &name[1..]),
    }
}

/// Files of several directories by their names, of which the first directory that has one wins.
fn files(directories: &[&str], ending: &str) -> Vec<(String, String)> {
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let known = found.iter().any(|path| path.file_name() == Some(&name));
            if !known && name.to_string_lossy().ends_with(ending) {
                found.push(entry.path());
            }
        }
    }
    found.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    found.iter().filter_map(|path| file(path)).collect()
}

fn file(path: &Path) -> Option<(String, String)> {
    Some((path.display().to_string(), fs::read_to_string(path).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(running: &[&str]) -> Facts {
        Facts {
            running: running.iter().map(|name| (*name).to_owned()).collect(),
            network_manager: Vec::new(),
            networkd: Vec::new(),
            networkd_conf: Vec::new(),
            devices: vec!["flannel.1".to_owned(), "cni0".to_owned()],
            routes_on_card: false,
        }
    }

    #[test]
    fn network_manager_is_a_finding_unless_it_leaves_flannel_alone() {
        assert_eq!(judge(&facts(&["bash"])), []);
        assert_eq!(judge(&facts(&["NetworkManager"])).len(), 1);
        let text = "[keyfile]\nunmanaged-devices=interface-name:flannel*;interface-name:cni*\n";
        let told = vec![("flannel.conf".to_owned(), text.to_owned())];
        assert_eq!(judge(&Facts { network_manager: told, ..facts(&["NetworkManager"]) }), []);
    }

    #[test]
    fn networkd_is_a_finding_if_a_file_of_it_takes_our_device() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let all = file("10-all.network", "[Match]\nName=*\n[Network]\nDHCP=yes\n");
        let ours =
            file("05-flannel.network", "[Match]\nName=flannel* cni0\n[Link]\nUnmanaged=yes\n");
        let cards = file("20-eth.network", "[Match]\nName=en* eth?\n");
        let runs = || facts(&["systemd-network"]);
        assert_eq!(judge(&Facts { networkd: vec![cards.clone()], ..runs() }), []);
        let found = judge(&Facts { networkd: vec![all.clone()], ..runs() });
        assert!(found[0].about.contains("manages flannel.1, by 10-all.network"), "{found:?}");
        assert_eq!(judge(&Facts { networkd: vec![ours, all], ..runs() }), []);
        assert_eq!(judge(&Facts { routes_on_card: true, ..runs() }).len(), 1);
        let keeps = vec![file("x", "[Network]\nManageForeignRoutes=no")];
        assert_eq!(judge(&Facts { routes_on_card: true, networkd_conf: keeps, ..runs() }), []);
    }
}
