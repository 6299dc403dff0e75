//! Whether a flanneld, of whatever make, looks after the network namespace that this command is in.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const NAME: &str = "flanneld";

/// Its process id.
pub(crate) fn running() -> Option<u32> {
    let here = namespace(Path::new("/proc/thread-self"))?;
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let is_daemon = |process: &Path| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim_end() == NAME)
            && namespace(process) == Some(here)
    };
    entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .find(|(_, process)| is_daemon(process))
        .map(|(pid, _)| pid)
}

fn namespace(process: &Path) -> Option<u64> {
    Some(fs::metadata(process.join("ns/net")).ok()?.ino())
}
