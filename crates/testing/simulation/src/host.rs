//! One machine of a simulated cluster: its address, files, clock, disk and kernel.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_common::Mac;
use ipnet::IpNet;

use crate::kernel::Kernel;

/// Number of the host with the lease server.
pub(crate) const SERVER: usize = 0;

/// Place of the host with the lease server on the link that all hosts share.
const SERVER_PLACE: u16 = 250;
/// Lengths of the link's prefixes.
const PREFIX_LENGTHS: (u8, u8) = (16, 64);

/// How lines of the history call a host.
pub(crate) fn name_of(number: usize) -> String {
    match number {
        SERVER => "server".to_owned(),
        number => format!("node-{number}"),
    }
}

/// Families of which machines have addresses, and pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    V6,
    Both,
}

impl Families {
    pub(crate) fn has_v4(self) -> bool {
        self != Self::V6
    }

    pub(crate) fn has_v6(self) -> bool {
        self != Self::V4
    }
}

/// What becomes of writes to a host's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFault {
    None,
    /// Nothing more can be written.
    Full,
    /// Syncing fails; whether the bytes are on the disk is not known.
    SyncFails,
    /// The machine is off.
    Off,
}

pub(crate) struct Host {
    pub(crate) number: usize,
    families: Families,
    /// Its addresses follow from it: no two hosts have one place.
    place: Cell<u16>,
    pub(crate) mac: Mac,
    pub(crate) is_up: Cell<bool>,
    /// Whether there is such a machine: one may be made later, as a copy of another.
    pub(crate) exists: Cell<bool>,
    boots: Cell<u64>,
    /// Its programs have run, or it was booted, since somebody last looked at its subnet.
    pub(crate) has_run: Cell<bool>,
    /// How often anything was synced to its disk.
    pub(crate) syncs: Cell<u64>,
    root: PathBuf,
    pub(crate) kernel: Kernel,
    pub(crate) disk: Cell<DiskFault>,
    /// Why its program ended by itself, if it did.
    pub(crate) program_ended: RefCell<Option<String>>,
    /// After so many more syncs the machine goes off.
    pub(crate) power_ends_after_syncs: Cell<Option<u32>>,
    on_disk: RefCell<SyncedFiles>,
    /// How far the clock was set, and how fast it runs away.
    wall_jump_ms: Cell<i64>,
    wall_drift_ppm: i64,
}

/// What a disk has for sure.
#[derive(Default)]
struct SyncedFiles {
    /// Contents of files by their inodes.
    contents: BTreeMap<u64, Vec<u8>>,
    /// Names and inodes of directories.
    names: BTreeMap<PathBuf, Vec<(PathBuf, u64)>>,
}

impl Host {
    pub(crate) fn new(
        number: usize,
        families: Families,
        all: &Path,
        rng: &mut fastrand::Rng,
    ) -> io::Result<Self> {
        let place = if number == SERVER { SERVER_PLACE } else { first_place(number) };
        let [high, low] = place.to_be_bytes();
        let mac = Mac([0x02, 0xaa, 0, 0, high, low]);
        let root = all.join(format!("host-{number}"));
        for directory in ["proc/sys/kernel/random", "sys/class/net/eth0", "etc", "data", "run"] {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::write(root.join("sys/class/net/eth0/carrier"), "1\n")?;
        fs::write(root.join("etc/machine-id"), format!("{:032x}\n", 0xabcd_0000 + number))?;
        Ok(Self {
            number,
            families,
            place: Cell::new(place),
            mac,
            is_up: Cell::new(false),
            exists: Cell::new(true),
            boots: Cell::new(0),
            has_run: Cell::new(true),
            syncs: Cell::new(0),
            root,
            kernel: Kernel::new(number, &nets(families, place), mac),
            disk: Cell::new(DiskFault::None),
            program_ended: RefCell::default(),
            power_ends_after_syncs: Cell::new(None),
            on_disk: RefCell::default(),
            wall_jump_ms: Cell::new(0),
            wall_drift_ppm: rng.i64(-100..=100),
        })
    }

    pub(crate) fn name(&self) -> String {
        name_of(self.number)
    }

    pub(crate) fn v4(&self) -> Option<Ipv4Addr> {
        self.families.has_v4().then(|| v4_of(self.place.get()))
    }

    pub(crate) fn v6(&self) -> Option<Ipv6Addr> {
        self.families.has_v6().then(|| v6_of(self.place.get()))
    }

    /// Its addresses, IPv4 first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4().map(IpAddr::V4).into_iter().chain(self.v6().map(IpAddr::V6))
    }

    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses().any(|own| own == ip)
    }

    /// The machine gets other addresses, on the same link.
    pub(crate) fn move_to(&self, place: u16) {
        let before = nets(self.families, self.place.replace(place));
        for net in before {
            self.kernel.remove_card_address(net);
        }
        for net in nets(self.families, place) {
            self.kernel.add_card_address(net);
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What lives until the next boot.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.root.join("run")
    }

    pub(crate) fn data_directory(&self) -> PathBuf {
        self.root.join("data")
    }

    pub(crate) fn subnet_file(&self) -> PathBuf {
        self.run_directory().join("subnet.env")
    }

    pub(crate) fn wall_offset_ms(&self, elapsed: Duration) -> i64 {
        let elapsed = elapsed.as_millis() as i64;
        self.wall_jump_ms.get() + elapsed * self.wall_drift_ppm / 1_000_000
    }

    pub(crate) fn set_clock_by(&self, ms: i64) {
        self.wall_jump_ms.set(self.wall_jump_ms.get() + ms);
    }

    /// Gives this machine the disk of another, as who clones a virtual machine does. `machine_id`: its name, too.
    pub(crate) fn copy_disk(&self, from: &Self, machine_id: bool) -> io::Result<()> {
        copy_files(&from.data_directory(), &self.data_directory())?;
        if machine_id {
            fs::copy(from.root.join("etc/machine-id"), self.root.join("etc/machine-id"))?;
        }
        Ok(())
    }

    /// Bytes of all files that programs have written.
    pub(crate) fn file_bytes(&self) -> u64 {
        bytes_below(&self.data_directory()) + bytes_below(&self.run_directory())
    }

    /// All that the data directory has is on the disk for sure: as after a boot, or when it was written by other means.
    pub(crate) fn note_all_synced(&self) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        let (mut synced, mut names) = (SyncedFiles::default(), Vec::new());
        let directory = self.data_directory();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let (path, inode) = (entry.path(), entry.metadata()?.ino());
            if path.is_file() {
                synced.contents.insert(inode, fs::read(&path)?);
                names.push((path, inode));
            }
        }
        names.sort();
        synced.names.insert(directory, names);
        self.on_disk.replace(synced);
        Ok(())
    }

    /// Empties the kernel and what lives until the next boot.
    pub(crate) fn reboot(&self) {
        self.has_run.set(true);
        self.kernel.boot(&nets(self.families, self.place.get()));
        let _ = fs::remove_dir_all(self.run_directory());
        let _ = fs::create_dir_all(self.run_directory());
        let boot = self.boots.get() + 1;
        self.boots.set(boot);
        let id = format!("{:08x}-0000-4000-8000-{boot:012x}\n", self.number);
        let _ = fs::write(self.root.join("proc/sys/kernel/random/boot_id"), id);
    }

    /// Why a write fails, if it does.
    pub(crate) fn write_error(&self) -> Option<i32> {
        match self.disk.get() {
            DiskFault::None | DiskFault::SyncFails => None,
            DiskFault::Full => Some(libc::ENOSPC),
            DiskFault::Off => Some(libc::EIO),
        }
    }

    /// Notes what is on the disk for sure when a file or directory was synced.
    pub(crate) fn synced(&self, fd: i32) -> Result<(), i32> {
        self.syncs.set(self.syncs.get() + 1);
        match self.disk.get() {
            DiskFault::SyncFails | DiskFault::Off => return Err(libc::EIO),
            DiskFault::None | DiskFault::Full => {}
        }
        if let Some(left) = self.power_ends_after_syncs.get() {
            self.power_ends_after_syncs.set(Some(left.saturating_sub(1)));
            if left == 0 {
                self.disk.set(DiskFault::Off);
                return Err(libc::EIO);
            }
        }
        if self.number == SERVER {
            let _ = self.note_synced(fd);
        }
        Ok(())
    }

    fn note_synced(&self, fd: i32) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        let path = fs::read_link(format!("/proc/self/fd/{fd}"))?;
        if !path.starts_with(self.data_directory()) {
            return Ok(());
        }
        let about = fs::metadata(&path)?;
        let mut on_disk = self.on_disk.borrow_mut();
        if !about.is_dir() {
            on_disk.contents.insert(about.ino(), fs::read(&path)?);
            return Ok(());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            names.push((entry.path(), entry.metadata()?.ino()));
        }
        names.sort();
        on_disk.names.insert(path, names);
        Ok(())
    }

    /// The machine lost its power: of what was not synced the disk has a part, as chance will have it.
    pub(crate) fn lose_unsynced(&self, rng: &mut fastrand::Rng) {
        use std::os::unix::fs::MetadataExt as _;
        let on_disk = self.on_disk.borrow();
        for (directory, names) in &on_disk.names {
            let Ok(entries) = fs::read_dir(directory) else { continue };
            let mut found: Vec<PathBuf> =
                entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            found.sort();
            let mut after: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
            for (path, inode) in names {
                let Some(synced) = on_disk.contents.get(inode) else {
                    // Locks are never synced, and are empty.
                    after.insert(path.clone(), Vec::new());
                    continue;
                };
                let inode_now = fs::metadata(path).map_or(0, |about| about.ino());
                let renamed = on_disk.contents.get(&inode_now).filter(|_| inode_now != *inode);
                if let Some(renamed) = renamed.filter(|_| rng.bool()) {
                    // Another file has got the name, and that is on the disk though it was not synced.
                    after.insert(path.clone(), renamed.clone());
                    continue;
                }
                let now = match inode_now == *inode {
                    true => fs::read(path).unwrap_or_default(),
                    false => Vec::new(),
                };
                let more = now.strip_prefix(synced.as_slice()).unwrap_or_default();
                let kept = rng.usize(..=more.len());
                after.insert(path.clone(), [synced.as_slice(), &more[..kept]].concat());
            }
            for path in found {
                // A name that was not synced may be there or not; if it is, what was not synced of its file may be cut.
                if !after.contains_key(&path) && rng.bool() {
                    let now = fs::read(&path).unwrap_or_default();
                    let inode = fs::metadata(&path).map_or(0, |about| about.ino());
                    let synced = on_disk.contents.get(&inode).map_or(0, Vec::len);
                    let kept = rng.usize(synced.min(now.len())..=now.len());
                    after.insert(path.clone(), now[..kept].to_vec());
                }
                let _ = fs::remove_file(&path);
            }
            for (path, content) in after {
                let _ = fs::write(path, content);
            }
        }
        drop(on_disk);
        let _ = self.note_all_synced();
    }
}

fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => bytes_below(&entry.path()),
            Ok(about) => about.len(),
            Err(_) => 0,
        })
        .sum()
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_files(&from, &to)?;
        } else if kind.is_file() {
            fs::copy(from, to)?;
        }
    }
    Ok(())
}

/// Place of a node before it moves anywhere.
fn first_place(number: usize) -> u16 {
    let place = 10 + number as u16;
    if place < SERVER_PLACE { place } else { place + 1 }
}

/// Addresses of a place.
pub(crate) fn place_addresses(place: u16) -> (Ipv4Addr, Ipv6Addr) {
    (v4_of(place), v6_of(place))
}

fn v4_of(place: u16) -> Ipv4Addr {
    let [high, low] = place.to_be_bytes();
    Ipv4Addr::new(192, 168, high, low)
}

fn v6_of(place: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0xc0a8, 0, 0, 0, 0, 0, place)
}

/// Addresses of a card at a place, with the lengths of their prefixes.
fn nets(families: Families, place: u16) -> Vec<IpNet> {
    let v4 = IpNet::new(v4_of(place).into(), PREFIX_LENGTHS.0).ok();
    let v6 = IpNet::new(v6_of(place).into(), PREFIX_LENGTHS.1).ok();
    let v4 = v4.filter(|_| families.has_v4());
    v4.into_iter().chain(v6.filter(|_| families.has_v6())).collect()
}
