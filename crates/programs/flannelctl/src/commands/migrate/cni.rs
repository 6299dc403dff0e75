//! What the container runtime is told of the pod network.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Findings, MigrationVerdict};

const KINDS: [&str; 3] = ["conf", "conflist", "json"];

pub(super) fn look(findings: &mut Findings, directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        findings.add(
            "cni",
            MigrationVerdict::Stays,
            "no CNI configuration is here: the runtime has another way",
        );
        return;
    };
    let files = entries.flatten().map(|entry| entry.path());
    let is_one = |file: &std::path::PathBuf| {
        file.extension().and_then(|it| it.to_str()).is_some_and(|kind| KINDS.contains(&kind))
    };
    let mut files: Vec<_> = files.filter(is_one).collect();
    files.sort();
    // Runtimes take the first by name.
    let Some(first) = files.first() else {
        findings.add(
            "cni",
            MigrationVerdict::Stays,
            "no CNI configuration is here: the runtime has another way",
        );
        return;
    };
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_flannels = |file: &Path| -> Result<bool, String> {
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        let conf: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let plugins = conf["plugins"].as_array();
        let kinds = plugins.map(|all| all.iter().map(|plugin| &plugin["type"]).collect());
        let kinds: Vec<&Value> = kinds.unwrap_or_else(|| vec![&conf["type"]]);
        Ok(kinds.iter().any(|kind| **kind == "flannel"))
    };
    match is_flannels(first) {
        Ok(true) => {
            let text =
                format!("{} stays as it is, and works with the plugin of either", name(first));
            findings.add("cni", MigrationVerdict::Stays, text);
        }
        Ok(false) => {
            let flannels = files.iter().find(|file| is_flannels(file).is_ok_and(|yes| yes));
            let behind =
                flannels.map(|file| format!(", before {}", name(file))).unwrap_or_default();
            let text = format!(
                "runtimes take {}{behind}, which is not flannel's: pods are not on flannel's network; remove it if that \
                 is a mistake",
                name(first)
            );
            findings.add("cni", MigrationVerdict::InTheWay, text);
        }
        Err(error) => {
            let text = format!("{} cannot be read: {error}", name(first));
            findings.add("cni", MigrationVerdict::InTheWay, text);
        }
    }
}
