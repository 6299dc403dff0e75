//! `lab down`: nothing of the lab is left when it returns.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::client;
use crate::protocol::Request;
use crate::state::{LabName, StateDir};

/// How long the supervisor may take to go after it has answered.
const LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn run(name: &LabName) -> anyhow::Result<ExitCode> {
    if let Some(mut stream) = client::connect(name)? {
        client::ask_on(&stream, name, &Request::Down)?;
        // The supervisor keeps the connection until its very end.
        stream.set_read_timeout(Some(LIMIT))?;
        let end = stream.read(&mut [0]);
        if end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            bail!("the supervisor of lab `{name}` did not end within {LIMIT:?}");
        }
        writeln!(io::stdout(), "lab {name} is gone")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !name.dir().exists() {
        bail!("no lab `{name}` is running");
    }
    let Some(dir) = StateDir::take(name)? else { bail!("lab `{name}` is just starting") };
    dir.remove();
    writeln!(io::stdout(), "lab {name} had crashed; its remains have been removed")?;
    Ok(ExitCode::SUCCESS)
}
