//! Reservations on disk, exactly as the Go host-local plugin keeps them, so that either can go on
//! where the other stopped: a directory for every network, in it a file for every address given out,
//! which says to whom; the address given out last; and a file to lock.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, linkat, openat, unlinkat};
use rustix::io::Errno;

use super::addr;
use super::lock::{LOCK_TIMEOUT, Lock};

const LOCK: &str = "lock";
const LAST: &str = "last_reserved_ip.";
/// Longer than most container ids and interface names together.
const FIRST_READ: usize = 1024;
/// As long as a container id can be that comes in an environment variable.
const MAX_FILE_BYTES: usize = 128 * 1024;

pub struct Store {
    path: PathBuf,
    directory: OwnedFd,
    /// Somebody holds the lock and did not release it: wait once, not a second time.
    gave_up: Cell<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub ip: IpAddr,
    pub owner: Holder,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Attachment {
        container_id: String,
        ifname: String,
    },
    /// Written by a plugin of old, which left the interface out.
    Container {
        container_id: String,
    },
    /// Whoever made it was killed before it could say for whom.
    Nobody,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("could not {attempted} in {}: {error}", path.display())]
    Io { attempted: &'static str, path: PathBuf, error: io::Error },
    #[error("somebody has held the lock in {} for {} s", path.display(), LOCK_TIMEOUT.as_secs())]
    Held { path: PathBuf },
}

impl Store {
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        if let Some(store) = Self::open(path)? {
            return Ok(store);
        }
        let attempted = "make the directory";
        let failed = |error| StoreError::Io { attempted, path: path.into(), error };
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed)?;
        Self::open(path)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    /// `None`: nothing was ever given out.
    pub fn open(path: &Path) -> Result<Option<Self>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, path, flags, Mode::empty()) {
            Ok(directory) => {
                let gave_up = Cell::new(false);
                Ok(Some(Self { path: path.to_owned(), directory, gave_up }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => {
                let (attempted, error) = ("open the directory", error.into());
                Err(StoreError::Io { attempted, path: path.into(), error })
            }
        }
    }

    /// Nobody else changes anything while it is held.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.directory, LOCK, flags, Mode::from_raw_mode(0o750))
            .map_err(|error| self.failed("open the lock file", error))?;
        let timeout = if self.gave_up.get() { Duration::ZERO } else { LOCK_TIMEOUT };
        let lock = Lock::take(file, timeout);
        self.gave_up.set(matches!(lock, Ok(None)));
        lock.map_err(|error| self.failed("lock the reservations", error))?
            .ok_or_else(|| StoreError::Held { path: self.path.clone() })
    }

    /// The writer of one reservation. It is written once and then hung up under the first free name,
    /// so that a file is never seen without its content, not even by those who come after a crash.
    pub fn pen(&self, container_id: &str, ifname: &str) -> Result<Pen<'_>, StoreError> {
        let text = format!("{}\r\n{ifname}", container_id.trim());
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = match openat(&self.directory, ".", flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => {
                write_all(&file, text.as_bytes())
                    .map_err(|error| self.failed("write a reservation", error))?;
                Some(file)
            }
            // Not every file system knows files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => None,
            Err(error) => return Err(self.failed("make a reservation", error)),
        };
        Ok(Pen { store: self, text, file })
    }

    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let text = self.read(&format!("{LAST}{set}")).ok()??;
        addr::parse(std::str::from_utf8(&text).ok()?.trim())
    }

    /// Only a matter of fairness: whoever cannot read it begins at the beginning.
    pub fn set_last_reserved(&self, set: usize, ip: IpAddr) -> Result<(), StoreError> {
        let failed = |error| self.failed("note the last address", error);
        // Not truncated first: file systems would write that to disk at once.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file =
            openat(&self.directory, format!("{LAST}{set}"), flags, Mode::from_raw_mode(0o600))
                .map_err(failed)?;
        let text = ip.to_string();
        write_all(&file, text.as_bytes()).map_err(failed)?;
        rustix::fs::ftruncate(&file, text.len() as u64).map_err(failed)
    }

    pub fn reservations(&self) -> Result<Vec<Reservation>, StoreError> {
        let failed = |error| self.failed("list the reservations", error);
        let mut reservations = Vec::new();
        for entry in Dir::read_from(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(ip) = entry.file_name().to_str().ok().and_then(addr::parse) else { continue };
            if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown)
                && let Some(owner) = self.owner(ip)?
            {
                reservations.push(Reservation { ip, owner });
            }
        }
        Ok(reservations)
    }

    /// To whom an address was given. `None`: to nobody, it is free.
    pub fn owner(&self, ip: IpAddr) -> Result<Option<Holder>, StoreError> {
        let text =
            self.read(&ip.to_string()).map_err(|error| self.failed("read a reservation", error))?;
        Ok(text.map(|text| Holder::parse(&String::from_utf8_lossy(&text))))
    }

    pub fn of_attachment(
        &self,
        container_id: &str,
        ifname: &str,
    ) -> Result<Vec<Reservation>, StoreError> {
        let mut found = self.reservations()?;
        let exact =
            |reservation: &Reservation| reservation.owner.is_attachment(container_id, ifname);
        if found.iter().any(exact) {
            found.retain(exact);
        } else {
            found.retain(|reservation| reservation.owner.is_container(container_id));
        }
        Ok(found)
    }

    /// Of these addresses, those that are the attachment's by name.
    pub fn of_attachment_among(
        &self,
        container_id: &str,
        ifname: &str,
        ips: &[IpAddr],
    ) -> Result<Vec<Reservation>, StoreError> {
        let mut found = Vec::new();
        for ip in ips {
            if let Some(owner) = self.owner(*ip)?
                && owner.is_attachment(container_id, ifname)
            {
                found.push(Reservation { ip: *ip, owner });
            }
        }
        Ok(found)
    }

    /// Sets an address free, if it still belongs to the same container as when it was looked at.
    pub fn release(&self, _lock: &Lock, reservation: &Reservation) -> Result<bool, StoreError> {
        if self.owner(reservation.ip)?.as_ref() != Some(&reservation.owner) {
            return Ok(false);
        }
        match unlinkat(&self.directory, reservation.ip.to_string(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.failed("remove a reservation", error)),
        }
    }

    pub fn since(&self, ip: IpAddr) -> Option<std::time::SystemTime> {
        std::fs::symlink_metadata(self.path.join(ip.to_string())).ok()?.modified().ok()
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = vec![0; FIRST_READ];
        let mut len = 0;
        loop {
            let read = rustix::io::read(&file, &mut text[len..])?;
            len += read;
            if read == 0 || len < text.len() || len >= MAX_FILE_BYTES {
                text.truncate(len);
                return Ok(Some(text));
            }
            text.resize(2 * len, 0);
        }
    }

    fn failed(&self, attempted: &'static str, error: Errno) -> StoreError {
        StoreError::Io { attempted, path: self.path.clone(), error: error.into() }
    }
}

/// A reservation on its way to a name.
pub struct Pen<'a> {
    store: &'a Store,
    text: String,
    file: Option<OwnedFd>,
}

impl Pen<'_> {
    /// Whether the address was free and now is ours.
    pub fn reserve(&self, _lock: &Lock, ip: IpAddr) -> Result<bool, StoreError> {
        let outcome = match &self.file {
            Some(file) => self.hang_up(file, ip),
            None => self.write_under_name(ip),
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(self.store.failed("make a reservation", error)),
        }
    }

    fn hang_up(&self, file: &OwnedFd, ip: IpAddr) -> Result<(), Errno> {
        let unnamed = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        linkat(CWD, unnamed, &self.store.directory, ip.to_string(), AtFlags::SYMLINK_FOLLOW)
    }

    fn write_under_name(&self, ip: IpAddr) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let name = ip.to_string();
        let file = openat(&self.store.directory, &name, flags, Mode::from_raw_mode(0o600))?;
        write_all(&file, self.text.as_bytes()).inspect_err(|_| {
            let _ = unlinkat(&self.store.directory, &name, AtFlags::empty());
        })
    }
}

impl Holder {
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.split_once("\r\n") {
            _ if text.is_empty() => Self::Nobody,
            Some((id, ifname)) => {
                Self::Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() }
            }
            None => Self::Container { container_id: text.to_owned() },
        }
    }

    pub fn is_attachment(&self, id: &str, name: &str) -> bool {
        matches!(self, Self::Attachment { container_id, ifname } if container_id == id.trim() && ifname == name)
    }

    pub fn is_container(&self, id: &str) -> bool {
        matches!(self, Self::Container { container_id } if container_id == id.trim())
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        bytes = &bytes[rustix::io::write(file, bytes)?..];
    }
    Ok(())
}

impl From<StoreError> for crate::protocol::Error {
    fn from(error: StoreError) -> Self {
        use crate::protocol::Code;
        let code = match error {
            StoreError::Held { .. } => Code::TryAgainLater,
            StoreError::Io { .. } => Code::Io,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_are_exactly_the_go_plugin_s() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("networks/cbr0");
        let store = Store::create(&path).unwrap();
        let lock = store.lock().unwrap();
        let pen = store.pen(" abc ", "eth0").unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(pen.reserve(&lock, ip("10.0.0.2")).unwrap());
        assert!(!pen.reserve(&lock, ip("10.0.0.2")).unwrap(), "it is taken");
        assert!(pen.reserve(&lock, ip("fd00::2")).unwrap());
        store.set_last_reserved(0, ip("10.0.0.200")).unwrap();
        store.set_last_reserved(0, ip("10.0.0.2")).unwrap();
        let text = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(text("10.0.0.2"), "abc\r\neth0");
        assert_eq!(text("fd00::2"), "abc\r\neth0");
        assert_eq!(text("last_reserved_ip.0"), "10.0.0.2");
        assert_eq!(store.last_reserved(0), Some(ip("10.0.0.2")));
        assert_eq!(store.last_reserved(1), None);
        assert!(path.join("lock").exists());
    }

    #[test]
    fn a_container_s_files_without_an_interface_are_its_own_only_if_there_are_no_others() {
        let root = tempfile::tempdir().unwrap();
        for (ip, text) in
            [("10.0.0.2", "abc"), ("10.0.0.3", "abc\r\neth0"), ("10.0.0.4", "abc\r\nnet1")]
        {
            std::fs::write(root.path().join(ip), text).unwrap();
        }
        let store = Store::open(root.path()).unwrap().unwrap();
        let of = |ifname: &str| -> Vec<String> {
            let found = store.of_attachment("abc", ifname).unwrap();
            found.iter().map(|it| it.ip.to_string()).collect()
        };
        assert_eq!(of("eth0"), ["10.0.0.3"]);
        assert_eq!(of("net1"), ["10.0.0.4"]);
        assert_eq!(of("net2"), ["10.0.0.2"], "it may have been made for this one");
    }

    #[test]
    fn a_pipe_in_a_file_s_place_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        for name in [LOCK, "last_reserved_ip.0", "10.0.0.2"] {
            let path = root.path().join(name);
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
        }
        let store = Store::open(root.path()).unwrap().unwrap();
        let lock = store.lock().unwrap();
        assert_eq!(store.last_reserved(0), None);
        let ip: IpAddr = "10.0.0.2".parse().unwrap();
        assert!(store.set_last_reserved(0, ip).is_err());
        assert!(!store.pen("abc", "eth0").unwrap().reserve(&lock, ip).unwrap());
        assert_eq!(store.reservations().unwrap(), []);
    }

    proptest! {
        #[test]
        fn no_file_in_the_directory_makes_it_panic(
            files in proptest::collection::vec(("[0-9a-f.:]{1,12}|lock|last_reserved_ip[.][0-9]", proptest::collection::vec(any::<u8>(), 0..64)), 0..6)
        ) {
            let root = tempfile::tempdir().unwrap();
            for (name, text) in &files {
                let _ = std::fs::write(root.path().join(name), text);
            }
            let store = Store::open(root.path()).unwrap().unwrap();
            let _ = store.reservations();
            let _ = store.of_attachment("abc", "eth0");
            let _ = store.last_reserved(0);
        }
    }
}
