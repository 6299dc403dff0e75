//! Last acknowledged revision of the log, in a file of its own. The end of a log alone does not tell whether its last
//! record was cut off while it was written, before it was acknowledged, or was damaged afterwards. The file is written a
//! moment after the log, without anybody waiting for it, so it may lag behind; it never says too much.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record;
use crate::lease_state::LeaseState;

pub(super) const FILE: &str = "leases.acknowledged";

/// An acknowledged revision, and the run of the server that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Acknowledged {
    pub(super) revision: u64,
    pub(super) history: u64,
}

impl Acknowledged {
    /// Reads the file; `None` where there is none, or it is incomplete.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        let bytes = std::fs::read(dir.join(FILE)).ok()?;
        let payload = *record::decode(&bytes).payloads.first()?;
        serde_json::from_slice(payload).ok()
    }

    pub(super) fn write(self, dir: &Path) -> io::Result<()> {
        let record = record::encode(&serde_json::to_vec(&self)?);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join(FILE))?;
        file.write_all(&record)?;
        file.set_len(record.len() as u64)?;
        file.sync_data()
    }

    /// Whether the lease state has everything that was acknowledged.
    pub(super) fn is_in(self, lease_state: &LeaseState) -> bool {
        let known = lease_state.histories.iter().any(|run| run.id == self.history);
        known && lease_state.revision >= self.revision
    }
}
