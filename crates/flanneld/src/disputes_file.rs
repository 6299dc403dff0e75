//! The file beside the subnet file that says who was first known by a MAC address or key that several nodes announce. A
//! daemon that starts anew must not decide otherwise than the one before it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::daemon::link_holders::{Disputes, KEPT_DISPUTES};
use crate::subnet_file;

fn path(subnet_file: &Path) -> PathBuf {
    subnet_file.with_extension("disputes")
}

/// What cannot be read is left out: then the store tells who came first.
pub(crate) fn read_disputes(subnet_file: &Path) -> Disputes {
    let path = path(subnet_file);
    let text = subnet_file::read(&path).unwrap_or_else(|error| {
        tracing::warn!("{error}; going on without it");
        None
    });
    let Some(text) = text else { return Disputes::new() };
    let entries: BTreeMap<String, String> = serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!("{} is not used: {error}", path.display());
        BTreeMap::new()
    });
    let read = |(identity, holder): (&String, &String)| {
        Some((identity.parse().ok()?, holder.parse().ok()?))
    };
    entries.iter().filter_map(read).take(KEPT_DISPUTES).collect()
}

pub(crate) fn write_disputes(subnet_file: &Path, disputes: &Disputes) {
    let path = path(subnet_file);
    if disputes.is_empty() {
        let _ = std::fs::remove_file(&path);
        return;
    }
    let entries: BTreeMap<String, String> =
        disputes.iter().map(|(identity, holder)| (identity.to_key(), holder.to_string())).collect();
    let text = serde_json::to_string(&entries).unwrap_or_default() + "\n";
    if let Err(error) = subnet_file::replace(&path, &text) {
        tracing::warn!(
            "{error}; after a restart it may not be known which node had a MAC or key first"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disputes_are_read_as_they_were_written_and_the_file_goes_with_the_last() {
        let home = tempfile::tempdir().expect("a directory");
        let file = home.path().join("subnet.env");
        assert!(read_disputes(&file).is_empty());
        let disputes: Disputes = [("vtep-mac-ipv4/02:00:00:00:00:01", "10.5.9.0-24")]
            .map(|(identity, holder)| {
                (identity.parse().expect("an identity"), holder.parse().expect("a subnet"))
            })
            .into();
        write_disputes(&file, &disputes);
        assert_eq!(read_disputes(&file), disputes);
        std::fs::write(path(&file), "{").expect("it can be written");
        assert!(read_disputes(&file).is_empty(), "and what cannot be read is no reason to fail");
        write_disputes(&file, &Disputes::new());
        assert!(!path(&file).exists());
    }
}
