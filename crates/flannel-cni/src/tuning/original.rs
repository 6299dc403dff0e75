//! What an interface was like before it was tuned, kept until DEL: interfaces that outlive their container
//! go back as they came. The files are the Go plugin's, so that either restores what the other kept.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flannel_netlink::Mac;
use serde::{Deserialize, Serialize};

use super::conf::Wanted;
use crate::kernel::{Change, Kernel, Link};
use crate::protocol::{Call, Error, ErrorContext};

#[derive(Default, Serialize, Deserialize)]
struct Original {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(default, rename = "txQLen", skip_serializing_if = "Option::is_none")]
    queue_length: Option<u32>,
}

pub(super) fn keep(
    call: &Call,
    directory: &Path,
    link: &Link,
    wanted: &Wanted,
) -> Result<(), Error> {
    let mac = link.mac.filter(|_| wanted.mac.is_some()).map(|mac| mac.to_string());
    let original = Original {
        mac: mac.unwrap_or_default(),
        promisc: wanted.promiscuous.then_some(link.promiscuous),
        mtu: wanted.mtu.map(|_| link.mtu),
        allmulti: wanted.all_multicast.map(|_| link.all_multicast),
        queue_length: wanted.queue_length.map(|_| link.queue_length),
    };
    let path = path(call, directory);
    write(directory, &path, &original).or_cni(format_args!(
        "could not keep what {} was like in {}",
        call.ifname,
        path.display()
    ))
}

fn write(directory: &Path, path: &Path, original: &Original) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut text = Vec::new();
    let by_one = serde_json::ser::PrettyFormatter::with_indent(b" ");
    original.serialize(&mut serde_json::Serializer::with_formatter(&mut text, by_one))?;
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(&text)
}

/// As a member of the container's namespace. What cannot be read is not restored.
pub(super) fn restore(call: &Call, directory: &Path) -> Result<(), Error> {
    let Ok(text) = fs::read(path(call, directory)) else { return Ok(()) };
    let Ok(original) = serde_json::from_slice::<Original>(&text) else { return Ok(()) };
    let mut kernel = Kernel::open()?;
    let Some(link) = kernel.link(&call.ifname)? else { return Ok(()) };
    let (index, name) = (link.index, &call.ifname);
    let mac = original.mac.parse::<Mac>().ok();
    let changes = [
        original.mtu.filter(|mtu| *mtu != 0).map(|mtu| Change::set_mtu(index, name, mtu)),
        mac.map(|mac| Change::set_mac(index, name, mac)),
        original.promisc.map(|on| Change::set_promiscuous(index, name, on)),
        original.allmulti.map(|on| Change::set_all_multicast(index, name, on)),
        original.queue_length.map(|length| Change::set_queue_length(index, name, length)),
    ];
    Ok(kernel.apply(changes.into_iter().flatten().collect())?)
}

pub(super) fn forget(call: &Call, directory: &Path) {
    // There may be none.
    let _ = fs::remove_file(path(call, directory));
}

fn path(call: &Call, directory: &Path) -> PathBuf {
    directory.join(format!("{}_{}.json", call.container_id, call.ifname))
}
