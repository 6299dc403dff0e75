//! Podman on a lab node, with flannel's CNI plugin for its network.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::symlink;
use std::path::Path;

use flannel_lab::{Cgroups, Node, Place as _};

use crate::image;
use crate::programs::{Unpacked, cni_plugin, env_command, own_directory};
use crate::runtime::Runtime;

/// The network's name in the conflist.
const NETWORK: &str = "cbr0";
/// Where the node's only CNI plugin is, under its five names.
const PLUGINS: &str = "/run/cni-bin";
const CONFLISTS: &str = "/etc/cni/net.d";
const SETTINGS: &str = "/run/podman/containers.conf";
const STORAGE: &str = "/run/podman/storage.conf";
const POLICY: &str = "/run/podman/policy.json";

/// What every cluster's ConfigMap holds.
const CONFLIST: &str = r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
"#;

/// A node's podman.
#[derive(Debug)]
pub struct Podman<'a> {
    node: &'a Node,
    command: Vec<OsString>,
    /// Dropped last: after the containers.
    cgroups: Cgroups,
}

impl<'a> Podman<'a> {
    /// Sets podman up on a node; there is nothing to start.
    pub fn on(node: &'a Node) -> Self {
        let programs = Unpacked::find("podman");
        let cgroups = Cgroups::new(node.namespace().label());
        own_directory(node, "/var/lib");
        image::make(node);
        install_plugin(node);
        configure(node, &programs);

        let mut command = env_command(&[
            programs.path(),
            programs.libraries(),
            format!("CONTAINERS_CONF={SETTINGS}"),
            format!("CONTAINERS_STORAGE_CONF={STORAGE}"),
            "TMPDIR=/run/podman".to_owned(),
        ]);
        command.push(programs.program("podman").into());
        let podman = Self { node, command, cgroups };
        podman.run(&["import", "--signature-policy", POLICY, image::IMAGE_TAR, "busybox"]);
        podman
    }

    /// The address that a container sees on its own device.
    pub fn address(&self, name: &str) -> Ipv4Addr {
        let shown = self.exec(name, &["ip", "-4", "addr", "show", "eth0"]).expect("look inside");
        let net = shown.split("inet ").nth(1).and_then(|rest| rest.split('/').next());
        net.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address in {shown}"))
    }

    /// The IPv6 address that a container sees on its own device.
    pub fn address6(&self, name: &str) -> Ipv6Addr {
        let shown = self.exec(name, &["ip", "-6", "addr", "show", "eth0", "scope", "global"]);
        let shown = shown.expect("look inside");
        let net = shown.split("inet6 ").nth(1).and_then(|rest| rest.split('/').next());
        net.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address in {shown}"))
    }

    /// The node loses its power and comes back: no process, no namespace, no runtime's memory of a
    /// container. What is on disk stays, reservations among it.
    pub fn lose_power(&self) {
        let pids = self.run(&["inspect", "--format", "{{.State.ConmonPid}} {{.State.Pid}}", "-l"]);
        // The supervisor first, so that it does not call for a DEL.
        for pid in pids.split_whitespace() {
            self.node.exec(&["kill", "-9", pid]).expect("kill a container");
        }
        let forget = "grep -o ' /run/podman/[^ ]*' /proc/mounts | xargs -r umount --lazy; \
                      umount /run/netns/*; rm -r /run/netns/* /run/podman/*; ip link del cni0";
        self.node.exec(&["sh", "-ec", forget]).expect("forget everything");
        self.node
            .exec(&["sh", "-ec", "find /var/lib/cni/networks -exec touch -d '2 hours ago' {} +"])
            .expect("let time pass");
    }

    /// Takes an image in; returns its id.
    pub fn pull(&self, image: &str) -> flannel_lab::Result<String> {
        self.try_run(&["pull", "--quiet", "--signature-policy", POLICY, image])
    }

    /// Removes a container, running or not.
    pub fn remove(&self, name: &str) {
        self.run(&["rm", "--force", "--time", "0", name]);
    }

    /// The addresses that are reserved on the node.
    pub fn reserved(&self) -> Vec<Ipv4Addr> {
        let list =
            self.node.exec(&["ls", "/var/lib/cni/networks/cbr0"]).expect("list reservations");
        list.lines().filter_map(|name| name.parse().ok()).collect()
    }

    fn run(&self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Runtime for Podman<'_> {
    fn start(&self, name: &str, options: &[&str], command: &[&str]) {
        let parent = self.cgroups.parent();
        let mut words = vec!["run", "--detach", "--name", name, "--network", NETWORK];
        words.extend(["--cgroup-parent", &parent]);
        words.extend(options);
        words.push("busybox");
        words.extend(command);
        self.run(&words);
    }

    fn try_run(&self, words: &[&str]) -> flannel_lab::Result<String> {
        let mut command = self.command.clone();
        command.extend(words.iter().map(OsString::from));
        self.node.namespace().exec(&command)
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        let _ = self.try_run(&["rm", "--all", "--force", "--time", "0"]);
    }
}

/// One program under all names: a node needs no other CNI package.
fn install_plugin(node: &Node) {
    let plugin = cni_plugin();
    node.in_netns(|| {
        let dir = Path::new(PLUGINS);
        fs::create_dir_all(dir)?;
        symlink(&plugin, dir.join("flannel"))?;
        symlink("flannel", dir.join("portmap"))?;
        symlink("flannel", dir.join("loopback"))?;
        fs::create_dir_all(CONFLISTS)?;
        fs::write(Path::new(CONFLISTS).join("10-flannel.conflist"), CONFLIST)
    })
    .expect("enter the node")
    .expect("install the CNI plugin");
}

fn configure(node: &Node, programs: &Unpacked) {
    let [conmon, runc] = ["conmon", "runc"].map(|name| programs.program(name));
    // Locks in files: those in shared memory would be shared with the other nodes. Limits: podman's
    // own are higher than an unprivileged machine allows.
    let settings = format!(
        r#"[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
log_driver = "k8s-file"

[engine]
cgroup_manager = "cgroupfs"
conmon_path = ["{conmon}"]
events_logger = "none"
lock_type = "file"
runtime = "runc"
static_dir = "/run/podman/static"
tmp_dir = "/run/podman/tmp"
volume_path = "/run/podman/volumes"

[engine.runtimes]
runc = ["{runc}"]

[network]
network_backend = "cni"
cni_plugin_dirs = ["{PLUGINS}"]
network_config_dir = "{CONFLISTS}"
default_network = "{NETWORK}"
"#
    );
    let storage = "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/podman/run\"\n\
                   graphroot = \"/run/podman/storage\"\n";
    let policy = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    node.exec(&["mkdir", "-p", "/run/podman"]).expect("make podman's directory");
    for (path, text) in [(SETTINGS, settings.as_str()), (STORAGE, storage), (POLICY, policy)] {
        node.write_file(path, text).expect("configure podman");
    }
}
