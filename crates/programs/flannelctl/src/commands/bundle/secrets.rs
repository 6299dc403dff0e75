//! Removes secrets from a bundle: those of this node wherever they stand, and what looks like one.

use std::fs;
use std::path::{Path, PathBuf};

use flannel_common::{Secret, is_secret_name, without_secrets};
use serde_json::Value;

use crate::commands::check::node_context::NetworkSource;
use crate::commands::daemon_process::DaemonProcess;

const KEY_FILES: [&str; 4] =
    ["/run/flannel/wgkey", "/run/flannel/wgkeyv6", "/var/lib/flannel/wgkey", "/etc/ipsec.secrets"];
#[derive(Default)]
pub(super) struct Secrets(Vec<Secret>);

impl Secrets {
    /// Those that can be found: in the daemon's flags and variables, in files it names, in the network config.
    pub(super) fn of_this_node(source: &NetworkSource) -> Self {
        let mut texts: Vec<String> = Vec::new();
        let mut files: Vec<PathBuf> = KEY_FILES.iter().map(PathBuf::from).collect();
        let given: Vec<(String, String)> = std::env::vars().collect();
        let process = DaemonProcess::find().ok().flatten();
        let daemons = process.as_ref().map(DaemonProcess::given).unwrap_or_default();
        for (name, value) in given.into_iter().chain(daemons) {
            let is_file = name.to_ascii_lowercase().ends_with("file");
            match (is_secret_name(&name), is_file, &process) {
                (false, ..) => {}
                (true, false, _) => texts.push(value),
                (true, true, Some(process)) => files.push(process.inside(Path::new(&value))),
                (true, true, None) => files.push(PathBuf::from(value)),
            }
        }
        texts.extend(files.iter().filter_map(|file| fs::read_to_string(file).ok()));
        for config in source.configs() {
            values(&config, &mut texts);
        }
        // What lies in a file of secrets may be one a line.
        let lines = texts.iter().flat_map(|text| text.lines().chain([text.as_str()]));
        let long = lines.map(str::trim).filter(|text| text.len() >= 6);
        let mut texts: Vec<String> = long.map(str::to_owned).collect();
        // The longest first, so that no part of one stays.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts.dedup();
        Self(texts.into_iter().map(Secret::new).collect())
    }

    pub(super) fn remove(&self, text: &str) -> String {
        let known = self.0.iter().fold(text.to_owned(), |text, secret| secret.hide_in(&text));
        without_secrets(&known)
    }
}

fn values(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str() {
                    Some(text) if is_secret_name(name) => found.push(text.to_owned()),
                    _ => values(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| values(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_goes_wherever_it_is_and_so_does_what_looks_like_a_secret() {
        let known = Secrets(vec![Secret::new("open sesame")]);
        let clean = known.remove("it said open sesame to me\nPSK: hunter2\n");
        assert!(!clean.contains("sesame") && !clean.contains("hunter2"), "{clean}");
    }
}
