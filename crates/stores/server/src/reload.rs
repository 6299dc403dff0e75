//! Values loaded from files, again when these have changed. A file that cannot be read leaves the last value.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

type Load<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;
type FileStamp = Option<(SystemTime, u64, u64)>;

pub(crate) struct Reloadable<T> {
    files: Vec<PathBuf>,
    load: Load<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    stamps: Vec<FileStamp>,
}

impl<T> Reloadable<T> {
    pub(crate) fn new(
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let stamps = stamps(&files);
        let state = State { value: Arc::new(load()?), stamps };
        Ok(Self { files, load: Box::new(load), state: Mutex::new(state) })
    }

    pub(crate) fn get(&self) -> Arc<T> {
        self.state.lock().value.clone()
    }

    /// Loads the value again if the files have changed; whether it did.
    pub(crate) fn reload_if_changed(&self) -> bool {
        let mut state = self.state.lock();
        let now = stamps(&self.files);
        if now == state.stamps {
            return false;
        }
        // One error per change of the files.
        state.stamps = now;
        match (self.load)() {
            Ok(value) => {
                tracing::info!(files = ?self.files, "reloaded");
                state.value = Arc::new(value);
                true
            }
            Err(error) => {
                tracing::error!("{error}; keeping what was loaded before");
                false
            }
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<FileStamp> {
    let stamp = |file: &PathBuf| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.modified().ok()?, meta.len(), meta.ino()))
    };
    files.iter().map(stamp).collect()
}
