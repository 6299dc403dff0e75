//! Asking the supervisor of a lab.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail};

use crate::protocol::{Answer, Request, receive, send};
use crate::state::LabName;

/// Asks and waits for the answer; the supervisor's errors become ours.
pub(crate) fn ask(name: &LabName, request: &Request) -> anyhow::Result<Answer> {
    let Some(stream) = connect(name)? else {
        bail!("no lab `{name}` is running; `flannel-lab up{}` starts one", name.option());
    };
    ask_on(&stream, name, request)
}

/// As [`ask`], on a connection that is there already.
pub(crate) fn ask_on(
    stream: &UnixStream,
    name: &LabName,
    request: &Request,
) -> anyhow::Result<Answer> {
    send(stream, request).context("ask the lab's supervisor")?;
    let answer = receive(BufReader::new(stream)).context("hear from the lab's supervisor")?;
    match answer {
        Some(Answer::Failed(reason)) => bail!("{reason}"),
        Some(answer) => Ok(answer),
        None => bail!("the supervisor of lab `{name}` has died, and its lab with it"),
    }
}

/// A connection to the supervisor; nothing if none listens.
pub(crate) fn connect(name: &LabName) -> anyhow::Result<Option<UnixStream>> {
    match UnixStream::connect(name.socket()) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
            io::ErrorKind::PermissionDenied => bail!("labs belong to root: try sudo"),
            _ => Err(error).context(format!("connect to {}", name.socket().display())),
        },
    }
}
