//! One run: a cluster begins, faults come by chance, and at the end there is quiet, in which everything must become right.

use std::path::Path;
use std::time::Duration;

use flannel_server::lease_state::Request;
use tracing::Level;

use crate::clib;
use crate::cluster::Cluster;
use crate::faults::Faults;
use crate::findings;
use crate::history::{self, Historian};
use crate::host::SERVER;
use crate::invariants::{Invariants, Violation, check_files};
use crate::linearizability;
use crate::operations;
use crate::report::UNEXPLAINED;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    pub seed: u64,
    pub nodes: usize,
    /// How long faults happen.
    pub time: Duration,
    pub faults: bool,
    /// A machine is away for longer than a lease lasts: more than a day, which takes a while.
    pub long_absence: bool,
    /// Details of the log, too.
    pub verbose: bool,
    /// Print lines as they come.
    pub live: bool,
}

/// How it went.
#[derive(Debug)]
pub struct Outcome {
    /// What was not as it must be.
    pub violation: Option<String>,
    /// Equal for runs that were equal.
    pub fingerprint: u64,
    pub history: Vec<String>,
    /// Everything was as wanted so long after the last fault.
    pub settled_after: Option<Duration>,
    /// Writes to connections, and changes of kernels, of all nodes.
    pub messages: u64,
    pub kernel_writes: u64,
}

/// Pause between two looks at everything.
const STEP: Duration = Duration::from_millis(500);
/// Longer than the pause between two comparisons of a whole kernel, and than any pause between tries.
const QUIET: Duration = Duration::from_secs(240);

/// Runs a cluster. The calling thread must have simulated nothing before.
pub fn simulate(scenario: Scenario, directory: &Path) -> anyhow::Result<Outcome> {
    if scenario.live {
        history::print_live();
    }
    let level = if scenario.verbose { Level::DEBUG } else { Level::INFO };
    simulate_with(scenario.seed, directory, level, run(scenario, directory))
}

/// Runs a part of a simulation without a log.
pub(crate) fn simulate_quietly<T>(
    seed: u64,
    directory: &Path,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    simulate_with(seed, directory, Level::ERROR, work)
}

fn simulate_with<T>(
    seed: u64,
    directory: &Path,
    level: Level,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    clib::simulate_from(seed);
    fastrand::seed(seed);
    history::set_root(directory);
    tracing::subscriber::set_global_default(Historian { level })?;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build()?;
    let outcome = runtime.block_on(async {
        clib::begin();
        work.await
    });
    // Nothing in it has to end in order.
    std::mem::forget(runtime);
    outcome
}

async fn run(scenario: Scenario, directory: &Path) -> anyhow::Result<Outcome> {
    let mut rng = fastrand::Rng::with_seed(scenario.seed);
    let mut cluster = Cluster::new(scenario.nodes, directory, rng.fork())?;
    let mut invariants = Invariants::default();
    let mut faults = Faults::new(rng.fork(), scenario.nodes, scenario.long_absence);
    cluster.boot(SERVER);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let text = faults.first_config(cluster.families);
    history::note(format_args!("the operator writes the config {text}"));
    if let Some(Err(error)) = cluster.ask(Request::SetConfig { text, force: false }).await {
        anyhow::bail!("the first config is refused: {error}");
    }
    cluster.start_contenders(scenario.seed, scenario.time);
    for number in cluster.nodes() {
        tokio::time::sleep(Duration::from_millis(rng.u64(..3_000))).await;
        cluster.boot(number);
    }
    let mut found = watch(&mut cluster, &mut invariants, scenario, &mut faults).await;
    let mut settled_after = None;
    if found.is_ok() {
        faults.end(&mut cluster).await;
        found = settle(&mut cluster, &mut invariants, &mut settled_after).await;
        if found.is_ok() {
            found = findings::check_lasting_fault(&cluster, &mut invariants, &mut rng).await;
        }
    }
    let mut violation = found.err().map(|violation| violation.to_string());
    let operations = operations::all();
    history::note(format_args!(
        "clients: they asked for {}",
        linearizability::summary(&operations)
    ));
    for operation in operations.iter().filter(|_| scenario.verbose) {
        history::note(format_args!("clients: {}", linearizability::line(operation)));
    }
    if violation.is_none()
        && let Err(unexplained) = linearizability::check(&operations)
    {
        for line in unexplained.lines() {
            history::note(format_args!("{UNEXPLAINED}{line}"));
        }
        violation = Some(unexplained.to_string());
    }
    if let Some(violation) = &violation {
        history::note(format_args!("VIOLATED: {violation}"));
    }
    let messages = cluster.nodes().map(|number| cluster.network.sent(number)).sum();
    let kernel_writes =
        cluster.nodes().map(|number| cluster.hosts[number].kernel.writes.get()).sum();
    Ok(Outcome {
        violation,
        fingerprint: history::fingerprint(),
        history: history::take_lines(),
        settled_after,
        messages,
        kernel_writes,
    })
}

/// Faults happen, and what must be true at any time is looked at all the time.
async fn watch(
    cluster: &mut Cluster,
    invariants: &mut Invariants,
    scenario: Scenario,
    faults: &mut Faults,
) -> Result<(), Violation> {
    while clib::elapsed() < scenario.time {
        tokio::time::sleep(STEP).await;
        // A lease server that has started again is looked at before an operator writes to it.
        invariants.check(cluster)?;
        if scenario.faults {
            faults.act(cluster, invariants).await;
        }
        invariants.check(cluster)?;
    }
    Ok(())
}

/// Everything must become right, soon, and then stay so.
async fn settle(
    cluster: &mut Cluster,
    invariants: &mut Invariants,
    settled_after: &mut Option<Duration>,
) -> Result<(), Violation> {
    let begun = clib::elapsed();
    let mut seen: Option<u64> = None;
    while clib::elapsed() < begun + QUIET {
        tokio::time::sleep(STEP).await;
        invariants.check(cluster)?;
        let now = cluster.changes();
        if seen.replace(now) == Some(now) {
            continue;
        }
        match invariants.check_settled(cluster) {
            Ok(()) if settled_after.is_none() => *settled_after = Some(clib::elapsed() - begun),
            Ok(()) => {}
            Err(_) => *settled_after = None,
        }
    }
    invariants.check_settled(cluster)?;
    check_files(cluster)?;
    findings::check_healthy(cluster).await
}
