//! `flannelctl page`: the whole network in a browser, for any store.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use clap::Args;
use flannel_page::{Local, Page, StoreLeases};

use super::store_args::{StoreArgs, block_on};

/// Serve a page on this machine that shows the whole network
///
/// Leases come from the store; how each node is, it is asked on its probe port. It says an address to open, which
/// holds the key to it, and serves until it is ended.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Where to listen, on this machine
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The healthz-port of every node's flanneld; 0 asks none of them
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    probe_port: u16,
    #[command(flatten)]
    store: StoreArgs,
}

impl PageArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Self { listen, probe_port, store } = self;
        ensure!(
            listen.ip().is_loopback(),
            "--listen {listen}: the page is not encrypted, so it is served to this machine only; from another one \
             use `ssh -L 8080:127.0.0.1:8080` and --listen 127.0.0.1:8080, or the page of the lease server"
        );
        block_on(async {
            let leases = StoreLeases::new(store.kind()?, store.open()?, store.network()?);
            let local = Local::bind(listen).await;
            let local = local.with_context(|| format!("cannot listen on {listen}"))?;
            writeln!(std::io::stdout(), "{}", local.url())?;
            let page = Page::new(Arc::new(leases), Some(probe_port).filter(|port| *port != 0));
            tokio::select! {
                never = local.run(page) => match never {},
                ended = tokio::signal::ctrl_c() => Ok(ended?),
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
