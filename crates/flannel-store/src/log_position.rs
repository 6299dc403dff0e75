//! How far a watcher of a lease server has heard.

use crate::wire;

/// How far a watcher has heard. Without a history it is believed to be this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    pub revision: u64,
    pub history: Option<u64>,
}

impl LogPosition {
    /// What was made of such a cursor for those who do not look inside; `None` at the beginning.
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
