//! A lab whose store is Kubernetes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_kube::testing::{ApiServer, NodeSpec, Proxy};
use flannel_lab::{Lab, LabBuilder, LabError, Pod, Result};
use serde_json::{Value, json};

/// Long enough for anything on a machine that is busy with other things.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Of the switch, where the API server is.
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 254));
/// Where the way to the API server leads through something that can be broken.
pub(crate) const PROXY_PORT: u16 = 7443;
const NET_CONF: &str = "net-conf.json";

pub(crate) struct Kube {
    /// Before the lab: it lives in the lab's network.
    pub(crate) server: ApiServer,
    pub(crate) lab: Lab,
}

pub(crate) fn flanneld() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_flanneld"))
}

/// The reference: the Go flannel.
pub(crate) fn go_flanneld() -> PathBuf {
    flannel_lab::find_go_flanneld().unwrap_or_else(|error| panic!("{error}"))
}

/// What has to be true of a [`Kube`] before its nodes are started.
pub(crate) struct KubeBuilder {
    lab: LabBuilder,
    nodes: u16,
    config: Value,
    dual: bool,
    flags: Vec<String>,
}

pub(crate) fn kube(nodes: u16) -> KubeBuilder {
    let mut lab = Lab::builder().nodes(nodes).flanneld(flanneld()).bare().ready_limit(LIMIT);
    for number in 1..=nodes {
        lab = lab.node_env(number, "NODE_NAME", name(number));
    }
    let config = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}});
    KubeBuilder { lab, nodes, config, dual: false, flags: Vec::new() }
}

pub(crate) fn name(number: u16) -> String {
    format!("node-{number}")
}

pub(crate) fn cidr(number: u16) -> String {
    format!("10.244.{number}.0/24")
}

pub(crate) fn cidr6(number: u16) -> String {
    format!("fd00:244:0:{number:x}::/64")
}

/// The annotation's whole name.
pub(crate) fn key(suffix: &str) -> String {
    format!("flannel.alpha.coreos.com/{suffix}")
}

impl KubeBuilder {
    pub(crate) fn backend(mut self, backend: Value) -> Self {
        self.config["Backend"] = backend;
        self
    }

    pub(crate) fn dual(mut self) -> Self {
        self.config["EnableIPv6"] = true.into();
        self.config["IPv6Network"] = "fd00:244::/48".into();
        self.dual = true;
        self
    }

    pub(crate) fn node_flanneld(mut self, number: u16, path: PathBuf) -> Self {
        self.lab = self.lab.node_flanneld(number, path);
        self
    }

    pub(crate) fn lab(mut self, change: impl FnOnce(LabBuilder) -> LabBuilder) -> Self {
        self.lab = change(self.lab);
        self
    }

    /// One more flag for every flanneld.
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Lab and API server, and no Nodes nor daemons.
    pub(crate) fn empty(self) -> Result<Kube> {
        let lab = self.lab.start()?;
        let server = ApiServer::builder().inside(lab.switch().paths().net, SERVER).start();
        let kube = Kube { server, lab };
        kube.put_config(&self.config);
        let kubeconfig = kube.server.admin_kubeconfig();
        for number in 1..=self.nodes {
            let daemon = kube.lab.node(number).flanneld();
            daemon.add_flag("--kube-subnet-mgr");
            daemon.add_flag(format!("--kubeconfig-file={}", kubeconfig.display()));
            daemon.add_flag(format!("--net-config-path={}", kube.server.file(NET_CONF).display()));
            self.flags.iter().for_each(|flag| daemon.add_flag(flag));
        }
        Ok(kube)
    }

    /// And Nodes.
    pub(crate) fn with_nodes(self) -> Result<Kube> {
        let (nodes, dual) = (self.nodes, self.dual);
        let kube = self.empty()?;
        (1..=nodes).for_each(|number| kube.server.create_node(&spec(number, dual)));
        Ok(kube)
    }

    /// And daemons.
    pub(crate) fn start(self) -> Result<Kube> {
        let kube = self.with_nodes()?;
        kube.lab.start_daemons()?;
        Ok(kube)
    }
}

pub(crate) fn spec(number: u16, dual: bool) -> NodeSpec {
    // A kubelet writes one, and the Go flannel cannot do without.
    let spec = NodeSpec::new(&name(number)).annotation("node.alpha.kubernetes.io/ttl", "0");
    let spec = spec.cidr(cidr(number));
    if dual { spec.cidr(cidr6(number)) } else { spec }
}

impl Kube {
    /// As the kubelet does it after somebody has edited the ConfigMap: the file is a link through `..data`, which
    /// leads to another directory from then on.
    pub(crate) fn put_config(&self, config: &Value) {
        let file = |name: &str| self.server.file(name);
        let former = std::fs::read_link(file("..data")).ok();
        let version = if former == Some("..one".into()) { "..two" } else { "..one" };
        std::fs::create_dir(file(version)).unwrap();
        std::fs::write(file(version).join(NET_CONF), config.to_string()).unwrap();
        symlink(version, file("..data_tmp")).unwrap();
        std::fs::rename(file("..data_tmp"), file("..data")).unwrap();
        match former {
            Some(former) => std::fs::remove_dir_all(file(former.to_str().unwrap())).unwrap(),
            None => symlink(format!("..data/{NET_CONF}"), file(NET_CONF)).unwrap(),
        }
    }

    pub(crate) fn annotation(&self, number: u16, suffix: &str) -> Option<String> {
        self.server.annotation(&name(number), &key(suffix))
    }

    /// Replaces a flag of a node's daemon for its next start.
    pub(crate) fn replace_flag(&self, number: u16, flag: &str, value: impl AsRef<str>) {
        let daemon = self.lab.node(number).flanneld();
        let mut flags = daemon.flags();
        flags.retain(|given| !given.starts_with(&format!("{flag}=")));
        flags.push(format!("{flag}={}", value.as_ref()));
        daemon.set_flags(flags);
    }

    /// In front of the API server, where nodes reach it.
    pub(crate) fn proxy(&self) -> Proxy {
        let to = SocketAddr::new(SERVER, self.server.port());
        self.server.inside(|| Proxy::start(SocketAddr::new(SERVER, PROXY_PORT), to))
    }

    /// Another node, which is only there in Kubernetes.
    pub(crate) fn add_peer(&self, number: u16) {
        let spec = NodeSpec::new(&name(number)).cidr(cidr(number));
        let mac = format!("02:00:00:00:00:{number:02x}");
        let spec = spec.vxlan(&format!("192.168.100.{number}"), &mac);
        self.server.create_node(&spec);
    }

    pub(crate) fn knows(&self, number: u16, peer: u16) -> bool {
        self.routes(number).is_ok_and(|routes| routes.contains(&cidr(peer)))
    }

    /// A pod on each of two nodes, that reach each other.
    pub(crate) fn connected_pods(&self, one: u16, two: u16) -> Result<(Pod, Pod)> {
        let (one, two) = (self.lab.pod(one)?, self.lab.pod(two)?);
        self.reach(&one, &two)?;
        Ok((one, two))
    }

    pub(crate) fn reach(&self, one: &Pod, two: &Pod) -> Result<()> {
        self.lab.wait_until("pods to reach each other", LIMIT, || {
            self.lab.ping(one, two)?;
            self.lab.ping(two, one)
        })?;
        Ok(())
    }

    /// Waits until pods of a node get addresses of this subnet.
    pub(crate) fn wait_for_subnet_file(&self, number: u16, subnet: &str) -> Result<()> {
        self.wait(&format!("node {number} to have {subnet} in its subnet file"), || {
            let env = self.lab.node(number).subnet_env();
            env.is_ok_and(|env| env.subnet.is_some_and(|net| net.trunc().to_string() == subnet))
        })
    }

    pub(crate) fn wait(&self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        self.lab.wait_until(what, LIMIT, condition)?;
        Ok(())
    }

    /// Waits for a line in a daemon's log.
    pub(crate) fn logged(&self, number: u16, words: &[&str]) -> Result<()> {
        let daemon = self.lab.node(number).flanneld();
        let said = || {
            let log = daemon.log();
            log.lines().any(|line| words.iter().all(|word| line.contains(word)))
        };
        self.wait(&format!("{words:?} in the log of node {number}"), said)
            .map_err(|error| LabError::Spec(format!("{error}\n{}", daemon.log_tail(30))))
    }

    pub(crate) fn routes(&self, number: u16) -> Result<String> {
        self.lab.node(number).ip("route")
    }

    /// How many more connections there are per second than there should be is told by this.
    pub(crate) fn busy(&self, number: u16) -> Duration {
        let pid = self.lab.node(number).flanneld().pid().expect("it runs");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }
}

impl Kube {
    /// What `flannelctl` says on a node, and whether it ends well.
    pub(crate) fn flannelctl(&self, number: u16, words: &[&str]) -> Result<(bool, String)> {
        let program = flanneld().with_file_name("flannelctl");
        let command = [&[program.to_str().unwrap()], words].concat();
        let output = self.lab.node(number).output(&command)?;
        Ok((output.status.success(), output.stdout + &output.stderr))
    }

    /// Waits until `flannelctl status` on a node says all of this, and that not all is well.
    pub(crate) fn complains(&self, number: u16, words: &[&str]) -> Result<()> {
        let complains = || -> Result<(), LabError> {
            let (is_well, said) = self.flannelctl(number, &["status"])?;
            match !is_well && words.iter().all(|word| said.contains(word)) {
                true => Ok(()),
                false => Err(LabError::Spec(said)),
            }
        };
        self.lab.wait_until(&format!("node {number} to say {words:?}"), LIMIT, complains)?;
        Ok(())
    }
}
