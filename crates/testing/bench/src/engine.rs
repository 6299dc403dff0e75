//! The engine alone: from the desired state to the kernel.

use std::time::{Duration, Instant};

use anyhow::Context;
use flannel_backend::WantedBy;
use flannel_entries::kernel::Entry;
use flannel_kernel::Engine;
use flannel_lab::Lab;
use flannel_wanted::Applier as _;

use crate::peers::{self, Desired};
use crate::table::{median, ms, ratio};
use crate::{raw, routes};

pub(crate) fn run(counts: &[u32], rounds: usize) -> anyhow::Result<()> {
    let lab = Lab::builder().nodes(1).bare().start()?;
    println!("peers into a fresh vxlan device, three entries each, median of {rounds} rounds\n");
    println!(
        "{:>8}  {:>12}  {:>14}  {:>12}  {:>16}  {:>16}",
        "peers", "raw batches", "one by one", "engine", "engine/batches", "one by one/engine"
    );
    for &count in counts {
        let desired = peers::desired(count)?;
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let (batches, one_by_one, engine) =
                lab.node(1).in_netns(|| measure(&desired))?.context("measuring")?;
            for (list, time) in times.iter_mut().zip([batches, one_by_one, engine]) {
                list.push(time);
            }
        }
        let [batches, one_by_one, engine] = times.map(median);
        println!(
            "{count:>8}  {:>12}  {:>14}  {:>12}  {:>15.2}x  {:>15.2}x",
            ms(batches),
            ms(one_by_one),
            ms(engine),
            ratio(engine, batches),
            ratio(one_by_one, engine)
        );
    }
    Ok(())
}

fn measure(desired: &Desired) -> anyhow::Result<(Duration, Duration, Duration)> {
    let (batches, one_by_one) = raw_times(desired)?;
    Ok((batches, one_by_one, engine(desired)?))
}

/// The same entries in raw batches, and one at a time.
pub(crate) fn raw_times(desired: &Desired) -> anyhow::Result<(Duration, Duration)> {
    let entries: Vec<Entry> =
        desired.peers.iter().flat_map(|(_, entries)| entries.iter().cloned()).collect();
    let batches = with_device(desired, |index| raw::batches(&entries, index))?;
    let one_by_one = with_device(desired, |index| raw::one_by_one(&entries, index))?;
    Ok((batches, one_by_one))
}

/// A fresh device with nothing on it but its address, removed afterwards.
fn with_device(
    desired: &Desired,
    work: impl FnOnce(u32) -> anyhow::Result<Duration>,
) -> anyhow::Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = Engine::start(1)?;
    let base = vec![(WantedBy::Node, desired.base.clone())];
    runtime.block_on(engine.replace(desired.ownership.clone(), base))?;
    drop(engine);
    // The engine must not see, and repair, what is written behind its back.
    std::thread::sleep(Duration::from_millis(50));
    let result = work(routes::index("flannel.1")?);
    routes::delete_device("flannel.1")?;
    result
}

fn engine(desired: &Desired) -> anyhow::Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = Engine::start(1)?;
    let mut all = vec![(WantedBy::Node, desired.base.clone())];
    all.extend(desired.peers.iter().cloned());
    let start = Instant::now();
    let status = runtime.block_on(engine.replace(desired.ownership.clone(), all))?;
    let elapsed = start.elapsed();
    anyhow::ensure!(status.is_settled(), "{:?}", status.problems);
    drop(engine);
    std::thread::sleep(Duration::from_millis(50));
    routes::delete_device("flannel.1")?;
    Ok(elapsed)
}
