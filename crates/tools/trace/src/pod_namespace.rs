//! The network namespace of a pod, which is known by the pod's address, and by the veth that leads there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use flannel_common::Mac;
use flannel_kernel::look::{Device, Kernel};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where container runtimes keep them; those of all processes are looked at, too.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/run/docker/netns"];

pub struct PodNamespace {
    namespace: File,
    pub(crate) veth: Option<u32>,
    pub(crate) mac: Option<Mac>,
}

impl PodNamespace {
    /// The one that has this address, and whose veth is on this node if one of them is.
    pub fn find(pod: IpAddr) -> Option<Self> {
        Self::find_all(pod).into_iter().next()
    }

    /// All that have this address and whose veths are on this node, else one that has it.
    pub(crate) fn find_all(pod: IpAddr) -> Vec<Self> {
        let here = Kernel::open().map(|kernel| kernel.devices).unwrap_or_default();
        let own = fs::metadata("/proc/thread-self/ns/net").ok().map(|own| (own.dev(), own.ino()));
        let mut known: BTreeSet<(u64, u64)> = own.into_iter().collect();
        let (mut found, mut without_veth) = (Vec::new(), None);
        for path in candidates() {
            let Ok(namespace) = File::open(path) else { continue };
            let Ok(id) = namespace.metadata() else { continue };
            if !known.insert((id.dev(), id.ino())) {
                continue;
            }
            let Some(device) = device_with(&namespace, pod) else { continue };
            let veth = leads_there(&device, &here);
            match (veth, device.kind == "veth") {
                (Some(_), _) => found.push(Self { namespace, veth, mac: device.mac }),
                // It may be a pod of another node that is on this machine, as in a lab.
                (None, true) => {}
                (None, false) => {
                    without_veth =
                        without_veth.or(Some(Self { namespace, veth: None, mac: device.mac }));
                }
            }
        }
        if found.is_empty() {
            found.extend(without_veth);
        }
        found
    }

    pub fn run<R: Send>(&self, deed: impl FnOnce() -> R + Send) -> io::Result<R> {
        run_in(&self.namespace, deed)
    }
}

fn run_in<R: Send>(namespace: &File, deed: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| -> io::Result<R> {
            // Of this thread, which ends with that.
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(deed())
        });
        done.join().unwrap_or_else(|_| Err(io::Error::other("nothing was done there")))
    })
}

fn candidates() -> Vec<PathBuf> {
    let inside = |directory: &str| fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        DIRECTORIES.iter().flat_map(|dir| inside(dir)).map(|it| it.path()).collect();
    let is_process =
        |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = inside("/proc").filter(|entry| is_process(&entry.file_name()));
    paths.extend(processes.map(|entry| entry.path().join("ns/net")));
    paths
}

/// An address is that of a namespace if it can be sent from there.
fn device_with(namespace: &File, pod: IpAddr) -> Option<Device> {
    let looked = run_in(namespace, || {
        UdpSocket::bind((pod, 0)).ok()?;
        let kernel = Kernel::open().ok()?;
        let has = |device: &&Device| device.addresses.iter().any(|net| net.addr() == pod);
        kernel.devices.iter().find(has).cloned()
    });
    looked.ok().flatten()
}

/// The device of this node whose other end is that of the pod.
fn leads_there(pod: &Device, here: &[Device]) -> Option<u32> {
    let found = here.iter().find(|device| Some(device.index) == pod.other_end)?;
    (found.kind == "veth" && found.other_end == Some(pod.index)).then_some(found.index)
}
