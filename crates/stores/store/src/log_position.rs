//! Position of a watcher in a lease server's log.

use crate::wire;

/// Position of a watcher. Without a history, the server's present one is assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    pub revision: u64,
    pub history: Option<u64>,
}

impl LogPosition {
    /// Reads the position out of a cursor; `None` at the beginning.
    pub fn read(cursor: &crate::Cursor) -> Option<Self> {
        let (revision, history) = cursor.text()?.split_once('/')?;
        Some(Self { revision: revision.parse().ok()?, history: wire::read_history(history) })
    }
}

impl From<LogPosition> for crate::Cursor {
    fn from(cursor: LogPosition) -> Self {
        let history = cursor.history.map(wire::history_text).unwrap_or_default();
        Self::new(format!("{}/{history}", cursor.revision))
    }
}
