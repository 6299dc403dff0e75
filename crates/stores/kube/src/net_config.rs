//! The network config, in a file that the kubelet keeps: the file of a ConfigMap is a link to a directory
//! that is replaced as a whole, so the file itself never seems to change. The directory is watched.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_store::StoreError;
use rustix::fs::inotify;
use tokio::net::unix::pipe::Receiver;

/// Interval of checks without an event, for a directory that was mounted over or a file system without events.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after an event, since a file is written in several steps.
const SETTLE_TIME: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct NetConfigFile {
    pub(crate) path: PathBuf,
}

impl NetConfigFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// `None` while there is none.
    pub fn read(&self) -> io::Result<Option<String>> {
        match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    pub(crate) fn text(&self) -> Result<Option<String>, StoreError> {
        self.read().map_err(|error| StoreError::Corrupt {
            key: format!("the network config {}", self.path.display()),
            reason: error.to_string(),
        })
    }

    /// Completes "write one with …".
    pub fn how_to_write(&self) -> String {
        format!(
            "`kubectl -n kube-flannel edit configmap kube-flannel-cfg`, key net-conf.json, which the kubelet \
             puts into {}",
            self.path.display()
        )
    }

    /// Follows it from what it was when it was last read.
    pub fn follow(&self, known: Option<String>) -> NetConfigChanges {
        NetConfigChanges { file: self.clone(), known, events: None }
    }
}

pub struct NetConfigChanges {
    file: NetConfigFile,
    known: Option<String>,
    events: Option<Receiver>,
}

impl NetConfigChanges {
    /// Waits until it has changed; `None`: it is gone.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if self.events.is_none() {
                self.events = watch_directory(&self.file.path).ok();
            }
            // One that cannot be read is taken to be as it was.
            if let Ok(now) = self.file.read()
                && now != self.known
            {
                self.known.clone_from(&now);
                return now;
            }
            self.wait_for_event().await;
        }
    }

    async fn wait_for_event(&mut self) {
        let Some(events) = &self.events else {
            return tokio::time::sleep(CHECK_INTERVAL).await;
        };
        let Ok(Ok(())) = tokio::time::timeout(CHECK_INTERVAL, events.readable()).await else {
            // Watched again: the directory may be another by now.
            self.events = None;
            return;
        };
        tokio::time::sleep(SETTLE_TIME).await;
        let mut buffer = [0; 4 << 10];
        while events.try_read(&mut buffer).is_ok_and(|length| length > 0) {}
    }
}

fn watch_directory(file: &Path) -> io::Result<Receiver> {
    use inotify::{CreateFlags, WatchFlags};
    let directory = file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let what = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&events, directory, what)?;
    // It is read as a pipe is.
    Receiver::from_owned_fd_unchecked(events)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// As the kubelet does it.
    fn swap(directory: &Path, name: &str, text: &str) {
        let version = directory.join(name);
        std::fs::create_dir(&version).expect("a directory");
        std::fs::write(version.join("net-conf.json"), text).expect("a file");
        symlink(name, directory.join("..data_tmp")).expect("a link");
        std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("a swap");
    }

    #[tokio::test]
    async fn a_config_map_that_the_kubelet_swaps_is_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = NetConfigFile::new(directory.path().join("net-conf.json"));
        assert!(matches!(file.read(), Ok(None)));
        let mut changes = file.follow(None);
        swap(directory.path(), "..one", "first");
        symlink("..data/net-conf.json", &file.path).expect("a link");
        assert_eq!(changes.next().await.as_deref(), Some("first"));
        for (name, text) in [("..two", "second"), ("..three", "third")] {
            let (next, ()) = tokio::join!(changes.next(), async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                swap(directory.path(), name, text);
            });
            assert_eq!(next.as_deref(), Some(text));
        }
        std::fs::remove_file(&file.path).expect("it is there");
        assert_eq!(changes.next().await, None);
    }

    #[tokio::test]
    async fn a_plain_file_that_is_written_in_place_is_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = NetConfigFile::new(directory.path().join("net-conf.json"));
        std::fs::write(&file.path, "first").expect("a file");
        let mut changes = file.follow(Some("first".to_owned()));
        let (next, ()) = tokio::join!(changes.next(), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            std::fs::write(&file.path, "second").expect("a file");
        });
        assert_eq!(next.as_deref(), Some("second"));
    }
}
