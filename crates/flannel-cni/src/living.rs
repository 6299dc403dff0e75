//! Which addresses are in use on this host: those of every network namespace that a process is in
//! or that is mounted somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::kernel::Kernel;
use crate::netns::Netns;

/// Where runtimes mount namespaces that no process need be in.
const MOUNTED: [&str; 3] = ["/run/netns", "/var/run/netns", "/run/docker/netns"];

/// `None`: some of them are hidden from this process.
pub(crate) fn addresses() -> Option<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    for path in namespaces()? {
        let Ok(netns) = Netns::open(path.to_str()?) else { continue };
        let inside = netns.inside(|| Kernel::open()?.addresses(None)).ok()?.ok()?;
        addresses.extend(inside.into_iter().map(|address| address.addr()));
    }
    Some(addresses)
}

/// One path for every namespace.
fn namespaces() -> Option<Vec<PathBuf>> {
    let mut by_inode = BTreeMap::new();
    for entry in fs::read_dir("/proc").ok()? {
        let Ok(entry) = entry else { continue };
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let path = entry.path().join("ns/net");
        match fs::metadata(&path) {
            Ok(metadata) => {
                by_inode.entry(metadata.ino()).or_insert(path);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
            // It has ended meanwhile, or is about to.
            Err(_) => {}
        }
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
