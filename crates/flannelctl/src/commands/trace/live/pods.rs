//! Sending as a pod does: from its network namespace, which is known by the pod's address.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where container runtimes keep them, and those of all processes.
const KEPT: [&str; 2] = ["/run/netns", "/run/docker/netns"];

/// Does something in the network namespace that has this address; `None` if there is none.
pub(super) fn within<R: Send>(
    pod: IpAddr,
    deed: impl FnOnce() -> R + Send,
) -> anyhow::Result<Option<R>> {
    let Some(namespace) = find(pod) else { return Ok(None) };
    std::thread::scope(|scope| {
        let done = scope.spawn(move || -> anyhow::Result<R> {
            enter(&namespace).context("enter the network namespace of the pod")?;
            Ok(deed())
        });
        done.join().unwrap_or_else(|_| anyhow::bail!("it was not sent")).map(Some)
    })
}

fn find(pod: IpAddr) -> Option<File> {
    let own = fs::metadata("/proc/self/ns/net").ok().map(|own| (own.dev(), own.ino()));
    let mut known: BTreeSet<(u64, u64)> = own.into_iter().collect();
    candidates().into_iter().find_map(|path| {
        let namespace = File::open(path).ok()?;
        let id = namespace.metadata().ok()?;
        (known.insert((id.dev(), id.ino())) && has(&namespace, pod)).then_some(namespace)
    })
}

fn candidates() -> Vec<PathBuf> {
    let inside = |directory: &str| fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        KEPT.iter().flat_map(|dir| inside(dir)).map(|it| it.path()).collect();
    let is_process =
        |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = inside("/proc").filter(|entry| is_process(&entry.file_name()));
    paths.extend(processes.map(|entry| entry.path().join("ns/net")));
    paths
}

/// An address is that of a namespace if it can be sent from there.
fn has(namespace: &File, pod: IpAddr) -> bool {
    std::thread::scope(|scope| {
        let looked = scope.spawn(|| enter(namespace).is_ok() && UdpSocket::bind((pod, 0)).is_ok());
        looked.join().unwrap_or(false)
    })
}

/// Of this thread, which ends with that.
fn enter(namespace: &File) -> std::io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
