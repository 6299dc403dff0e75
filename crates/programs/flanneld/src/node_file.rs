//! What this node keeps of itself over reboots: the subnet it holds and how it announced itself, one file
//! per network. A file is named after the hardware address of the network card: a copy of the disk in
//! another machine, which has another card, does not find itself in it.

use std::path::{Path, PathBuf};

use flannel_common::Mac;
use flannel_lease::{NodeIdentity, Subnet};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::state_file::{self, A_FEW_LINES, FileError};

/// What the kernel allows for a name, and what the temporary file adds to it.
const LONGEST_NAME: usize = 200;

/// Not there where there is no `/proc`, and then equal to nothing.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug)]
pub struct NodeFiles {
    directory: PathBuf,
    boot: Option<String>,
    /// Several networks, and several daemons, of one node have a subnet file each.
    suffix: String,
}

impl NodeFiles {
    pub fn new(data_dir: &Path, subnet_file: &Path) -> Self {
        Self {
            directory: data_dir.join("nodes"),
            boot: std::fs::read_to_string(BOOT_ID).ok().map(|text| text.trim().to_owned()),
            suffix: name_after(subnet_file),
        }
    }

    /// What was kept under the first of these cards that has something.
    pub fn read(&self, cards: impl IntoIterator<Item = Mac>) -> Option<NodeIdentity> {
        cards.into_iter().find_map(|card| {
            let path = self.path(card);
            let text = state_file::read(&path, A_FEW_LINES).unwrap_or_else(|error| {
                tracing::warn!("{error}; going on without it");
                None
            })?;
            read_kept(&text)
                .inspect_err(|error| tracing::warn!("{} is not used: {error}", path.display()))
                .ok()
                .map(|(identity, _)| identity)
        })
    }

    pub fn write(&self, card: Mac, identity: &NodeIdentity) -> Result<(), FileError> {
        let identity = RawValue::from_string(identity.to_json()).unwrap_or_default();
        let kept = Kept { boot: self.boot.clone(), identity };
        let text = serde_json::to_string(&kept).unwrap_or_default() + "\n";
        state_file::write(&self.path(card), &text).map(drop)
    }

    /// Whether what another machine kept is here, and names this subnet: then this is a copy of its disk.
    /// What another card has kept since this machine was switched on is its own.
    pub fn another_kept(&self, cards: &[Mac], subnet: Subnet) -> bool {
        let own: Vec<PathBuf> = cards.iter().map(|card| self.path(*card)).collect();
        let end = format!("{}.json", self.suffix);
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let others = entries.map(|entry| entry.path()).filter(|path| !own.contains(path));
        others.filter(|path| path.to_string_lossy().ends_with(&end)).any(|path| {
            let text = state_file::read(&path, A_FEW_LINES).ok().flatten().unwrap_or_default();
            read_kept(&text).is_ok_and(|(other, boot)| {
                let same_boot = boot.is_some() && boot == self.boot;
                !same_boot && other.subnet().overlaps(&subnet)
            })
        })
    }

    fn path(&self, card: Mac) -> PathBuf {
        let card = card.to_string().replace(':', "-");
        self.directory.join(format!("{card}{}.json", self.suffix))
    }
}

/// Part of a file's name that tells the networks of a node apart, each of which has a subnet file of its own.
pub(crate) fn name_after(subnet_file: &Path) -> String {
    let name = subnet_file.to_string_lossy().replace('/', "-");
    let surplus = name.chars().count().saturating_sub(LONGEST_NAME / 4);
    name.chars().skip(surplus).collect()
}

#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(rename = "Boot", default)]
    boot: Option<String>,
    #[serde(rename = "Lease")]
    identity: Box<RawValue>,
}

fn read_kept(text: &str) -> Result<(NodeIdentity, Option<String>), String> {
    let Kept { boot, identity } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok((NodeIdentity::from_json(identity.get())?, boot))
}

#[cfg(test)]
mod tests {
    use flannel_lease::{Lease, LeaseAttrs, Version};

    use super::*;

    fn identity(subnet: &str) -> NodeIdentity {
        let attrs = LeaseAttrs { public_ip: Some([192, 0, 2, 1].into()), ..LeaseAttrs::default() };
        NodeIdentity::new(
            &Lease { subnet: subnet.parse().expect("a subnet"), attrs },
            Version::new(7),
        )
    }

    #[test]
    fn what_one_card_kept_no_other_finds() {
        let home = tempfile::tempdir().expect("a directory");
        let files = NodeFiles::new(home.path(), Path::new("/run/flannel/subnet.env"));
        let (mine, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        assert_eq!(files.read([mine]), None);
        files.write(mine, &identity("10.244.1.0-24")).expect("it can be written");
        assert_eq!(files.read([other, mine]), Some(identity("10.244.1.0-24")));
        assert_eq!(files.read([other]), None);
        let subnet = |key: &str| key.parse().expect("a subnet");
        assert!(!files.another_kept(&[other], subnet("10.244.1.0-24")), "our own former card");
        let files = NodeFiles { boot: Some("another".to_owned()), ..files };
        assert!(files.another_kept(&[other], subnet("10.244.1.0-24")));
        assert!(!files.another_kept(&[other], subnet("10.244.2.0-24")));
        assert!(!files.another_kept(&[mine], subnet("10.244.1.0-24")));
        let blue = NodeFiles::new(home.path(), Path::new("/run/flannel/networks/blue.env"));
        assert_eq!(blue.read([mine]), None, "another network of the same node");
        let name = home.path().join("nodes/02-00-00-00-00-01-run-flannel-subnet.env.json");
        assert!(name.exists());
        std::fs::write(&name, "{}").expect("it can be written");
        assert_eq!(files.read([mine]), None, "and what cannot be read is no reason to fail");
    }

    #[test]
    fn the_path_of_a_subnet_file_may_have_any_length() {
        let home = tempfile::tempdir().expect("a directory");
        let files = NodeFiles::new(home.path(), Path::new(&"/ü".repeat(2_000)));
        let card = Mac([2, 0, 0, 0, 0, 1]);
        files.write(card, &identity("10.244.1.0-24")).expect("it can be written");
        assert!(files.read([card]).is_some());
    }
}
