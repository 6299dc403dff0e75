//! What the container runtime is told: configurations in its order, and the plugins they name.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::node_context::NodeContext;
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Cni;
const KINDS: [&str; 3] = ["conf", "conflist", "json"];
/// What the flannel plugin hands on to, unless it is told otherwise.
const DELEGATE: &str = "bridge";
const IPAM: &str = "host-local";

/// A file that a runtime may take its configuration from.
struct Conf {
    name: String,
    /// `Err`: why it cannot be read.
    plugins: Result<Vec<Value>, String>,
}

pub(super) fn look(conf_dir: &Path, bin_dir: &str, context: &NodeContext) -> Vec<Finding> {
    let there = |plugin: &str| {
        // Where the flannel plugin is ours, it has these in it.
        flannel_cni::delegate::find(plugin, bin_dir).is_ok()
    };
    let subnet_file = context.is_running.then_some(());
    judge(&confs(conf_dir), conf_dir, bin_dir, &there, subnet_file.is_some())
}

fn confs(directory: &Path) -> Vec<Conf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|file| {
            file.extension().and_then(|it| it.to_str()).is_some_and(|it| KINDS.contains(&it))
        })
        .collect();
    // Runtimes take the first by name.
    files.sort();
    let read = |file: &Path| -> Result<Vec<Value>, String> {
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        let conf: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(conf["plugins"].as_array().cloned().unwrap_or_else(|| vec![conf]))
    };
    let conf = |file: &std::path::PathBuf| Conf {
        name: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        plugins: read(file),
    };
    files.iter().map(conf).collect()
}

impl Conf {
    fn is_flannels(&self) -> bool {
        let plugins = self.plugins.as_ref().map_or(&[][..], Vec::as_slice);
        plugins.iter().any(|plugin| plugin["type"] == "flannel")
    }
}

/// `there`: whether a plugin of this name is found.
fn judge(
    confs: &[Conf],
    conf_dir: &Path,
    bin_dir: &str,
    there: &dyn Fn(&str) -> bool,
    is_running: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(first) = confs.first() else {
        let what = format!("no CNI configuration is in {}", conf_dir.display());
        return vec![Finding::note(
            LAYER,
            what,
            "the container runtime has another way, or flannel is still to be installed",
        )];
    };
    let path = |conf: &Conf| conf_dir.join(&conf.name).display().to_string();
    if let Err(error) = &first.plugins {
        findings.push(Finding::broken(
            LAYER,
            format!("{} cannot be read: {error}", path(first)),
            "container runtimes take the first configuration by name: no pod starts",
            format!("correct it, or remove it: rm {}", path(first)),
        ));
    }
    let flannels = confs.iter().find(|conf| conf.is_flannels());
    if let Some(flannels) = flannels
        && !first.is_flannels()
        && first.plugins.is_ok()
    {
        findings.push(Finding::broken(
            LAYER,
            format!("runtimes take {}, which is not flannel's, before {}", first.name, flannels.name),
            "new pods are on another network, with other addresses, and do not reach those of flannel's",
            format!("if that other network is not wanted any more: rm {}", path(first)),
        ));
    }
    let Some(used) = flannels else {
        if is_running {
            findings.push(Finding::note(
                LAYER,
                format!("{} is not flannel's", first.name),
                "a flanneld runs here, and pods are on another network: that may be meant so",
            ));
        }
        return findings;
    };
    let missing: Vec<String> =
        plugins_of(used).into_iter().filter(|plugin| !there(plugin)).collect();
    if !missing.is_empty() {
        findings.push(Finding::broken(
            LAYER,
            match &missing[..] {
                [one] => format!("{} names the plugin {one}, which is not in {bin_dir}", used.name),
                more => format!("{} names the plugins {}, which are not in {bin_dir}", used.name, more.join(", ")),
            },
            "no pod starts: the runtime says `failed to find plugin`",
            format!(
                "flannel --install {} puts flannel, bridge, host-local, portmap, bandwidth and loopback there; \
                 others come with the package containernetworking-plugins",
                bin_dir.split(':').next().unwrap_or_default()
            ),
        ));
    }
    findings
}

/// Those that are run by a name, with what flannel's hands on to.
fn plugins_of(conf: &Conf) -> Vec<String> {
    let mut names = Vec::new();
    for plugin in conf.plugins.as_ref().map_or(&[][..], Vec::as_slice) {
        let kind = plugin["type"].as_str().unwrap_or_default();
        names.push(kind.to_owned());
        if kind == "flannel" {
            names.push(plugin["delegate"]["type"].as_str().unwrap_or(DELEGATE).to_owned());
            names.push(plugin["ipam"]["type"].as_str().unwrap_or(IPAM).to_owned());
        } else {
            names.extend(plugin["ipam"]["type"].as_str().map(str::to_owned));
        }
    }
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(name: &str, text: &str) -> Conf {
        let plugins = serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
        let list = |conf: Value| conf["plugins"].as_array().cloned().unwrap_or_else(|| vec![conf]);
        Conf { name: name.to_owned(), plugins: plugins.map(list) }
    }

    fn judged(confs: &[Conf], there: &[&str]) -> Vec<String> {
        let is_there = |name: &str| there.contains(&name);
        let found = judge(confs, Path::new("/etc/cni/net.d"), "/opt/cni/bin", &is_there, true);
        found.into_iter().filter(|one| !one.fix.is_empty()).map(|one| one.about).collect()
    }

    #[test]
    fn what_keeps_pods_from_starting_or_puts_them_elsewhere_is_named() {
        let flannels = || {
            conf("10-flannel.conflist", r#"{"plugins":[{"type":"flannel"},{"type":"portmap"}]}"#)
        };
        let all = ["flannel", "bridge", "host-local", "portmap"];
        assert_eq!(judged(&[flannels()], &all), [""; 0]);
        assert_eq!(
            judged(&[flannels()], &["flannel", "bridge", "portmap"]),
            ["10-flannel.conflist names the plugin host-local, which is not in /opt/cni/bin"]
        );
        let other = conf("05-cilium.conflist", r#"{"plugins":[{"type":"cilium-cni"}]}"#);
        assert_eq!(
            judged(&[other, flannels()], &all),
            [
                "runtimes take 05-cilium.conflist, which is not flannel's, before 10-flannel.conflist"
            ]
        );
        assert!(
            judged(&[conf("05-x.conf", "{"), flannels()], &all)[0]
                .contains("05-x.conf cannot be read")
        );
        assert_eq!(judged(&[], &[]), [""; 0]);
    }
}
