//! `flannelctl store migrate`: from a lease server to etcd, or back.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use flannel_store::Admin;

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
        let (from, to) = match to {
            Kind::Etcd => (server, etcd),
            Kind::Server => (etcd, server),
        };
        let moved = block_on(migrate(&*from, &*to))?;
        writeln!(std::io::stdout(), "{moved} leases are in {}", to.name())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// May be repeated until all nodes have moved: what is there already is brought up to date.
async fn migrate(from: &dyn Admin, to: &dyn Admin) -> anyhow::Result<usize> {
    let Some(config) = from.config().await? else {
        bail!("{} has no network config: nothing to move", from.name());
    };
    to.set_config(&config, false).await.context("the other store has leases of another network")?;
    let leases = from.list().await?;
    for held in &leases {
        to.import(held).await.with_context(|| format!("stopped at {}", held.lease.subnet))?;
    }
    // Whatever was acquired meanwhile.
    let late: Vec<_> = from.list().await?;
    for held in late.iter().filter(|late| !leases.iter().any(|known| known.lease == late.lease)) {
        to.import(held).await.with_context(|| format!("stopped at {}", held.lease.subnet))?;
    }
    Ok(late.len())
}
