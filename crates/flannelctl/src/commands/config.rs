//! `flannelctl config`: the network config.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use flannel_lease::NetworkConfig;

use super::store_args::{StoreArgs, block_on};

/// Read, check and write the network config
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the config
    Get,
    /// Check a config and write it
    Set {
        /// A file, or `-` for the standard input
        file: PathBuf,
        /// Even if nodes lose their subnets by it
        #[arg(long)]
        force: bool,
    },
    /// Check a config and show it with every derived value
    Validate {
        /// A file, or `-` for the standard input
        file: PathBuf,
    },
}

impl ConfigArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match &self.action {
            Action::Get => {
                let store = self.store.open()?;
                match block_on(async { Ok(store.config().await?) })? {
                    Some(text) => show(&text)?,
                    None => anyhow::bail!(
                        "there is no network config yet: `flannelctl config set FILE`"
                    ),
                }
            }
            Action::Set { file, force } => {
                let text = read(file)?;
                NetworkConfig::parse(&text).context("nothing was written")?;
                let store = self.store.open()?;
                block_on(async { Ok(store.set_config(&text, *force).await?) })?;
            }
            Action::Validate { file } => {
                show(&NetworkConfig::parse(&read(file)?)?.to_json())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// JSON laid out for people.
fn show(text: &str) -> anyhow::Result<()> {
    let pretty = serde_json::from_str::<serde_json::Value>(text)
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| text.to_owned());
    writeln!(std::io::stdout(), "{pretty}")?;
    Ok(())
}
