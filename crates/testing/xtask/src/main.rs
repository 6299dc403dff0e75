//! The machinery of `scripts/test`. It uses the standard library alone, so that it is built in seconds.

mod alone;
mod process;
mod programs;
mod report;
mod suite;
mod test_output;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "usage: xtask test [ARGUMENT OF cargo test...]; scripts/test calls it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(("test", arguments)) = arguments.split_first().map(|(verb, rest)| (&**verb, rest))
    else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match suite::run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: error: {error}");
            ExitCode::FAILURE
        }
    }
}
