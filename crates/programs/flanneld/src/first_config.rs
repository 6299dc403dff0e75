//! `net-config-path` beside a lease server: the config that a network begins with. Afterwards the stored one counts, so a
//! file that says something else is told of, at the start and when it is edited.

use flannel_server::LeaseService;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use flannel_lease::{NetworkConfig, NetworkName, SubnetOrigin};
use flannel_server::embedded::AskError;
use flannel_server::lease_state::Request;

const PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct FirstConfig {
    pub(crate) service: Arc<dyn LeaseService>,
    pub(crate) network: NetworkName,
    pub(crate) file: PathBuf,
    /// Where the lease server is spoken to, for the command that is advised.
    pub(crate) server: String,
}

impl FirstConfig {
    /// Writes the first config of the network; one that is there is the operator's.
    pub(crate) async fn begin(&self) -> anyhow::Result<()> {
        if let Some(stored) = self.stored() {
            self.compare(&stored);
            return Ok(());
        }
        let text = fs::read_to_string(&self.file).with_context(|| {
            format!("cannot read the network config in {}", self.file.display())
        })?;
        if let Ok(judged) = flannel_backend::judge_config(&text, SubnetOrigin::Pool) {
            for remark in &judged.remarks {
                tracing::warn!("{}: {remark}", self.file.display());
            }
        }
        let written = async {
            let network = self.service.new_network(&self.network)?;
            network.ask(Request::SetConfig { text, force: false }).await
        };
        match written.await {
            Ok(_) => {
                let file = self.file.display();
                tracing::info!("The network {} begins with the config in {file}", self.network);
                Ok(())
            }
            Err(AskError::Refused(refusal)) => {
                Err(anyhow::Error::new(refusal).context(self.file.display().to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn watch(self) {
        let mut known = stamp(&self.file);
        loop {
            tokio::time::sleep(PAUSE).await;
            let now = stamp(&self.file);
            // A file that is away for a moment is being replaced.
            if now.is_some() && now != known {
                known = now;
                if let Some(stored) = self.stored() {
                    self.compare(&stored);
                }
            }
        }
    }

    fn stored(&self) -> Option<String> {
        self.service.watch_logs().get(&self.network)?.config_text()
    }

    fn compare(&self, stored: &str) {
        let file = self.file.display();
        let text = match fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(
                    "{file} cannot be read ({error}); the stored network config is in force"
                );
                return;
            }
        };
        if is_same(&text, stored) {
            return;
        }
        match flannel_backend::judge_config_to_write(&text, SubnetOrigin::Pool) {
            Ok(_) => tracing::warn!(
                "{file} differs from the network config that is stored and in force, and changes nothing: \
                 it is what a network begins with. To apply it: `flannelctl config set {file} --remote={}{}`",
                self.server,
                self.network.flag()
            ),
            Err(error) => tracing::error!(
                "{file} differs from the network config that is stored and in force, and no node could use \
                 it: {error}"
            ),
        }
    }
}

/// Blanks and the order of members make no difference.
fn is_same(text: &str, stored: &str) -> bool {
    let parsed = |text| NetworkConfig::parse(text).ok();
    text == stored || parsed(text).is_some_and(|config| parsed(stored) == Some(config))
}

type Stamp = Option<(std::time::SystemTime, u64, u64)>;

fn stamp(file: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt as _;
    let seen = |meta: Metadata| Some((meta.modified().ok()?, meta.len(), meta.ino()));
    fs::metadata(file).ok().and_then(seen)
}
