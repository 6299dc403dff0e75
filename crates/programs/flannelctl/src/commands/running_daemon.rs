//! Programs in this command's network namespace, and whether a flanneld, of whatever make, is among them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const NAME: &str = "flanneld";

pub(crate) fn running() -> Option<u32> {
    processes().find(|(_, name)| name == NAME).map(|(pid, _)| pid)
}

/// Processes with their names, which the kernel cuts at 15 characters.
pub(crate) fn processes() -> impl Iterator<Item = (u32, String)> {
    let here = namespace(Path::new("/proc/thread-self"));
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let (pid, process) = (entry.file_name().to_str()?.parse().ok()?, entry.path());
        let name = fs::read_to_string(process.join("comm")).ok()?;
        let is_here = here.is_some() && namespace(&process) == here;
        is_here.then(|| (pid, name.trim_end().to_owned()))
    })
}

fn namespace(process: &Path) -> Option<u64> {
    Some(fs::metadata(process.join("ns/net")).ok()?.ino())
}
