//! `flannelctl page`: the whole network in a browser, for any store.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use flannel_kube::ProbePorts;
use flannel_page::{Direct, LeaseRow, Local, NodeConnector, Pace, Page, StoreLeases, Stream};

use super::store_args::{StoreArgs, block_on};
use super::usage;

pub(crate) const PROBE_PORT: u16 = 8081;

/// Serve a page on this machine that shows the whole network
///
/// Leases come from the store; how each node is, it is asked on its probe port: by its address, and in Kubernetes
/// through the API server, as `kubectl port-forward` does. It says an address to open, which holds the key to it, and
/// serves until it is ended. Of several networks (--networks=blue,green) the page shows one at a time.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Where to listen, on this machine
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The healthz-port of every node's flanneld (8081), asked by the node's address, also in Kubernetes if it is
    /// given; 0 asks no node
    #[arg(long, value_name = "PORT")]
    probe_port: Option<u16>,
    #[command(flatten)]
    store: StoreArgs,
}

impl PageArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Self { listen, probe_port, store } = self;
        if !listen.ip().is_loopback() {
            return Err(usage(format!(
                "--listen {listen}: the page is not encrypted, so it is served to this machine only; from another one \
                 use `ssh -L 8080:127.0.0.1:8080` and --listen 127.0.0.1:8080, or the page of the lease server"
            )));
        }
        block_on(async {
            let networks = store.all_networks()?.into_iter();
            let opened = networks.map(|name| Ok((name.clone(), store.open_network(&name)?)));
            let opened = opened.collect::<anyhow::Result<_>>()?;
            let stores = store.stores()?;
            let leases = StoreLeases::new(stores.kind(), opened);
            let nodes: Option<Arc<dyn NodeConnector>> = match (probe_port, stores.probe_ports()?) {
                (Some(0), _) => None,
                (None, Some(ports)) => Some(Arc::new(ThroughApiServer(ports))),
                (port, _) => Some(Arc::new(Direct { port: port.unwrap_or(PROBE_PORT) })),
            };
            let local = Local::bind(listen).await;
            let local = local.with_context(|| format!("cannot listen on {listen}"))?;
            writeln!(std::io::stdout(), "{}", local.url())?;
            let page = Page::new(Arc::new(leases), nodes);
            tokio::select! {
                never = local.run(page) => match never {},
                ended = tokio::signal::ctrl_c() => Ok(ended?),
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Nodes of Kubernetes, whose probe ports are open to themselves alone.
pub(crate) struct ThroughApiServer(pub(crate) ProbePorts);

#[async_trait::async_trait]
impl NodeConnector for ThroughApiServer {
    /// Each question is a stream through the API server, a kubelet and a container runtime.
    fn pace(&self) -> Pace {
        let shortest_period = Duration::from_secs(3);
        Pace { per_tick: 2, at_once: 16, shortest_period, timeout: Duration::from_secs(4) }
    }

    async fn connect(&self, node: &LeaseRow) -> Result<Box<dyn Stream>, String> {
        let name = node.name.as_deref().ok_or("its lease does not say which Node it is")?;
        Ok(Box::new(self.0.connect(name).await?))
    }

    fn words(&self, node: &LeaseRow, why: &str) -> String {
        format!("{}: {why}", node.name.as_deref().unwrap_or("a Node without a name"))
    }

    fn advice(&self) -> String {
        format!(
            "The pods of flannel in the namespace {} are asked through the API server, and none of them answers; \
             what it says is below. Nodes that run flanneld otherwise are asked with --probe-port.",
            self.0.namespace
        )
    }
}
