//! One machine of a simulated cluster: its address, files, clock, disk and kernel.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_common::Mac;

use crate::kernel::Kernel;

/// Number of the host with the lease server.
pub(crate) const SERVER: usize = 0;

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
    pub(crate) ip: Cell<Ipv4Addr>,
    pub(crate) mac: Mac,
    pub(crate) is_up: Cell<bool>,
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
    pub(crate) fn new(number: usize, all: &Path, rng: &mut fastrand::Rng) -> io::Result<Self> {
        let octet = if number == SERVER { 250 } else { 10 + number as u8 };
        let ip = Ipv4Addr::new(192, 168, 0, octet);
        let mac = Mac([0x02, 0xaa, 0, 0, 0, octet]);
        let root = all.join(format!("host-{number}"));
        for directory in ["proc/sys", "sys/class/net/eth0", "etc", "data", "run"] {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::write(root.join("sys/class/net/eth0/carrier"), "1\n")?;
        fs::write(root.join("etc/machine-id"), format!("{:032x}\n", 0xabcd_0000 + number))?;
        Ok(Self {
            number,
            ip: Cell::new(ip),
            mac,
            is_up: Cell::new(false),
            root,
            kernel: Kernel::new(number, ip, mac),
            disk: Cell::new(DiskFault::None),
            program_ended: RefCell::default(),
            power_ends_after_syncs: Cell::new(None),
            on_disk: RefCell::default(),
            wall_jump_ms: Cell::new(0),
            wall_drift_ppm: rng.i64(-100..=100),
        })
    }

    pub(crate) fn name(&self) -> String {
        match self.number {
            SERVER => "server".to_owned(),
            number => format!("node-{number}"),
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

    /// Empties the kernel and what lives until the next boot.
    pub(crate) fn reboot(&self) {
        self.kernel.boot(self.ip.get());
        let _ = fs::remove_dir_all(self.run_directory());
        let _ = fs::create_dir_all(self.run_directory());
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
                let now = fs::read(path).unwrap_or_default();
                let more = now.strip_prefix(synced.as_slice()).unwrap_or_default();
                let kept = rng.usize(..=more.len());
                after.insert(path.clone(), [synced.as_slice(), &more[..kept]].concat());
            }
            for path in found {
                // A name that was not synced may be there or not; if it is, its file may be cut.
                if !after.contains_key(&path) && rng.bool() {
                    let now = fs::read(&path).unwrap_or_default();
                    let kept = rng.usize(..=now.len());
                    after.insert(path.clone(), now[..kept].to_vec());
                }
                let _ = fs::remove_file(&path);
            }
            for (path, content) in after {
                let _ = fs::write(path, content);
            }
        }
        drop(on_disk);
        self.on_disk.take();
    }
}
