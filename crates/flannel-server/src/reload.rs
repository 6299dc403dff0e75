//! Something made from files, made anew when they change and somebody looks. What cannot be read leaves
//! things as they were.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

type Make<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;
type Stamp = Option<(SystemTime, u64, u64)>;

pub(crate) struct Reloaded<T> {
    files: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
}

impl<T> Reloaded<T> {
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let stamps = stamps(&files);
        let state = State { value: Arc::new(make()?), stamps };
        Ok(Self { files, make: Box::new(make), state: Mutex::new(state) })
    }

    pub(crate) fn get(&self) -> Arc<T> {
        self.state().value.clone()
    }

    /// Looks at the files; whether what is made from them is another thing now.
    pub(crate) fn look(&self) -> bool {
        let mut state = self.state();
        let now = stamps(&self.files);
        if now == state.stamps {
            return false;
        }
        // One complaint per change of the files.
        state.stamps = now;
        match (self.make)() {
            Ok(value) => {
                tracing::info!(files = ?self.files, "read anew");
                state.value = Arc::new(value);
                true
            }
            Err(error) => {
                tracing::error!("{error}; going on with what was read before");
                false
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::metadata(file).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}
