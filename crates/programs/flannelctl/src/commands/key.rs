//! `flannelctl key`: the WireGuard key of this node.
//!
//! A new key is put beside the one in use; when it is gone, the daemon has told the peers and put it in place.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use flannel_common::{PrivateKey, PublicKey, random_bytes, replace_file};

const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Give this node a new WireGuard key, without a packet lost; flanneld must be running
    Rotate(RotateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// The key's file, as WIREGUARD_KEY_FILE of flanneld names it
    #[arg(long, value_name = "FILE", default_value = "/run/flannel/wgkey")]
    key_file: PathBuf,
    /// How long flanneld may take
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    wait: u64,
}

impl KeyCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Self::Rotate(args) = self;
        args.run()
    }
}

impl RotateArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let old = public_key(&self.key_file)?;
        let mut next = self.key_file.clone().into_os_string();
        next.push(".next");
        let next = PathBuf::from(next);
        if next.exists() {
            bail!(
                "{} is there already: a rotation is under way, or flanneld is not running or cannot reach its \
                 store (its log says so)",
                next.display()
            );
        }
        let key = PrivateKey::from_random(random_bytes().context("cannot make a key")?);
        let new = key.public();
        replace_file(&next, key.reveal().as_bytes(), 0o600)
            .with_context(|| format!("cannot write {}", next.display()))?;
        let limit = Instant::now() + Duration::from_secs(self.wait);
        while next.exists() {
            if Instant::now() >= limit {
                return Err(give_up(&next, self.wait));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let text = "This node has a new WireGuard key. Its public part";
        writeln!(io::stdout(), "{text} was {old} and is {new}.")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Nobody has taken it, and nobody is to take it when it is not expected any more.
fn give_up(next: &Path, waited: u64) -> anyhow::Error {
    let unless = match fs::remove_file(next) {
        Ok(()) => "the old key stays".to_owned(),
        Err(error) => format!("{} is left there: {error}", next.display()),
    };
    anyhow::anyhow!(
        "flanneld has not taken the new key within {waited} s: {unless}. Is it running, with the backend \
         wireguard, with this key file, and can it reach its store? Its log says what is wrong"
    )
}

fn public_key(path: &Path) -> anyhow::Result<PublicKey> {
    let unread = || {
        let file = path.display();
        format!("cannot read the WireGuard key {file}; is this a node with that backend?")
    };
    let text = fs::read_to_string(path).with_context(unread)?;
    let key: PrivateKey = text.parse().with_context(|| path.display().to_string())?;
    Ok(key.public())
}
