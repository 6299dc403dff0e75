//! What the container runtime is told: configurations in its order, and the plugins they name.

use std::path::Path;

use super::node_context::NodeContext;
use crate::commands::cni_conf::{self, CniConf};
use flannel_state::{Finding, Layer};

const LAYER: Layer = Layer::Cni;
/// What the flannel plugin hands on to, unless it is told otherwise.
const DELEGATE: &str = "bridge";
const IPAM: &str = "host-local";

pub(super) fn look(conf_dir: &Path, bin_dir: &str, context: &NodeContext) -> Vec<Finding> {
    // Where the flannel plugin is ours, it has these in it.
    let there = |plugin: &str| flannel_cni::delegate::find(plugin, bin_dir).is_ok();
    judge(&cni_conf::read_all(conf_dir), conf_dir, bin_dir, &there, context.is_running)
}

/// `there`: whether a plugin of this name is found.
fn judge(
    confs: &[CniConf],
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
    let path = first.path.display();
    if let Err(error) = &first.content {
        let why = "container runtimes take the first configuration by name: no pod starts";
        let fix = format!("correct it, or remove it: rm {path}");
        findings.push(Finding::broken(LAYER, format!("{path} cannot be read: {error}"), why, fix));
    }
    let flannels = confs.iter().find(|conf| conf.is_flannels());
    if let Some(flannels) = flannels
        && !first.is_flannels()
        && first.content.is_ok()
    {
        findings.push(Finding::broken(
            LAYER,
            format!("runtimes take {}, which is not flannel's, before {}", first.name(), flannels.name()),
            "new pods are on another network, with other addresses, and do not reach those of flannel's",
            format!("if that other network is not wanted any more: rm {path}"),
        ));
    }
    let Some(used) = flannels else {
        if is_running {
            let why = "a flanneld runs here, and pods are on another network: that may be meant so";
            findings.push(Finding::note(LAYER, format!("{} is not flannel's", first.name()), why));
        }
        return findings;
    };
    let missing: Vec<String> =
        plugins_of(used).into_iter().filter(|plugin| !there(plugin)).collect();
    if !missing.is_empty() {
        findings.push(Finding::broken(
            LAYER,
            match &missing[..] {
                [one] => format!("{} names the plugin {one}, which is not in {bin_dir}", used.name()),
                more => format!("{} names the plugins {}, which are not in {bin_dir}", used.name(), more.join(", ")),
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
fn plugins_of(conf: &CniConf) -> Vec<String> {
    let mut names = Vec::new();
    for plugin in conf.plugins() {
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

    fn conf(name: &str, text: &str) -> CniConf {
        let content = serde_json::from_str(text).map_err(|error| error.to_string());
        CniConf { path: Path::new("/etc/cni/net.d").join(name), content }
    }

    fn judged(confs: &[CniConf], there: &[&str]) -> Vec<String> {
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
