//! What makes a lab node a node of the cluster: containerd, kubelet and kube-proxy.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::cgroups::Cgroups;
use crate::error::{Context, Result};
use crate::logs::{LogDir, LogFile};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::wait::wait_until;

use super::certificates::Authority;
use super::control_plane::{spawn, write_files};
use super::spec::KubernetesSpec;

const DIRECTORY: &str = "/etc/kubernetes";
const SOCKET: &str = "/run/containerd/containerd.sock";
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What starts in this order, and ends in the other.
const CONTAINERD: &str = "containerd";
const KUBELET: &str = "kubelet";
const PROXY: &str = "kube-proxy";

/// Directories in which a node writes: its own from now on, and still there after a reboot. The
/// others lie over what the host has.
const OWN: [&str; 3] = ["/etc", "/var", "/opt"];
/// Container runtimes lay file systems over these, for which the place must not be such a one itself.
const PLAIN: [&str; 2] = ["/var/lib/containerd", "/var/lib/kubelet"];

/// Settings of the whole machine that a kubelet wants to make: it gets files to write them to.
const OF_THE_MACHINE: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The agents of one node.
#[derive(Debug)]
pub(crate) struct Agents {
    namespace: Namespace,
    spec: KubernetesSpec,
    logs: Vec<(&'static str, LogFile)>,
    processes: Mutex<Vec<Process>>,
    cgroups: Cgroups,
}

impl Agents {
    /// Gives the node its own directories and writes what the agents are told.
    pub(crate) fn new(
        namespace: &Namespace,
        spec: &KubernetesSpec,
        addresses: &[String],
        server: &str,
        authority: &Authority,
        logs: &LogDir,
    ) -> Result<Self> {
        let label = namespace.label();
        let log = |name| (name, logs.log(&format!("{label}-{name}")));
        let cgroups = Cgroups::new(label);
        own_directories(namespace)?;
        if let Some(plugins) = &spec.cni_plugins {
            let from = format!("{}/.", plugins.display());
            let to = spec.cni_bin_dir.as_str();
            namespace.exec(&["mkdir", "--parents", to])?;
            namespace.exec(&["cp", "--recursive", "--dereference", &from, to])?;
        }
        let user = |user: &str, group| -> Result<String> {
            Ok(authority.kubeconfig(server, &authority.client(user, group)?))
        };
        let files = [
            ("ca.crt", authority.certificate()),
            ("containerd.toml", containerd_config(spec)),
            ("kubelet.json", kubelet_config(&cgroups)),
            ("kubelet.kubeconfig", user(&format!("system:node:{label}"), Some("system:nodes"))?),
            ("proxy.json", proxy_config(spec, label)),
            ("proxy.kubeconfig", user("system:kube-proxy", None)?),
            ("addresses", addresses.join(",")),
        ];
        write_files(namespace, DIRECTORY, &files)?;
        Ok(Self {
            namespace: namespace.clone(),
            spec: spec.clone(),
            logs: [CONTAINERD, KUBELET, PROXY].map(log).into(),
            processes: Mutex::default(),
            cgroups,
        })
    }

    /// Starts all three; the images are there before the kubelet asks for them.
    pub(crate) fn start(&self) -> Result<()> {
        let unpacked = Unpacked(&self.spec.containerd);
        let mut containerd = Command::new(unpacked.program(CONTAINERD)?);
        containerd.args(["--config", "containerd.toml"]);
        unpacked.environment(&mut containerd);
        self.run(CONTAINERD, &containerd)?;
        wait_until("containerd to answer", ANSWER_LIMIT, || self.ctr(&["version"]))?;
        for image in &self.spec.images {
            self.import(image)?;
        }

        let mut kubelet = Command::new(self.spec.program(KUBELET)?);
        let address = self.namespace.run(|| fs::read_to_string("/etc/kubernetes/addresses"))?;
        kubelet
            .args(["--config", "kubelet.json", "--kubeconfig", "kubelet.kubeconfig"])
            .args(["--hostname-override", self.namespace.label()])
            .args(["--node-ip", address.unwrap_or_default().trim()]);
        self.run(KUBELET, &kubelet)?;
        let mut proxy = Command::new(self.spec.program(PROXY)?);
        proxy.args(["--config", "proxy.json"]);
        self.run(PROXY, &proxy)
    }

    /// Takes an image in from an archive.
    pub(crate) fn import(&self, archive: &std::path::Path) -> Result<()> {
        self.ctr(&["images", "import", "--all-platforms=false", &archive.display().to_string()])
            .map(drop)
    }

    /// containerd's own client, in the part of it that Kubernetes uses.
    pub(crate) fn ctr(&self, words: &[&str]) -> Result<String> {
        let unpacked = Unpacked(&self.spec.containerd);
        let mut command: Vec<OsString> = vec!["env".into()];
        command.extend(unpacked.settings());
        command.extend([unpacked.program("ctr")?.into(), "-a".into(), SOCKET.into()]);
        command.extend(["-n", "k8s.io"].map(OsString::from));
        command.extend(words.iter().map(OsString::from));
        self.namespace.exec(&command)
    }

    /// Ends all of it at once: agents, containers, and what the runtime started for them.
    pub(crate) fn power_off(&self) -> Result<()> {
        self.processes().clear();
        self.namespace.kill_all(self.cgroups.name())
    }

    /// Removes what stays when all processes have ended.
    pub(crate) fn sweep(&self) {
        self.cgroups.remove();
    }

    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let tail = |(name, log): &(&str, LogFile)| format!("  {name}:\n{}", log.tail(lines));
        self.logs.iter().map(tail).collect()
    }

    fn run(&self, name: &'static str, command: &Command) -> Result<()> {
        let log = self.logs.iter().find(|(known, _)| *known == name).map(|(_, log)| log);
        let log = log.unwrap_or(&self.logs[0].1);
        let process = spawn(&self.namespace, DIRECTORY, command, log)?;
        self.processes().push(process);
        Ok(())
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Programs unpacked from Debian's packages, with the libraries that the machine lacks.
struct Unpacked<'a>(&'a std::path::Path);

impl Unpacked<'_> {
    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = ["usr/bin", "usr/sbin"].map(|dir| self.0.join(dir).join(name));
        let found = path.iter().find(|path| path.is_file()).unwrap_or(&path[0]);
        crate::programs::executable(found)
    }

    fn settings(&self) -> Vec<OsString> {
        let mut path: Vec<PathBuf> = ["usr/bin", "usr/sbin"].map(|dir| self.0.join(dir)).into();
        path.extend(std::env::split_paths(&crate::programs::search_path()));
        let holding = ["usr/lib", "lib"].map(|dir| self.0.join(dir));
        let entries = holding.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten();
        let libraries = entries
            .filter(|entry| entry.file_name().to_string_lossy().ends_with("-gnu"))
            .map(|entry| entry.path());
        let setting = |name: &str, dirs: Vec<PathBuf>| {
            let mut setting = OsString::from(format!("{name}="));
            setting.push(std::env::join_paths(dirs).unwrap_or_default());
            setting
        };
        vec![setting("PATH", path), setting("LD_LIBRARY_PATH", libraries.collect())]
    }

    fn environment(&self, command: &mut Command) {
        let mut words: Vec<OsString> = vec![command.get_program().to_owned()];
        words.extend(command.get_args().map(OsString::from));
        let mut whole = Command::new("env");
        whole.args(self.settings()).args(words);
        *command = whole;
    }
}

fn own_directories(namespace: &Namespace) -> Result<()> {
    let mut script = String::from("set -e\nmkdir -p /run/disk\nmount -t tmpfs disk /run/disk\n");
    for dir in OWN {
        script.push_str(&format!(
            "mkdir -p /run/disk{dir}/upper /run/disk{dir}/work\n\
             mount -t overlay overlay -o lowerdir={dir},upperdir=/run/disk{dir}/upper,workdir=/run/disk{dir}/work {dir}\n"
        ));
    }
    for dir in PLAIN {
        script.push_str(&format!("mkdir -p {dir}\nmount -t tmpfs own {dir}\n"));
    }
    // What runs on the host is not a pod of this node.
    script.push_str("rm -rf /etc/cni /etc/kubernetes /opt/cni /var/log/pods /var/log/containers\n");
    script.push_str("mkdir -p /run/disk/machine /etc/cni/net.d /opt/cni/bin /var/lib/cni\n");
    for name in OF_THE_MACHINE {
        let file = name.replace('/', ".");
        script.push_str(&format!(
            "cat /proc/sys/{name} >/run/disk/machine/{file}\n\
             mount --bind /run/disk/machine/{file} /proc/sys/{name}\n"
        ));
    }
    script.push_str("mount --make-rshared /\n");
    namespace.exec(&["sh", "-c", &script]).map(drop)?;
    let bridges = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    let set =
        namespace.run(|| if fs::exists(bridges)? { fs::write(bridges, "1") } else { Ok(()) })?;
    set.context(|| format!("{}: let the packet filter see bridged packets", namespace.label()))
}

fn containerd_config(spec: &KubernetesSpec) -> String {
    let text = r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lab/pod:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "BIN_DIR"
    conf_dir = "CONF_DIR"
"#;
    text.replace("BIN_DIR", &spec.cni_bin_dir).replace("CONF_DIR", &spec.cni_conf_dir)
}

fn kubelet_config(cgroups: &Cgroups) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        // The machine's control groups are of whichever kind, and not the node's alone.
        "cgroupRoot": cgroups.parent(),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        // Its disks are the machine's memory.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
    })
    .to_string()
}

fn proxy_config(spec: &KubernetesSpec, label: &str) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/proxy.kubeconfig"},
        "hostnameOverride": label,
        "clusterCIDR": spec.pods,
        "mode": spec.proxy.word(),
        // How many connections are tracked is the whole machine's. How long each is, is the node's own.
        "conntrack": {"maxPerCore": 0, "min": 0},
    })
    .to_string()
}
