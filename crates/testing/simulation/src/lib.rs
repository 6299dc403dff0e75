//! Whole clusters in one thread, by seed: the daemons and the lease server as they are, over a simulated network, disks,
//! kernels and clocks. See docs/decisions/0020-simulation.md.
//!
//! Read it in this order: `simulation` (what happens to a cluster), `invariants` and `findings` (what must be true of it), `cluster` (what
//! runs), `world` (what the programs take for their machine), and then its parts: `network`, `kernel`, `host` with its disk,
//! `clib` with its clocks. What clients saw of the lease server is read by `http_tap`, kept by `operations` and checked by
//! `linearizability`; `contenders` are clients that make it worth checking.

mod clib;
mod cluster;
mod contenders;
mod faults;
mod findings;
mod growth;
mod history;
mod host;
mod http_tap;
mod invariants;
mod kernel;
mod linearizability;
mod network;
mod operations;
mod operator;
mod processes;
mod report;
mod simulation;
mod world;

pub use processes::{Plan, Tally, run_growth, run_seeds};
pub use simulation::{Outcome, Scenario, simulate};
