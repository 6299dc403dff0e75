//! Whole clusters in one thread, by seed: the daemons and the lease server as they are, over a simulated network, disks,
//! kernels and clocks. See docs/decisions/0020-simulation.md.
//!
//! Read it in this order: `simulation` (what happens to a cluster), `invariants` and `findings` (what must be true of it), `cluster` (what
//! runs), `world` (what the programs take for their machine), and then its parts: `network`, `kernel`, `host` with its disk,
//! `clib` with its clocks.

mod clib;
mod cluster;
mod faults;
mod findings;
mod history;
mod host;
mod invariants;
mod kernel;
mod network;
mod processes;
mod simulation;
mod world;

pub use processes::{Plan, Tally, run_seeds};
pub use simulation::{Outcome, Scenario, simulate};
