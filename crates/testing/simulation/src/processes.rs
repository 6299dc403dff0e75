//! Many runs, each in a process of its own: so each begins alike, whatever ran before it, and uses its processor alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flannel_lease::LEASE_TTL;

use crate::growth::measure_growth;
use crate::history;
use crate::report::report;
use crate::simulation::{Outcome, Scenario, simulate};

/// A run of so many simulated seconds of one node that takes more of a processor than this has gone astray.
const PROCESSOR_SECONDS: u64 = 60;
const FOR_NODE_SECONDS: u64 = 5 * 840;

/// Seeds to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seeds: Vec<u64>,
    /// What each of them simulates.
    pub scenario: Scenario,
    pub processes: usize,
    /// Run each seed twice, and compare.
    pub twice: bool,
    /// Stop at the first that fails.
    pub until_failure: bool,
    /// Where histories of failures are kept.
    pub histories: PathBuf,
}

/// What came of the seeds.
#[derive(Debug, Default)]
pub struct Tally {
    pub good: usize,
    pub failed: Vec<u64>,
}

struct Running {
    seed: u64,
    begun: Instant,
    report: OwnedFd,
}

/// Runs all seeds, and says on standard output what failed and how to see it again.
pub fn run_seeds(plan: &Plan) -> std::io::Result<Tally> {
    let begun = Instant::now();
    let mut tally = Tally::default();
    let copies = if plan.twice { 2 } else { 1 };
    let mut waiting: Vec<u64> =
        plan.seeds.iter().rev().flat_map(|seed| std::iter::repeat_n(*seed, copies)).collect();
    let mut running: BTreeMap<i32, Running> = BTreeMap::new();
    let mut prints: BTreeMap<u64, String> = BTreeMap::new();
    let (mut slowest, mut longest) = (0.0_f64, 0.0_f64);
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < plan.processes
            && let Some(seed) = waiting.pop()
        {
            let (child, report) = begin(plan, seed)?;
            running.insert(child, Running { seed, begun: Instant::now(), report });
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let child = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        let Some(Running { seed, begun, report }) = running.remove(&child) else { continue };
        let mut text = String::new();
        fs::File::from(report).read_to_string(&mut text)?;
        let fields: Vec<&str> = text.splitn(3, '\t').collect();
        let [print, settled, violation] = fields.as_slice() else {
            say(&format!("seed {seed}: the process ended early, {}", describe(status)));
            failed(plan, seed, &mut tally);
            continue;
        };
        longest = longest.max(settled.parse().unwrap_or(0.0));
        slowest = slowest.max(begun.elapsed().as_secs_f64());
        if prints.get(&seed).is_some_and(|before| before != print) {
            say(&format!("seed {seed}: two runs differ"));
            failed(plan, seed, &mut tally);
        } else if violation.is_empty() {
            tally.good += usize::from(!plan.twice || prints.contains_key(&seed));
        } else if !tally.failed.contains(&seed) {
            say(&format!("seed {seed}: {violation}"));
            show_history(violation, &history_path(&plan.histories, seed));
            failed(plan, seed, &mut tally);
        }
        prints.insert(seed, (*print).to_owned());
        if plan.until_failure && !tally.failed.is_empty() {
            waiting.clear();
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let runs = prints.len() * copies;
    say(&format!(
        "{} seeds good, {} failed {:?}; {:.0} runs an hour with {} processes; slowest {slowest:.1} s; everything was right \
         at most {longest:.0} simulated seconds after the last fault",
        tally.good,
        tally.failed.len(),
        tally.failed,
        runs as f64 / seconds * 3_600.0,
        plan.processes,
    ));
    Ok(tally)
}

fn failed(plan: &Plan, seed: u64, tally: &mut Tally) {
    let Scenario { nodes, time, faults, long_absence, .. } = plan.scenario;
    let faults = if faults { "" } else { " --no-faults" };
    let long_absence = if long_absence { " --long-absence" } else { "" };
    say(&format!(
        "  see it again: scripts/simulate --seed {seed} --nodes {nodes} --seconds {}{faults}{long_absence}",
        time.as_secs()
    ));
    if !tally.failed.contains(&seed) {
        tally.failed.push(seed);
    }
}

/// How a process ended.
fn describe(status: i32) -> String {
    match (libc::WIFSIGNALED(status), libc::WTERMSIG(status)) {
        (true, libc::SIGKILL | libc::SIGXCPU) => {
            "killed: it took more processor time than any run should".to_owned()
        }
        (true, signal) => format!("by signal {signal}"),
        (false, _) => format!("with code {}", libc::WEXITSTATUS(status)),
    }
}

/// Starts the process of one seed.
fn begin(plan: &Plan, seed: u64) -> std::io::Result<(i32, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: both were just opened, and nobody else has them.
    let [told, tell] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: this process has one thread, so nothing is held by another one that the child would lack.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            limit_processor_time(&plan.scenario);
            let outcome = std::panic::catch_unwind(|| run_one(plan, seed));
            let text = outcome.unwrap_or_else(|_| "0\t0\tthe simulation panicked".to_owned());
            let _ = fs::File::from(tell).write_all(text.as_bytes());
            // SAFETY: nothing has to be cleaned up.
            unsafe { libc::_exit(0) }
        }
        child => Ok((child, told)),
    }
}

/// A run that never ends is ended by a signal. How busy the machine is does not matter.
fn limit_processor_time(scenario: &Scenario) {
    let absence = if scenario.long_absence { LEASE_TTL } else { Duration::ZERO };
    let node_seconds = scenario.nodes as u64 * (scenario.time + absence).as_secs();
    let seconds = PROCESSOR_SECONDS * (1 + node_seconds / FOR_NODE_SECONDS);
    let limit = libc::rlimit { rlim_cur: seconds, rlim_max: seconds };
    // SAFETY: `limit` outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) };
}

/// Says on standard output what a cluster of so many nodes costs.
pub fn run_growth(nodes: usize, quiet: Duration) -> anyhow::Result<()> {
    let directory = directory_of_hosts()?;
    let lines = measure_growth(nodes, quiet, &directory);
    let _ = fs::remove_dir_all(&directory);
    say(&lines?.join("\n"));
    Ok(())
}

/// An empty directory of this process for the files of all hosts.
fn directory_of_hosts() -> std::io::Result<PathBuf> {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let directory = PathBuf::from(format!("{base}/flannel-simulation-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

fn run_one(plan: &Plan, seed: u64) -> String {
    let scenario = Scenario { seed, ..plan.scenario };
    let outcome = directory_of_hosts().map_err(anyhow::Error::from).and_then(|directory| {
        let outcome = simulate(scenario, &directory);
        let _ = fs::remove_dir_all(&directory);
        outcome
    });
    let outcome = outcome.unwrap_or_else(|error| Outcome {
        violation: Some(format!("the simulation cannot run: {error:#}")),
        fingerprint: 0,
        history: history::take_lines(),
        settled_after: None,
        messages: 0,
        kernel_writes: 0,
    });
    let violation = outcome.violation.unwrap_or_default();
    if plan.twice {
        // To see where two runs that differ begin to.
        let _ = fs::create_dir_all(&plan.histories);
        let path = plan.histories.join(format!("seed-{seed}.{}.txt", std::process::id()));
        let _ = fs::write(path, outcome.history.join("\n"));
    }
    if !violation.is_empty() {
        let _ = fs::create_dir_all(&plan.histories);
        let _ = fs::write(history_path(&plan.histories, seed), outcome.history.join("\n"));
    }
    let settled = outcome.settled_after.unwrap_or_default().as_secs_f64();
    format!("{:016x}\t{settled}\t{violation}", outcome.fingerprint)
}

fn history_path(directory: &Path, seed: u64) -> PathBuf {
    directory.join(format!("seed-{seed}.txt"))
}

fn show_history(violation: &str, path: &Path) {
    let Ok(text) = fs::read_to_string(path) else { return };
    let lines: Vec<&str> = text.lines().collect();
    say(&format!("{}  the whole history: {}", report(violation, &lines), path.display()));
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
