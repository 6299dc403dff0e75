//! CNI configurations, as a container runtime finds them in its directory: it takes the first by name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const KINDS: [&str; 3] = ["conf", "conflist", "json"];

pub(crate) struct CniConf {
    pub(crate) path: PathBuf,
    pub(crate) content: Result<Value, String>,
}

pub(crate) fn read_all(directory: &Path) -> Vec<CniConf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        path.extension().and_then(|it| it.to_str()).is_some_and(|kind| KINDS.contains(&kind))
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(|error| error.to_string());
        let parse = |text: String| serde_json::from_str(&text).map_err(|error| error.to_string());
        CniConf { content: text.and_then(parse), path }
    };
    paths.into_iter().map(read).collect()
}

impl CniConf {
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn plugins(&self) -> &[Value] {
        match &self.content {
            Ok(conf) => {
                conf["plugins"].as_array().map_or(std::slice::from_ref(conf), Vec::as_slice)
            }
            Err(_) => &[],
        }
    }

    pub(crate) fn is_flannels(&self) -> bool {
        self.plugins().iter().any(|plugin| plugin["type"] == "flannel")
    }
}
