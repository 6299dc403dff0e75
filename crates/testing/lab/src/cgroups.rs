//! Control groups are the one thing of a container that a lab does not take along: there is one tree
//! per machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Tests of one process run side by side, each with a `node1`.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The parent of all containers of one node; removed, with what is left below it, at the end.
#[derive(Debug)]
pub struct Cgroups {
    name: String,
}

impl Cgroups {
    /// For the containers of one node.
    pub fn new(label: &str) -> Self {
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { name: format!("flannel-lab-{process}-{number}-{label}") }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As the runtimes want to be told.
    pub fn parent(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Cgroups {
    /// Groups are directories, one tree per controller, and empty once their processes are gone.
    pub(crate) fn remove(&self) {
        let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let roots = hierarchies.map(|entry| entry.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
        roots.for_each(|root| remove(&root.join(&self.name)));
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove();
    }
}

fn remove(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir())) {
        remove(&entry.path());
    }
    let _ = fs::remove_dir(group);
}
