//! The directory that it all is kept in.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use flannel_common::replace_file;

pub(super) struct Files {
    pub(super) dir: PathBuf,
}

impl Files {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn read(&self, name: &str, fix: &str) -> anyhow::Result<String> {
        let file = self.path(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}; {fix}", file.display()))
    }

    pub(super) fn read_if_any(&self, name: &str) -> anyhow::Result<String> {
        let file = self.path(name);
        match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => read.with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Written whole or not at all: a server may read it at any moment.
    pub(super) fn write(&self, name: &str, text: &str, secret: bool) -> anyhow::Result<()> {
        let file = self.path(name);
        let mode = if secret { 0o600 } else { 0o644 };
        replace_file(&file, text.as_bytes(), mode)
            .with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(std::io::stderr(), "wrote {}", file.display())?;
        Ok(())
    }
}
