//! `flannelctl store migrate`: from a lease server to etcd, or back.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use flannel_store::SubnetPool;

use super::store_args::{StoreArgs, block_on};

/// Move a network between stores
#[derive(Debug, Args)]
pub(crate) struct StoreCommand {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Copy config, leases and reservations from one store to the other, changing none of them
    Migrate {
        /// Where to copy to; the other one is where from
        #[arg(long, value_enum)]
        to: Kind,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Etcd,
    Server,
}

impl StoreCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Action::Migrate { to } = self.action;
        let (server, etcd) = (self.store.open_lease_server()?, self.store.open_etcd()?);
        let (server, etcd) = (Side("the lease server", &*server), Side("etcd", &*etcd));
        let (from, to) = match to {
            Kind::Etcd => (server, etcd),
            Kind::Server => (etcd, server),
        };
        let moved = block_on(migrate(&from, &to))?;
        writeln!(std::io::stdout(), "{moved} leases are in {}", to.0)?;
        Ok(ExitCode::SUCCESS)
    }
}

struct Side<'a>(&'static str, &'a dyn SubnetPool);

/// May be repeated until all nodes have moved: what exists is updated. The config goes over byte for byte.
async fn migrate(
    Side(from_name, from): &Side<'_>,
    Side(to_name, to): &Side<'_>,
) -> anyhow::Result<usize> {
    let reading = || format!("nothing was moved from {from_name}");
    let writing = || format!("nothing was moved to {to_name}");
    let Some(config) = from.config_as_written().await.with_context(reading)? else {
        bail!("{from_name} has no network config: nothing to move");
    };
    let leases = from.list().await.with_context(reading)?;
    let former = to.config_as_written().await.with_context(writing)?;
    to.set_config(&config, false).await.with_context(writing)?;
    if former.is_some_and(|former| former != config) {
        let text = format!("{to_name} had another network config, which is replaced");
        writeln!(std::io::stderr(), "warning: {text}")?;
    }
    let count = leases.len();
    for (done, held) in leases.iter().enumerate() {
        let moved = || format!("the config and {done} of {count} leases are in {to_name}");
        to.import(held).await.with_context(|| format!("{}; run it again after this", moved()))?;
    }
    // Whatever was acquired meanwhile.
    let stopped = "everything was moved except what was written meanwhile: run it again";
    let late: Vec<_> = from.list().await.context(stopped)?;
    for held in late.iter().filter(|late| !leases.iter().any(|known| known.lease == late.lease)) {
        to.import(held).await.context(stopped)?;
    }
    Ok(late.len())
}
