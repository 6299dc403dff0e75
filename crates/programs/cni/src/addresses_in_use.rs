//! Addresses in use on this host, in all network namespaces that have a process or are mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::kernel::Kernel;
use crate::netns::Netns;

/// Where runtimes mount namespaces that no process need be in.
const MOUNTED: [&str; 3] = ["/run/netns", "/var/run/netns", "/run/docker/netns"];

/// `None`: some namespace is hidden from this process.
pub(crate) fn addresses() -> Option<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    for path in namespaces()? {
        let Ok(netns) = Netns::open(path.to_str()?) else { continue };
        let inside = netns.inside(|| Kernel::open()?.addresses(None)).ok()?.ok()?;
        addresses.extend(inside.into_iter().map(|address| address.addr()));
    }
    Some(addresses)
}

fn namespaces() -> Option<Vec<PathBuf>> {
    let mut by_inode = BTreeMap::new();
    let mut hidden = Vec::new();
    for process in processes()? {
        let path = process.join("ns/net");
        match fs::metadata(&path) {
            Ok(metadata) => {
                by_inode.entry(metadata.ino()).or_insert(path);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => hidden.push(process),
            // It has ended meanwhile, or is about to.
            Err(_) => {}
        }
    }
    if !are_elsewhere(&hidden, by_inode.values()) {
        return None;
    }
    for directory in MOUNTED {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if let Ok(metadata) = fs::metadata(&path) {
                by_inode.entry(metadata.ino()).or_insert(path);
            }
        }
    }
    Some(by_inode.into_values().collect())
}

fn processes() -> Option<Vec<PathBuf>> {
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let entries = fs::read_dir("/proc").ok()?.flatten();
    Some(entries.filter(|entry| is_number(&entry.file_name())).map(|entry| entry.path()).collect())
}

/// A process with more rights than ours, as the first one of a host may be, does not show its
/// namespace. But whether it shares somebody else's can be seen: `/proc/N/net` is the same then.
fn are_elsewhere<'a>(hidden: &[PathBuf], visible: impl Iterator<Item = &'a PathBuf>) -> bool {
    if hidden.is_empty() {
        return true;
    }
    let identity = |process: &Path| fs::metadata(process.join("net/dev")).ok().map(|it| it.ino());
    let known: BTreeSet<u64> =
        visible.filter_map(|path| identity(path.parent()?.parent()?)).collect();
    hidden.iter().filter_map(|process| identity(process)).all(|inode| known.contains(&inode))
}
