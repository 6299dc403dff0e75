//! `lab logs`: what daemons have written.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::client;
use crate::place::PlaceName;
use crate::state::LabName;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Whose log: a node's number, or `etcd`
    #[arg(value_name = "NODE|etcd")]
    place: PlaceName,

    /// Go on with what is written from now on
    #[arg(short, long)]
    follow: bool,
}

impl Logs {
    pub(crate) fn run(self, name: &LabName) -> anyhow::Result<ExitCode> {
        if !matches!(self.place, PlaceName::Node(_) | PlaceName::Etcd(_)) {
            bail!("{} has no log: only nodes and etcd have", self.place.label());
        }
        if client::connect(name)?.is_none() {
            bail!("no lab `{name}` is running");
        }
        let path = name.log_dir().join(format!("{}.log", self.place.label()));
        let mut log = match File::open(&path) {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!(
                    "{} has no log: is there such a node, and a daemon on it?",
                    self.place.label()
                )
            }
            Err(error) => return Err(error).context(format!("open {}", path.display())),
        };
        let mut out = io::stdout().lock();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match log.read(&mut buffer).context("read the log")? {
                0 if !self.follow || !path.exists() => return Ok(ExitCode::SUCCESS),
                0 => std::thread::sleep(Duration::from_millis(100)),
                length => {
                    out.write_all(&buffer[..length])?;
                    out.flush()?;
                }
            }
        }
    }
}
