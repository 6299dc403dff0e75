//! `flannel-bench`: how fast, against what. Machines differ and are noisy, so nothing is said in
//! seconds alone: each figure stands beside one of the same work done another way in the same run.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

mod datapath;
mod engine;
mod kubernetes;
mod latency;
mod leases;
mod metrics;
mod peers;
mod probing;
mod raw;
mod repair;
mod routes;
mod scale;
mod start;
mod table;
mod turns;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// The programs are measured in turns, so that a busy minute of the machine hits both.
const LATENCY_ROUNDS: usize = 5;

#[derive(Parser)]
#[command(about = "Benchmarks of flannel-rs, as ratios of one run. Needs root, iproute2 and etcd.")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The kernel engine alone: peers programmed into a fresh device, against raw netlink.
    Engine {
        /// How many peers.
        #[arg(long, default_values_t = [1_000, 10_000])]
        peers: Vec<u32>,
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// The daemon: from its start to all peers of etcd programmed, against raw netlink; its memory
    /// and what it costs when nothing happens.
    Start {
        #[arg(long, default_values_t = [1_000, 10_000])]
        peers: Vec<u32>,
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Another flanneld to measure beside ours, such as the Go one.
        #[arg(long)]
        against: Option<PathBuf>,
    },
    /// Another flanneld, such as that of an earlier commit, beside ours in all that a daemon does: start, memory,
    /// a lease written, a route deleted. Ratios above 1 mean that ours is better.
    Beside {
        other: PathBuf,
        #[arg(long, default_values_t = [1_000, 10_000])]
        peers: Vec<u32>,
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// From a route that was deleted to the same route, there again.
    Repair {
        #[arg(long, default_value_t = 1_000)]
        peers: u32,
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        #[arg(long)]
        against: Option<PathBuf>,
    },
    /// The lease server against etcd: acquiring, renewing, watchers, and what they cost in memory.
    Leases {
        /// Nodes that watch.
        #[arg(long, default_value_t = 10_000)]
        clients: u32,
        /// Nodes that acquire a lease and renew it.
        #[arg(long, default_value_t = 2_000)]
        acquires: u32,
        /// How many of them at once.
        #[arg(long, default_value_t = 64)]
        at_once: u32,
        /// Events that are timed.
        #[arg(long, default_value_t = 9)]
        events: u32,
        /// Where both keep their data, on a disk to be measured.
        #[arg(long, default_value = "target/bench-leases")]
        dir: PathBuf,
    },
    /// Pod to pod over every backend and over relays to compare with, on cables that carry packets of their
    /// MTU only: TCP, small datagrams, round trips, processor time.
    Datapath {
        /// Each path is set up and measured so many times; medians are told.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// How long each load lasts.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Only these paths.
        #[arg(long)]
        only: Vec<String>,
        /// Only these loads.
        #[arg(long)]
        loads: Vec<datapath::Load>,
        /// A flanneld whose backends are measured too, as its nodes use them.
        #[arg(long)]
        flanneld: Option<PathBuf>,
        /// Another one, such as the Go flannel's, whose udp backend is measured.
        #[arg(long)]
        against: Option<PathBuf>,
        /// The reference WireGuard in user space; scripts/deps --print-env names one
        #[arg(long, value_name = "PATH")]
        wireguard_go: Option<PathBuf>,
    },
    /// The daemon with Kubernetes: from its start to all Nodes of a real API server programmed, what it weighs, and
    /// what a heartbeat costs, against a client that keeps whole Nodes.
    Kubernetes {
        #[arg(long, default_values_t = [1_000, 5_000])]
        nodes: Vec<u32>,
        /// Heartbeats that are counted.
        #[arg(long, default_value_t = 2_000)]
        heartbeats: usize,
        /// Another flanneld to measure beside ours, such as the Go one.
        #[arg(long)]
        against: Option<PathBuf>,
    },
    /// For the above: the client that keeps whole Nodes.
    #[command(hide = true)]
    WholeNodes { kubeconfig: PathBuf },
    /// For the above: what the daemon keeps of Nodes, alone.
    #[command(hide = true)]
    KnownNodes { kubeconfig: PathBuf },
    /// From a lease written in etcd to its route in the kernel, against etcd's own watch of it.
    Latency {
        #[arg(long, default_value_t = 500)]
        leases: u32,
        #[arg(long)]
        against: Option<PathBuf>,
    },
    /// What it costs that nodes probe each other, among many and among few.
    Probing {
        #[arg(long, default_values_t = [10, 10_000])]
        peers: Vec<u32>,
        /// How long each is watched.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// `/metrics` with many peers, against `/readyz`.
    Metrics {
        #[arg(long, default_value_t = 10_000)]
        peers: u32,
        #[arg(long, default_value_t = 200)]
        rounds: usize,
    },
    /// The lease table and the pool: what a lease costs among 65,536, against among few.
    Scale {
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Engine { peers, rounds } => engine::run(&peers, rounds),
        What::Scale { rounds } => scale::run(rounds),
        What::Probing { peers, seconds } => probing::run(&peers, seconds),
        What::Metrics { peers, rounds } => metrics::run(peers, rounds),
        What::Start { peers, rounds, against } => start::run(&peers, rounds, against),
        What::Kubernetes { nodes, heartbeats, against } => {
            kubernetes::run(&nodes, heartbeats, against.as_deref())
        }
        What::WholeNodes { kubeconfig } => kubernetes::keep_whole_nodes(kubeconfig),
        What::KnownNodes { kubeconfig } => kubernetes::keep_known_nodes(kubeconfig),
        What::Leases { clients, acquires, at_once, events, dir } => {
            leases::run(&leases::Wishes { clients, acquires, at_once, events, dir })
        }
        What::Datapath { rounds, seconds, only, loads, flanneld, against, wireguard_go } => {
            let variable = || std::env::var_os("FLANNEL_TEST_WIREGUARD_GO").map(PathBuf::from);
            let wireguard_go = wireguard_go.or_else(variable);
            let wishes =
                datapath::Wishes { rounds, seconds, only, loads, flanneld, against, wireguard_go };
            datapath::run(&wishes)
        }
        What::Latency { leases, against } => latency::run(leases, LATENCY_ROUNDS, against),
        What::Repair { peers, rounds, against } => repair::run(peers, rounds, against),
        What::Beside { other, peers, rounds } => {
            start::run(&peers, rounds, Some(other.clone()))?;
            latency::run(500, rounds, Some(other.clone()))?;
            repair::run(1_000, rounds, Some(other))
        }
    }
}
