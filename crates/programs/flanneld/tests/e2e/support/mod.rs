//! What the tests share: labs with the flanneld under test, the kernel's state as text, traffic.

mod bad_card;
mod capture;
mod http;
mod kernel;
mod repair;
mod store;
mod traffic;

use std::fmt::Display;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_lab::{Lab, LabBuilder};

pub(crate) use bad_card::BadCard;
pub(crate) use capture::Capture;
pub(crate) use http::{ask_etcd, compact, door, probe, probe_by};
pub(crate) use kernel::{Held, Kernel, line};
pub(crate) use repair::{Repairs, difference};
pub(crate) use store::{lease_path, own_key, peer, put_peers};
pub(crate) use traffic::{both_ways, both_ways_through_process, connected_pods, reach_each_other};

/// Long enough for anything on a machine that is busy with other things, or emulated; short enough to hear
/// of a failure. What is expected to be quick is measured.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A lab whose nodes run the flanneld under test. They take the subnets up to 10.244.149.0; the leases that
/// tests write by hand lie above.
pub(crate) fn lab(nodes: u16) -> LabBuilder {
    let limit = if is_emulated() { 3 * LIMIT } else { LIMIT };
    let last = Ipv4Addr::new(10, 244, 149, 0);
    Lab::builder().nodes(nodes).flanneld(flanneld()).ready_limit(limit).subnet_max(last)
}

/// Whether the machine is one of `scripts/vm`, whose processor is a program.
pub(crate) fn is_emulated() -> bool {
    std::env::var_os("FLANNEL_VM").is_some()
}

pub(crate) fn flanneld() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_flanneld"))
}

/// The reference: the Go flannel.
pub(crate) fn go_flanneld() -> PathBuf {
    flannel_lab::find_go_flanneld().unwrap_or_else(|error| panic!("{error}"))
}

/// Puts a figure where people see it, also when the test passes.
pub(crate) fn measured(what: impl Display) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "measured: {name}: {what}");
}

/// For what a test does at random: from the environment, to do the same again, or from the clock.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("FLANNEL_TEST_SEED") {
        Ok(text) => text.parse().expect("FLANNEL_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    measured(format_args!("FLANNEL_TEST_SEED={seed}"));
    seed
}

/// Processor time that a node's daemon has used.
pub(crate) fn busy(lab: &Lab, node: u16) -> Duration {
    let pid = lab.node(node).flanneld().pid().expect("it runs");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}
