//! Something made from files, made anew when they change. What cannot be read leaves things as they
//! were.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Files are looked at no more often than this.
const PAUSE: Duration = Duration::from_secs(1);

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
    looked: Instant,
}

impl<T> Reloaded<T> {
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let stamps = stamps(&files);
        let state = State { value: Arc::new(make()?), stamps, looked: Instant::now() };
        Ok(Self { files, make: Box::new(make), state: Mutex::new(state) })
    }

    pub(crate) fn get(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() < PAUSE {
            return state.value.clone();
        }
        state.looked = Instant::now();
        let now = stamps(&self.files);
        if now != state.stamps {
            // One complaint per change of the files.
            state.stamps = now;
            match (self.make)() {
                Ok(value) => {
                    tracing::info!(files = ?self.files, "read anew");
                    state.value = Arc::new(value);
                }
                Err(error) => {
                    tracing::error!("{error}; going on with what was read before");
                }
            }
        }
        state.value.clone()
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
