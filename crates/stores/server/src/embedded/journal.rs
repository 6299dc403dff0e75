//! The files of a data directory: `leases.log`, to which every group of commits is appended and
//! synced before anybody is told of it, and `leases.snapshot`, which replaces a log grown long.
//!
//! The log may hold commits that the snapshot has too, when the server died between writing the one
//! and replacing the other; revisions tell. Both are replaced by renaming, so neither is ever empty.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flannel_common::replace_by;

use super::acknowledged::Acknowledged;
use super::log_matches_snapshot::{LogCheck, LogStart, SnapshotFile};
use super::recent::RecentCommits;
use super::record::{self, Ending};
use super::snapshot;
use crate::lease_state::{Commit, LeaseState};

const LOG: &str = "leases.log";
const LOG_NEW: &str = "leases.log.new";
const SNAPSHOT: &str = "leases.snapshot";
const SNAPSHOT_NEW: &str = "leases.snapshot.new";
/// Incomplete record that was cut off the end of a log.
const LOG_CUT: &str = "leases.log.cut";
const LOCK: &str = "lock";

/// A log is compacted when it is longer than this and several times the snapshot.
pub(super) const MIN_COMPACTION_BYTES: u64 = 1 << 20;
const MAX_LOG_TO_SNAPSHOT_RATIO: u64 = 4;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("cannot {attempted} {}: {source}; {}", path.display(), remedy(.source))]
    Io { attempted: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the data directory {} is in use by another server: stop that one, or use another directory",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "{} is damaged at byte {at}, and not by an interrupted write: nothing was changed; restore the data \
         directory from a backup, or move it away to start empty: running nodes then bring their leases back",
        path.display()
    )]
    Damaged { path: PathBuf, at: usize },
    #[error(
        "{} does not match its snapshot: {reason}. Leases are lost, and their subnets would be given \
         out again, so nothing was changed. Put leases.log and leases.snapshot of one and the same backup there; or \
         move the directory away to start empty: write the network config again, running nodes then bring their \
         leases back, and new ones should join only after that",
        path.display()
    )]
    Mismatch { path: PathBuf, reason: String },
    #[error(
        "{} ends with revision {found}, and changes up to revision {acknowledged} were acknowledged: its end was cut off \
         or damaged afterwards. Leases are lost, and their subnets would be given out again, so nothing was changed. Put \
         all files of one backup there; or, if these files are a backup and you know that they are older, remove \
         leases.acknowledged and start again: running nodes bring their leases back, and new ones should join only \
         after that",
        path.display()
    )]
    Missing { path: PathBuf, found: u64, acknowledged: u64 },
    #[error("{} cannot be read: {reason}; it may be from a newer version", path.display())]
    Unreadable { path: PathBuf, reason: String },
}

/// Fix for an I/O error. A server that cannot store leases does not start: two nodes might be given one subnet.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "its file system is read-only: make it writable (mount -o remount,rw), or use another data-dir; \
             nodes that run keep their leases meanwhile"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "its file system is full: make room; nodes that run keep their leases meanwhile"
        }
        io::ErrorKind::PermissionDenied => {
            "give the directory to the user that flanneld runs as, or use another data-dir"
        }
        _ => "check that the directory exists and can be written",
    }
}

pub(super) struct DirectoryContents {
    pub(super) journal: Journal,
    pub(super) lease_state: LeaseState,
    pub(super) recent: RecentCommits,
}

#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    log: File,
    pub(super) length: u64,
    pub(super) snapshot_length: u64,
    pub(super) min_compaction_bytes: u64,
    /// Whether the log may hold more than was acknowledged.
    has_unacknowledged: bool,
    /// Acknowledged revision as the file beside the log has it.
    noted: Option<Acknowledged>,
    /// Lock of the directory, held as long as the journal lives.
    _lock: File,
}

impl Journal {
    pub(super) fn open(dir: &Path) -> Result<DirectoryContents, OpenError> {
        let failed = |attempted, name: &str| {
            let path = dir.join(name);
            move |source| OpenError::Io { attempted, path, source }
        };
        let create = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        create.map_err(failed("create the data directory", ""))?;
        let lock = lock(dir)?;

        let bytes = read(&dir.join(SNAPSHOT)).map_err(failed("read", SNAPSHOT))?;
        let snapshot_length = bytes.as_ref().map_or(0, Vec::len) as u64;
        let (found_snapshot, contents) = match bytes.as_deref() {
            None => (SnapshotFile::Missing, snapshot::SnapshotContents::default()),
            Some([]) => (SnapshotFile::Empty, snapshot::SnapshotContents::default()),
            Some(bytes) => {
                let contents = snapshot::read(&dir.join(SNAPSHOT), bytes)?;
                (SnapshotFile::Read { marked: contents.log_is_marked }, contents)
            }
        };
        let path = dir.join(LOG);
        let bytes = read(&path).map_err(failed("read", LOG))?;
        let (found, bytes) = (bytes.is_some(), bytes.unwrap_or_default());
        let mut records = record::decode(&bytes);
        if records.ending == Ending::Damaged {
            return Err(OpenError::Damaged { path, at: records.end });
        }
        let snapshot::SnapshotContents { mut lease_state, mut recent, .. } = contents;
        let start = records
            .payloads
            .first()
            .and_then(|first| serde_json::from_slice::<LogStart>(first).ok());
        let log = found.then_some((records.payloads.is_empty(), start));
        let mut log_check = LogCheck::new(&path, found_snapshot, log, &lease_state)?;
        for payload in records.payloads.drain(usize::from(start.is_some())..) {
            for commit in snapshot::commits(&path, payload)? {
                log_check.check(&commit)?;
                if commit.revision > lease_state.revision {
                    lease_state.apply(&commit);
                    recent.push(commit);
                }
            }
        }
        log_check.finish()?;
        let noted = Acknowledged::read(dir);
        if let Some(noted) = noted.filter(|noted| !noted.is_in(&lease_state)) {
            let (found, acknowledged) = (lease_state.revision, noted.revision);
            return Err(OpenError::Missing { path, found, acknowledged });
        }
        if !found {
            write_log(dir, LogStart::of(&lease_state)).map_err(failed("write", LOG))?;
        }

        let log = OpenOptions::new().write(true).open(&path);
        let log = log.map_err(failed("open", LOG))?;
        let length = match found {
            true => records.end as u64,
            false => log.metadata().map_err(failed("read", LOG))?.len(),
        };
        let has_unacknowledged = records.ending == Ending::Torn;
        if has_unacknowledged {
            let cut = bytes.get(records.end..).unwrap_or_default();
            let kept = dir.join(LOG_CUT);
            write_synced(&kept, cut).map_err(failed("write", LOG_CUT))?;
            let up_to = match noted {
                Some(noted) => format!(
                    "everything known to be acknowledged, up to revision {}, is there",
                    noted.revision
                ),
                None => "it is not known up to which revision it was acknowledged".to_owned(),
            };
            tracing::warn!(
                file = %path.display(),
                bytes = cut.len(),
                "The last record of the log is incomplete: its write was interrupted, or it was damaged right after \
                 that; {up_to}. The record is dropped, and kept in {}",
                kept.display()
            );
        }
        sync_directory(dir).map_err(failed("sync the data directory", ""))?;
        let dir = dir.to_owned();
        let mut journal = Self {
            dir,
            log,
            length,
            snapshot_length,
            min_compaction_bytes: MIN_COMPACTION_BYTES,
            has_unacknowledged,
            noted,
            _lock: lock,
        };
        journal.truncate_unacknowledged().map_err(failed("write", LOG))?;
        Ok(DirectoryContents { journal, lease_state, recent })
    }

    /// Makes a group of commits durable, all or none.
    pub(super) fn append(&mut self, commits: &[Commit]) -> io::Result<()> {
        self.truncate_unacknowledged()?;
        let lines = commits.iter().map(Commit::to_json).collect::<Result<Vec<_>, _>>()?;
        let record = record::encode(lines.join("\n").as_bytes());
        self.has_unacknowledged = true;
        let written = self.log.write_all(&record).and_then(|()| self.log.sync_data());
        if let Err(error) = written {
            // If this fails too, it is tried again before the next write, and after a restart.
            let _ = self.truncate_unacknowledged();
            return Err(error);
        }
        self.length += record.len() as u64;
        self.has_unacknowledged = false;
        Ok(())
    }

    /// Whether more was acknowledged than the file beside the log says.
    pub(super) fn is_unnoted(&self, lease_state: &LeaseState) -> bool {
        self.noted.map(|noted| noted.revision) != Some(lease_state.revision)
    }

    pub(super) fn note_acknowledged(&mut self, lease_state: &LeaseState) -> io::Result<()> {
        let Some(run) = lease_state.histories.last() else { return Ok(()) };
        let now = Acknowledged { revision: lease_state.revision, history: run.id };
        self.noted = Some(now);
        now.write(&self.dir)
    }

    pub(super) fn needs_compaction(&self) -> bool {
        self.length
            > self.min_compaction_bytes.max(self.snapshot_length * MAX_LOG_TO_SNAPSHOT_RATIO)
    }

    /// Replaces snapshot and log by a snapshot of now and a log that goes on from there.
    pub(super) fn compact(
        &mut self,
        lease_state: &LeaseState,
        recent: &RecentCommits,
    ) -> io::Result<()> {
        let bytes = snapshot::write(lease_state, recent)?;
        replace(&self.dir, SNAPSHOT, SNAPSHOT_NEW, &bytes)?;
        self.snapshot_length = bytes.len() as u64;
        // Until this is done, the former log is good as well.
        write_log(&self.dir, LogStart::of(lease_state))?;
        self.log = OpenOptions::new().write(true).open(self.dir.join(LOG))?;
        self.length = self.log.metadata()?.len();
        self.has_unacknowledged = false;
        self.truncate_unacknowledged()
    }

    fn truncate_unacknowledged(&mut self) -> io::Result<()> {
        if self.has_unacknowledged {
            self.log.set_len(self.length)?;
            self.log.sync_data()?;
        }
        self.log.seek(SeekFrom::Start(self.length))?;
        self.has_unacknowledged = false;
        Ok(())
    }
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let failed = |source| OpenError::Io { attempted: "lock", path: path.clone(), source };
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::Locked { path: dir.to_owned() }),
        Err(fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// `None` when there is no such file.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_log(dir: &Path, start: LogStart) -> io::Result<()> {
    replace(dir, LOG, LOG_NEW, &record::encode(&serde_json::to_vec(&start)?))
}

fn replace(dir: &Path, name: &str, new: &str, bytes: &[u8]) -> io::Result<()> {
    replace_by(&dir.join(name), &dir.join(new), |new| write_synced(new, bytes))?;
    sync_directory(dir)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
