//! One file or directory per subcommand, each with a `run` that says how the process ends.

mod bundle;
mod check;
mod cleanup;
mod cni_conf;
mod completion;
mod config;
mod daemon;
mod daemon_process;
mod ipam;
mod key;
mod leases;
mod migrate;
mod output;
mod page;
mod pki;
mod progress;
mod store;
mod store_args;
mod stores;
mod test;
mod this_host;
mod trace;

use std::process::ExitCode;

use clap::Subcommand;

/// It was typed wrongly, which the parser of the command line could not tell: the process ends with 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(String);

pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Whether the network of this node is healthy, and if not, why
    Status(daemon::status::StatusArgs),
    /// The other nodes, and whether this one reaches them
    Peers(daemon::peers::PeersArgs),
    /// What happened on this node: peers that came and went, entries restored and who undid them
    Events(daemon::events::EventsArgs),
    /// Where the kernel differs from what is wanted
    Diff(daemon::diff::DiffArgs),
    /// Have the daemon compare everything now and repair what differs
    Repair(daemon::repair::RepairArgs),
    /// Find what keeps flannel from working on this node, before it is installed or when in doubt
    Check(check::CheckArgs),
    /// Test the network: pods of every node to those of every other
    #[command(subcommand)]
    Test(test::TestCommand),
    /// The way of a packet from pod to pod, hop by hop, as the kernel would decide it now
    Trace(trace::TraceArgs),
    /// Collect everything about this node in one archive, without secrets
    Bundle(bundle::BundleArgs),
    /// Serve a page on this machine that shows the whole network
    Page(page::PageArgs),
    /// The network config: get, set, validate
    Config(config::ConfigArgs),
    /// Who owns which subnet
    Leases(leases::LeasesArgs),
    /// Reserve a subnet for one node, without an end
    Reserve(leases::ReserveArgs),
    /// Turn a reservation into a lease of a day
    Unreserve(leases::OneLease),
    /// Remove a lease
    Release(leases::OneLease),
    /// Move a network between stores
    Store(store::StoreCommand),
    /// Say what changes on this node when flannel-rs takes the place of the flannel that runs here
    Migrate(migrate::MigrateArgs),
    /// Certificates and tokens for the lease server and its nodes
    Pki(pki::PkiArgs),
    /// The WireGuard key of this node
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Inspect and clean up the addresses that pods were given on this node
    #[command(subcommand)]
    Ipam(ipam::IpamCommand),
    /// Remove everything that flannel has made on this node: rules, devices, routes, subnet.env
    Cleanup(cleanup::CleanupArgs),
    /// Completion for a shell, on the standard output
    Completion(completion::CompletionArgs),
    /// Man pages, one for each command
    Man(completion::ManArgs),
    #[command(hide = true, disable_help_flag = true)]
    Lab {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Status(args) => args.run(),
            Self::Peers(args) => args.run(),
            Self::Events(args) => args.run(),
            Self::Diff(args) => args.run(),
            Self::Repair(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::Test(args) => args.run(),
            Self::Trace(args) => args.run(),
            Self::Bundle(args) => args.run(),
            Self::Page(args) => args.run(),
            Self::Lab { .. } => {
                Err(usage("the lab is a program of its own: flannel-lab, with the same words"))
            }
            Self::Config(args) => args.run(),
            Self::Leases(args) => args.run(),
            Self::Reserve(args) => args.run(),
            Self::Unreserve(args) => args.unreserve(),
            Self::Release(args) => args.release(),
            Self::Store(args) => args.run(),
            Self::Migrate(args) => args.run(),
            Self::Pki(args) => args.run(),
            Self::Key(args) => args.run(),
            Self::Ipam(args) => args.run(),
            Self::Cleanup(args) => args.run(),
            Self::Completion(args) => args.run(),
            Self::Man(args) => args.run(),
        }
    }
}
