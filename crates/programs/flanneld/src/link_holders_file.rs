//! The file that says which lease had each MAC or key first. It outlives reboots: down-time gains a copy nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flannel_common::Task;
use tokio::sync::watch;

use crate::daemon::link_holders::{HolderMap, KEPT_HOLDERS};
use crate::node_file::name_after;
use crate::state_file;

/// Bytes that are read at most: so many entries of a key and a dual-stack subnet.
const LARGEST: u64 = KEPT_HOLDERS as u64 * 160;

/// One file for each network of each daemon, as each has a subnet file of its own.
#[derive(Clone, Debug)]
pub(crate) struct LinkHoldersFile(PathBuf);

impl LinkHoldersFile {
    pub(crate) fn new(data_dir: &Path, subnet_file: &Path) -> Self {
        let name = format!("{}.json", name_after(subnet_file).trim_start_matches('-'));
        Self(data_dir.join("link-holders").join(name))
    }

    /// Entries that cannot be read are left out: then the store tells who came first.
    pub(crate) fn read(&self) -> HolderMap {
        let path = self.0.display();
        let text = state_file::read(&self.0, LARGEST).unwrap_or_else(|error| {
            tracing::warn!("{error}; going on without it");
            None
        });
        let Some(text) = text else { return HolderMap::new() };
        let entries: BTreeMap<&str, &str> = serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!("{path} is not used: {error}");
            BTreeMap::new()
        });
        let read = |(identity, holder): (&&str, &&str)| {
            Some((identity.parse().ok()?, holder.parse().ok()?))
        };
        entries.iter().filter_map(read).take(KEPT_HOLDERS).collect()
    }

    /// Replaces the file; blocks until it is on the disk.
    pub(crate) fn write(&self, holders: &HolderMap) {
        let holders = holders.iter().take(KEPT_HOLDERS);
        let entries: BTreeMap<String, String> =
            holders.map(|(identity, holder)| (identity.to_key(), holder.to_string())).collect();
        let text = serde_json::to_string(&entries).unwrap_or_default() + "\n";
        if let Err(error) = state_file::write(&self.0, &text) {
            tracing::warn!(
                "{error}; after a restart this node may not know which node had a MAC or key first"
            );
        }
    }
}

/// Writes the file aside from the daemon's own thread: one write at a time, and what came last.
pub(crate) struct LinkHoldersWriter {
    pub(crate) latest: watch::Sender<HolderMap>,
    _task: Task,
}

impl LinkHoldersWriter {
    /// Must be called within a tokio runtime.
    pub(crate) fn start(file: LinkHoldersFile) -> Self {
        let (latest, mut written) = watch::channel(HolderMap::new());
        let task = Task::spawn("link-holders", async move {
            while written.changed().await.is_ok() {
                let (file, holders) = (file.clone(), written.borrow_and_update().clone());
                let write = Task::spawn_blocking("link-holders-file", move || file.write(&holders));
                let _ = write.await;
            }
        });
        Self { latest, _task: task }
    }
}

#[cfg(test)]
mod tests {
    use flannel_backend::LinkIdentity;
    use flannel_common::Family;
    use flannel_common::Mac;

    use super::*;

    #[test]
    fn holders_are_read_as_they_were_written_however_many_there_are() {
        let home = tempfile::tempdir().expect("a directory");
        let file = LinkHoldersFile::new(home.path(), Path::new("/run/flannel/subnet.env"));
        assert!(file.read().is_empty());
        let subnet = "10.105.109.0-24&fd00:1111:2222:3333::-64".parse().expect("a subnet");
        let entry = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            (LinkIdentity::VtepMac(Family::V4, Mac([2, 0, a, b, c, d])), subnet)
        };
        let holders: HolderMap = (0..10_000).map(entry).collect();
        file.write(&holders);
        assert_eq!(file.read(), holders);
        assert!(home.path().join("link-holders/run-flannel-subnet.env.json").exists());
        std::fs::write(&file.0, "{").expect("it can be written");
        assert!(file.read().is_empty(), "and what cannot be read is no reason to fail");
    }
}
