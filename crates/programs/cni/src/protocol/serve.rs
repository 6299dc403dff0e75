//! One request from beginning to end: read it, have the plugin carry it out, print what came of it.

use std::io::{Read, Write};

use super::{Added, Call, Code, Command, Environment, Error, Result, Version};
use crate::netns::Netns;

pub trait Plugin {
    fn add(&self, call: &Call) -> Result<Added>;
    fn del(&self, call: &Call) -> Result<()>;
    fn check(&self, call: &Call) -> Result<()>;

    /// Nothing to do for one that leaves nothing behind that does not go with the namespace.
    fn gc(&self, _call: &Call) -> Result<()> {
        Ok(())
    }

    fn status(&self, _call: &Call) -> Result<()> {
        Ok(())
    }

    fn run(&self, call: &Call) -> Result<()> {
        match call.command {
            Command::Del => self.del(call),
            Command::Check => self.check(call),
            Command::Gc => self.gc(call),
            Command::Status => self.status(call),
            Command::Add | Command::Version => Ok(()),
        }
    }
}

/// Returns whether it succeeded. `about`: what the program says of itself when no command is given.
pub fn serve(
    plugin: &dyn Plugin,
    about: &str,
    env: &Environment<'_>,
    stdin: impl Read,
    stdout: &mut impl Write,
    stderr: &mut impl Write,
) -> bool {
    let (text, succeeded) = match answer(plugin, env, stdin) {
        Ok(Some(text)) => (text, true),
        Ok(None) => {
            let versions = Version::ALL.map(Version::as_str).join(", ");
            let _ = writeln!(stderr, "{about}\nCNI protocol versions supported: {versions}");
            return true;
        }
        Err(error) => (error.to_json(), false),
    };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => succeeded,
        Err(error) => {
            let _ = writeln!(stderr, "could not write the answer to standard output: {error}");
            false
        }
    }
}

fn answer(plugin: &dyn Plugin, env: &Environment<'_>, stdin: impl Read) -> Result<Option<String>> {
    let Some(call) = Call::read(env, stdin)? else { return Ok(None) };
    if matches!(call.command, Command::Add | Command::Del) {
        refuse_own_netns(&call)?;
    }
    match call.command {
        Command::Version => Ok(Some(versions())),
        Command::Add => {
            let Added { outcome, version } = plugin.add(&call)?;
            outcome.to_json(version).map(Some)
        }
        _ => plugin.run(&call).map(|()| Some(String::new())),
    }
}

/// The reference looks after the deed; then the host's own interface may be gone already.
fn refuse_own_netns(call: &Call) -> Result<()> {
    if call.netns_override || call.netns.is_empty() {
        return Ok(());
    }
    match Netns::open(&call.netns) {
        Ok(netns) if netns.is_current() => Err(Error::new(
            Code::InvalidNetns,
            "plugin's netns and netns from CNI_NETNS should not be the same",
        )),
        // A path that leads nowhere is the plugin's to judge: at DEL it is nothing unusual.
        _ => Ok(()),
    }
}

fn versions() -> String {
    let supported = Version::ALL.map(|version| format!("\"{version}\"")).join(",");
    format!("{{\"cniVersion\":\"{}\",\"supportedVersions\":[{supported}]}}\n", Version::LATEST)
}
