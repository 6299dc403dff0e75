//! `lab down`: nothing of the lab is left when it returns.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::client;
use super::protocol::Request;
use super::state::{LabName, StateDir};

/// How long the supervisor may take to go after it has answered.
const LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn run(name: &LabName) -> anyhow::Result<ExitCode> {
    if client::connect(name)?.is_some() {
        client::ask(name, &Request::Down)?;
        let begin = Instant::now();
        while name.socket().exists() {
            if begin.elapsed() > LIMIT {
                bail!("the supervisor of lab `{name}` did not end within {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        writeln!(io::stdout(), "lab {name} is gone")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !name.dir().exists() {
        bail!("no lab `{name}` is running");
    }
    let Some(dir) = StateDir::take(name)? else { bail!("lab `{name}` is just starting") };
    dir.remove();
    writeln!(io::stdout(), "lab {name} had died; what it left is cleared")?;
    Ok(ExitCode::SUCCESS)
}
