//! `flannelctl config`: the network config.

mod ask_nodes;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use flannel_backend::UsableConfig;
use flannel_lease::SubnetOrigin;
use flannel_store::{EXAMPLE_CONFIG, OperatorStore};

use super::output::OutputArgs;
use super::store_args::{StoreArgs, block_on};
use ask_nodes::ask_nodes;

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
    /// Show the config without its secrets, with every derived value if a lease server keeps it
    Get {
        /// Byte for byte as it was written, secrets and all
        #[arg(long)]
        raw: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Check a config and write it
    Set {
        /// A file, or `-` for the standard input
        file: PathBuf,
        /// Even if nodes lose their subnets by it, or cannot use it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        strict: Strict,
    },
    /// Check a config and show it with every derived value
    Validate {
        /// A file, or `-` for the standard input
        file: PathBuf,
        #[command(flatten)]
        strict: Strict,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Nodes pass over keys that they do not know. Whoever writes one has mistyped another, as a rule.
#[derive(Debug, Args)]
struct Strict {
    /// Warn of keys that no node looks at instead of refusing them
    #[arg(long)]
    allow_unknown_keys: bool,
}

impl Strict {
    fn judge(&self, text: &str, subnets: SubnetOrigin) -> anyhow::Result<UsableConfig> {
        let judged = flannel_backend::judge_config_to_write(text, subnets)?;
        if !judged.remarks.is_empty() && !self.allow_unknown_keys {
            let remarks: Vec<String> = judged.remarks.iter().map(ToString::to_string).collect();
            anyhow::bail!("{} (or say --allow-unknown-keys)", remarks.join("; "));
        }
        warn_of(&judged);
        Ok(judged)
    }
}

fn warn_of(judged: &UsableConfig) {
    for remark in &judged.remarks {
        let _ = writeln!(std::io::stderr(), "warning: {remark}");
    }
}

/// What nodes do with a config only if they allow it is no surprise to whoever writes it.
fn note_privileges(judged: &UsableConfig) {
    let asked: Vec<String> = judged.backend.privileges().iter().map(ToString::to_string).collect();
    if !asked.is_empty() {
        let _ = writeln!(
            std::io::stderr(),
            "note: {}: nodes wait with what is new of that until it is allowed there, by flanneld --allow-commands or, \
             for commands with etcd and Kubernetes, by a restart of flanneld",
            asked.join(", ")
        );
    }
}

impl ConfigArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match &self.action {
            Action::Get { raw, output } => {
                let store = self.store.open()?;
                let texts = block_on(async {
                    Ok((store.config_as_written().await?, store.config().await?))
                })?;
                let (Some(written), Some(derived)) = texts else {
                    anyhow::bail!(
                        "there is no network config yet: write one, such as {EXAMPLE_CONFIG}, to a file and \
                         `flannelctl config set FILE`"
                    );
                };
                match raw {
                    true => std::io::stdout().write_all(written.as_bytes())?,
                    false => show(&flannel_backend::redact_config(&derived), *output)?,
                }
                match flannel_backend::judge_config(&written, store.subnets()) {
                    Ok(judged) => warn_of(&judged),
                    Err(error) => {
                        let text = format!("warning: no node can use this config: {error}");
                        writeln!(std::io::stderr(), "{text}")?;
                    }
                }
            }
            Action::Set { file, force, strict } => {
                let text = read(file)?;
                let judged = strict.judge(&text, self.store.stores()?.subnets());
                note_privileges(&judged.context("nothing was written")?);
                let store = self.store.open()?;
                block_on(set(&*store, &text, *force))?;
            }
            Action::Validate { file, strict, output } => {
                let judged = strict.judge(&read(file)?, self.store.stores()?.subnets())?;
                show(&judged.config.to_json(), *output)?;
                if output.output.is_for_people() {
                    writeln!(std::io::stderr(), "{} is valid", file.display())?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn set(store: &dyn OperatorStore, text: &str, force: bool) -> anyhow::Result<()> {
    let opinions = ask_nodes(store, text).await;
    let warn = |what: String| writeln!(std::io::stderr(), "warning: {what}");
    opinions.silence().map_or(Ok(()), warn)?;
    match opinions.objection() {
        Some(why) if force => warn(format!("{why}\nthese keep their former network"))?,
        Some(why) => anyhow::bail!(
            "nothing was written: {why}\nGive these nodes what they lack, or say --force: they keep their former \
             network then, and are cut off from the others"
        ),
        None => {}
    }
    Ok(store.set_config(text, force).await?)
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// People, too, are shown JSON: it is what they write.
fn show(text: &str, OutputArgs { output }: OutputArgs) -> anyhow::Result<()> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => output.show(&value, |_| format!("{value:#}\n")),
        Err(_) => Ok(writeln!(std::io::stdout(), "{text}")?),
    }
}
