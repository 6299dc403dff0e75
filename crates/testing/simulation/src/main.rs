//! Runs seeds. `scripts/simulate` calls it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use flannel_simulation::{Plan, Scenario, run_growth, run_seeds};

const USAGE: &str = "usage: simulate [--seeds N] [--from SEED] [--seed SEED] [--nodes M] [--seconds S] [--no-faults] [--long-absence] \
                     [--twice] [--until-failure] [--verbose] [--processes P]

  --seeds N        run N seeds (100)
  --from SEED      the first of them (0)
  --seed SEED      run this one, and print what happens as it happens
  --nodes M        nodes beside the lease server (5)
  --seconds S      simulated time in which faults happen (600)
  --long-absence   a machine is away for longer than a lease lasts
  --twice          run each seed twice: both must be the same

       simulate --growth NODES [SECONDS]   what so many nodes cost that have nothing to do for a while (600 s), and what a
                                           change and a restart of the lease server cost
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--growth") {
        return growth(&words[1..]);
    }
    match plan(&words).map(|plan| run_seeds(&plan)) {
        Ok(Ok(tally)) if tally.failed.is_empty() => ExitCode::SUCCESS,
        Ok(Ok(_)) => ExitCode::FAILURE,
        Ok(Err(error)) => {
            eprintln!("cannot run: {error}");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn growth(words: &[String]) -> ExitCode {
    let number = |at: usize, usual| words.get(at).map_or(Some(usual), |word| word.parse().ok());
    let (Some(nodes @ 1..=2_000), Some(seconds)) = (number(0, 100), number(1, 600)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run_growth(nodes as usize, Duration::from_secs(seconds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot measure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn plan(words: &[String]) -> Result<Plan, String> {
    let processes = std::thread::available_parallelism().map_or(1, usize::from);
    let scenario = Scenario {
        seed: 0,
        nodes: 5,
        time: Duration::from_secs(600),
        faults: true,
        long_absence: false,
        verbose: false,
        live: false,
    };
    let histories = PathBuf::from("target/simulation");
    let mut plan = Plan {
        seeds: Vec::new(),
        scenario,
        processes,
        twice: false,
        until_failure: false,
        histories,
    };
    let (mut from, mut count) = (0, 100);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let next = words.next().ok_or(format!("{word} needs a number"))?;
            next.parse::<u64>().map_err(|_| format!("{word} {next}: not a number"))
        };
        match word.as_str() {
            "--seeds" => count = number()?,
            "--from" => from = number()?,
            "--seed" => {
                (from, count) = (number()?, 1);
                plan.scenario.live = true;
            }
            "--nodes" => plan.scenario.nodes = number()? as usize,
            "--seconds" => plan.scenario.time = Duration::from_secs(number()?),
            "--processes" => plan.processes = number()?.max(1) as usize,
            "--no-faults" => plan.scenario.faults = false,
            "--long-absence" => plan.scenario.long_absence = true,
            "--twice" => plan.twice = true,
            "--until-failure" => plan.until_failure = true,
            "--verbose" => plan.scenario.verbose = true,
            other => return Err(format!("{other}: unknown")),
        }
    }
    if plan.scenario.nodes > 2_000 {
        return Err("there are subnets for 2,000 nodes".to_owned());
    }
    plan.seeds = (from..from + count).collect();
    Ok(plan)
}
