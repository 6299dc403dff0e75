//! Seeds that are always run: a fixed list, so that a failure is never a matter of luck.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use flannel_simulation::{Plan, Scenario, run_seeds};

fn main() -> ExitCode {
    let scenario = Scenario {
        seed: 0,
        nodes: 4,
        time: Duration::from_secs(300),
        faults: true,
        long_absence: false,
        verbose: false,
        live: false,
    };
    let plan = Plan {
        seeds: (0..100).collect(),
        scenario,
        processes: 2,
        twice: false,
        until_failure: false,
        histories: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation"),
    };
    let Ok(tally) = run_seeds(&plan) else { return ExitCode::FAILURE };
    let (good, bad) = (tally.good, tally.failed.len());
    let word = if bad == 0 { "ok" } else { "FAILED" };
    // As every test program ends, for who reads the results of all.
    let mut output = std::io::stdout();
    let _ = writeln!(
        output,
        "test result: {word}. {good} passed; {bad} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
