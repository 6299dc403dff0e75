//! `flannelctl bundle`: one archive of bounded size with all that can be known of this node, without secrets.

mod archive;
mod peers;
mod secrets;
mod sources;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use self::archive::Archive;
use self::secrets::Secrets;
use super::check::node_context::NetworkSource;
use super::output::OutputArgs;

/// One archive with all that can be known of this node, without secrets
///
/// What the daemon says (state, peers, events, entries), what `check` finds, devices, routes and rules of the
/// kernel, configurations, versions, and logs.
#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// Where to write it; without, a file of this node's name and the time, here
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A log of the daemon; without any, what the journal has of the unit flanneld, and what the kubelet has of
    /// flannel's pods. Its end is taken
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// Also what the daemons of other nodes say of themselves, of so many at most: on the probe port of this node's
    /// daemon (--healthz-port), or with --kubeconfig through the API server
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    peers: usize,
    /// Where the container runtime looks for CNI configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    #[command(flatten)]
    source: NetworkSource,
    #[command(flatten)]
    output: OutputArgs,
}

impl BundleArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            rustix::process::geteuid().is_root(),
            "the daemon, the kernel and files of others are asked: run this as root, on the node itself"
        );
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let name = format!("flannel-{node}-{time}");
        let path = self.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
        // Even without secrets it reveals much about the network: only its creator may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("write {}", path.display()))?;
        let secrets = Secrets::of_this_node(&self.source);
        let mut archive = Archive::new(file, name, jiff::Timestamp::now().as_second());
        for (name, text) in sources::all(&self) {
            archive.add(&name, &secrets.remove(&text))?;
        }
        let (files, bytes) =
            archive.finish().with_context(|| format!("write {}", path.display()))?;
        let written = serde_json::json!({"file": path, "files": files, "bytes": bytes});
        self.output.output.show(&written, |_| {
            format!(
                "{}: {files} files, {} KiB; secrets that are known or look like one were removed, look through it \
                 before you give it away\n",
                path.display(),
                bytes.div_ceil(1024)
            )
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
