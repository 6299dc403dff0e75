//! `flannel-lab up`: starts a lab in the background and shows what it can do.

use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use flannel_lab::{Families, KubernetesSpec, LabSpec, ProxyMode};
use serde_json::{Value, json};

use crate::client;
use crate::protocol::{Answer, Order, Progress, Request, receive, send};
use crate::state::LabName;
use crate::status;
use flannel_cli::table::{Colour, Paint};

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// How many nodes
    #[arg(long, default_value_t = 3)]
    nodes: u16,

    /// The backend's type (vxlan, host-gw, …), or its JSON object
    #[arg(long, default_value = "vxlan", value_name = "TYPE|JSON")]
    backend: String,

    /// The network config as JSON, instead of --backend and --family
    #[arg(long, value_name = "JSON", conflicts_with_all = ["backend", "family"])]
    config: Option<String>,

    /// Address families of the overlay
    #[arg(long, value_enum, default_value = "ipv4")]
    family: FamilyChoice,

    /// Address families of the underlay
    #[arg(long, value_enum, default_value = "dual")]
    underlay: FamilyChoice,

    /// MTU of the underlay
    #[arg(long, default_value_t = 1500)]
    mtu: u32,

    /// Cables carry packets of their MTU only, as between real machines: for measurements
    #[arg(long)]
    wire: bool,

    /// How many underlay networks, with a router between them
    #[arg(long, default_value_t = 1)]
    segments: u8,

    /// Put a node into a certain underlay network (from 0)
    #[arg(long, value_name = "NODE=SEGMENT")]
    segment: Vec<OfNode<u8>>,

    /// The flanneld of all nodes
    #[arg(long, value_name = "PATH")]
    flanneld: Option<PathBuf>,

    /// The flanneld of one node, e.g. `--node 2=/path/to/flanneld`
    #[arg(long, value_name = "NODE=PATH")]
    node: Vec<OfNode<PathBuf>>,

    /// One more flag for every flanneld, e.g. `--flag=--ip-masq`
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    flag: Vec<String>,

    /// One more flag for the flanneld of one node, e.g. `--node-flag 2=--ip-masq`
    #[arg(long, value_name = "NODE=FLAG")]
    node_flag: Vec<OfNode<String>>,

    /// Start a flanneld again that ends before it is ready, as a service manager would
    #[arg(long)]
    respawn: bool,

    /// Where leases are kept: in etcd, or with node 1 as the lease server
    #[arg(long, value_enum, default_value = "etcd")]
    store: StoreKind,

    /// The etcd to run
    #[arg(long, value_name = "PATH")]
    etcd: Option<PathBuf>,

    /// Members of etcd: 1 or 3
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    etcd_members: u8,

    /// A real Kubernetes cluster: an API server, and containerd, kubelet and kube-proxy on every node
    #[arg(long, conflicts_with_all = ["flanneld", "node", "store"])]
    kubernetes: bool,

    /// With --kubernetes: an archive of images that every node has; may be repeated
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    image: Vec<PathBuf>,

    /// With --kubernetes: what to apply to it; may be repeated
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    manifest: Vec<PathBuf>,

    /// With --kubernetes: CNI plugins that every node has from the beginning, as distributions bring them
    #[arg(long, value_name = "DIRECTORY", requires = "kubernetes")]
    cni_plugins: Option<PathBuf>,

    /// With --kubernetes: how kube-proxy programs the nodes
    #[arg(long, value_enum, default_value = "nftables", requires = "kubernetes")]
    kube_proxy: KubeProxy,

    /// Nodes without flanneld: the underlay and etcd alone
    #[arg(long)]
    no_daemon: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    Etcd,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KubeProxy {
    Iptables,
    Nftables,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FamilyChoice {
    Ipv4,
    Ipv6,
    Dual,
}

/// Something that one node has different.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OfNode<T> {
    node: u16,
    value: T,
}

impl Up {
    pub(crate) fn run(self, name: &LabName) -> anyhow::Result<ExitCode> {
        let spec = self.spec()?;
        flannel_lab::check_host()?;
        let paint = Paint::for_stdout();
        let begin = Instant::now();
        let mut supervisor = Supervisor::start(name)?;
        supervisor.make(spec, |step| {
            let time = format!("{:5.2} s", begin.elapsed().as_secs_f64());
            // Whether somebody reads this does not matter to the lab.
            let _ = writeln!(io::stdout(), "{}  {step}", paint.text(Colour::Faint, &time));
        })?;
        let shown = self.show(name, begin, paint);
        if shown.as_ref().err().is_none_or(flannel_cli::is_broken_pipe) {
            supervisor.keep()?;
        }
        shown
    }

    /// Shows the lab, who reaches whom, and what to do next.
    fn show(&self, name: &LabName, begin: Instant, paint: Paint) -> anyhow::Result<ExitCode> {
        let mut out = io::stdout();
        if self.kubernetes {
            return show_cluster(&mut out, name, begin, paint);
        }
        let Answer::Status(status) = client::ask(name, &Request::Status)? else {
            bail!("an answer to another question");
        };
        let took = begin.elapsed().as_secs_f64();
        let title = format!("lab {name}: {} nodes, {}", status.nodes.len(), status.backend);
        writeln!(out, "\n{}, up in {took:.2} s", paint.text(Colour::Bold, &title))?;
        status::show(&mut out, &status, paint)?;
        let code = status::show_matrix(&mut out, name, paint)?;
        what_next(&mut out, name, status.nodes.len() > 1 && !self.no_daemon, paint)?;
        Ok(code)
    }

    fn spec(&self) -> anyhow::Result<LabSpec> {
        let mut spec = LabSpec {
            nodes: self.nodes,
            segments: self.segments,
            underlay: self.underlay.into(),
            underlay_mtu: self.mtu,
            wire: self.wire,
            overlay: self.family.into(),
            backend: backend(&self.backend)?,
            ..LabSpec::default()
        };
        if let Some(config) = &self.config {
            spec.config = Some(serde_json::from_str(config).context("--config is not JSON")?);
        }
        spec.segment_of = self.segment.iter().map(|of| (of.node, of.value)).collect();
        spec.daemon.run = !self.no_daemon;
        spec.daemon.respawn = self.respawn;
        spec.daemon.flags.clone_from(&self.flag);
        spec.daemon.binary = self.flanneld.as_ref().map(std::path::absolute).transpose()?;
        spec.lease_server = self.store == StoreKind::Server;
        spec.etcd.members = if spec.lease_server { 0 } else { self.etcd_members };
        spec.etcd.binary = self.etcd.as_ref().map(std::path::absolute).transpose()?;
        for of in &self.node {
            let path = std::path::absolute(&of.value)?;
            spec.node.entry(of.node).or_default().binary = Some(path);
        }
        for of in &self.node_flag {
            spec.node.entry(of.node).or_default().flags.push(of.value.clone());
        }
        if self.kubernetes {
            spec.run_kubernetes(self.cluster()?);
        }
        Ok(spec)
    }

    fn cluster(&self) -> anyhow::Result<KubernetesSpec> {
        let absolute = |paths: &[PathBuf]| -> io::Result<Vec<PathBuf>> {
            paths.iter().map(std::path::absolute).collect()
        };
        let mut cluster = KubernetesSpec::find()?;
        cluster.images.extend(absolute(&self.image)?);
        cluster.manifests = absolute(&self.manifest)?;
        cluster.cni_plugins = self.cni_plugins.as_deref().map(std::path::absolute).transpose()?;
        cluster.proxy = match self.kube_proxy {
            KubeProxy::Iptables => ProxyMode::Iptables,
            KubeProxy::Nftables => ProxyMode::Nftables,
        };
        Ok(cluster)
    }
}

/// The cluster as kubectl shows it, and how to go on.
fn show_cluster(
    mut out: impl Write,
    name: &LabName,
    begin: Instant,
    paint: Paint,
) -> anyhow::Result<ExitCode> {
    let kubectl = KubernetesSpec::find()?.programs.join("kubectl");
    let kubeconfig = name.kubeconfig();
    let run = |words: &[&str]| {
        let mut command = Command::new(&kubectl);
        command.arg("--kubeconfig").arg(&kubeconfig).args(words).output().context("run kubectl")
    };
    // Nodes are ready a moment before Kubernetes has heard so of the pods on them. One that never is, is shown as it is.
    run(&["wait", "pods", "-A", "--all", "--for=condition=Ready", "--timeout=30s"])?;
    let took = begin.elapsed().as_secs_f64();
    let title = format!("lab {name}: a Kubernetes cluster");
    writeln!(out, "\n{}, up in {took:.0} s", paint.text(Colour::Bold, &title))?;
    for what in [&["get", "nodes", "-o", "wide"][..], &["get", "pods", "-A", "-o", "wide"]] {
        out.write_all(&run(what)?.stdout)?;
        writeln!(out)?;
    }
    writeln!(out, "{}", paint.text(Colour::Bold, "what next"))?;
    writeln!(out, "  export KUBECONFIG={}", kubeconfig.display())?;
    writeln!(out, "  {} get pods -A", kubectl.display())?;
    let hints = [
        ("exec 1 -- ip route", "look around on node 1"),
        ("fault unplug 2", "pull a node's cable"),
        ("down", "remove it all"),
    ];
    hint(out, name, &hints, paint)?;
    Ok(ExitCode::SUCCESS)
}

/// The process that owns the lab. Until it is told to keep it, the lab goes when we go.
struct Supervisor {
    process: Child,
    orders: ChildStdin,
    progress: BufReader<ChildStdout>,
}

impl Supervisor {
    fn start(name: &LabName) -> anyhow::Result<Self> {
        let me = std::env::current_exe().context("find the own program")?;
        let mut process = Command::new(me)
            .args(["serve", "--name", &name.to_string()])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the lab's supervisor")?;
        let orders = process.stdin.take().context("the supervisor's input")?;
        let progress = process.stdout.take().context("the supervisor's output")?;
        Ok(Self { process, orders, progress: BufReader::new(progress) })
    }

    fn make(&mut self, spec: LabSpec, show: impl Fn(&str)) -> anyhow::Result<()> {
        send(&self.orders, &Order::Make(Box::new(spec))).context("order the lab")?;
        loop {
            match receive(&mut self.progress).context("hear from the lab's supervisor")? {
                Some(Progress::Step(step)) => show(&step),
                Some(Progress::Ready) => return Ok(()),
                Some(Progress::Failed(reason)) => bail!("{reason}"),
                None => {
                    let status = self.process.wait().context("wait for the supervisor")?;
                    bail!("the lab's supervisor ended unexpectedly ({status})");
                }
            }
        }
    }

    fn keep(&mut self) -> anyhow::Result<()> {
        send(&self.orders, &Order::Keep).context("tell the supervisor to keep the lab")
    }
}

fn what_next(
    mut out: impl Write,
    name: &LabName,
    daemons: bool,
    paint: Paint,
) -> anyhow::Result<()> {
    let mut hints = vec![("exec 1 -- ip route", "look around on node 1 (pod1, etcd work too)")];
    if daemons {
        hints.extend([
            ("fault partition 1 2", "cut nodes 1 and 2 off from each other"),
            ("fault heal", "and join them again"),
            ("fault kill 2", "kill -9 flanneld on node 2"),
            ("fault restart 2", "and start it again"),
            ("fault vandal 1", "break something that flannel made on node 1"),
            ("logs 1 -f", "watch what flanneld on node 1 says"),
        ]);
    }
    hints.extend([("status", "nodes, daemons, and who reaches whom"), ("down", "remove it all")]);
    writeln!(out, "\n{}", paint.text(Colour::Bold, "what next"))?;
    hint(out, name, &hints, paint)
}

/// Commands and what they do. The program is named as it was called, which may have been by a long path.
fn hint(
    mut out: impl Write,
    name: &LabName,
    hints: &[(&str, &str)],
    paint: Paint,
) -> anyhow::Result<()> {
    let program = std::env::args().next().unwrap_or_else(|| "flannel-lab".to_owned());
    let option = name.option();
    let width = hints.iter().map(|(words, _)| words.len()).max().unwrap_or(0);
    for (words, what) in hints {
        let what = paint.text(Colour::Faint, what);
        writeln!(out, "  {program}{option} {words:width$}  {what}")?;
    }
    Ok(())
}

fn backend(text: &str) -> anyhow::Result<Value> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).context("--backend is not a JSON object");
    }
    Ok(json!({"Type": text}))
}

impl From<FamilyChoice> for Families {
    fn from(family: FamilyChoice) -> Self {
        match family {
            FamilyChoice::Ipv4 => Self::Ipv4,
            FamilyChoice::Ipv6 => Self::Ipv6,
            FamilyChoice::Dual => Self::Dual,
        }
    }
}

impl<T: FromStr> FromStr for OfNode<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: a node's number, `=`, and what it has");
        let (node, value) = text.split_once('=').ok_or_else(wrong)?;
        let node = node.parse().map_err(|_| wrong())?;
        Ok(Self { node, value: value.parse().map_err(|_| wrong())? })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        up: Up,
    }

    fn spec(words: &[&str]) -> LabSpec {
        let cli = Cli::try_parse_from(std::iter::once(&"up").chain(words)).unwrap();
        cli.up.spec().unwrap()
    }

    #[test]
    fn the_command_line_becomes_a_description() {
        assert_eq!(spec(&[]), LabSpec::default());
        let spec = spec(&[
            "--nodes=5",
            "--backend={\"Type\":\"vxlan\",\"DirectRouting\":true}",
            "--family=dual",
            "--flag=--ip-masq",
            "--flag",
            "-v=5",
            "--node",
            "2=/bin/true",
            "--node-flag",
            "3=--iface=eth0",
            "--segments=2",
            "--segment",
            "1=1",
        ]);
        assert_eq!(spec.nodes, 5);
        assert_eq!(spec.backend["DirectRouting"], true);
        assert_eq!(spec.overlay, Families::Dual);
        assert_eq!(spec.daemon.flags, ["--ip-masq", "-v=5"]);
        assert_eq!(spec.node[&2].binary, Some("/bin/true".into()));
        assert_eq!(spec.node[&3].flags, ["--iface=eth0"]);
        assert_eq!(spec.segment_of[&1], 1);
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            ["--node", "/bin/true"],
            ["--node", "x=/bin/true"],
            ["--family", "ipx"],
            ["--segment", "1=x"],
        ] {
            assert!(Cli::try_parse_from(["up"].iter().chain(&words)).is_err(), "{words:?}");
        }
        assert!(backend("{nonsense").is_err());
    }
}
