//! What the container runtime is told of the pod network.

use std::path::Path;

use super::MigrationVerdict::{InTheWay, Stays};
use super::{Findings, MigrationVerdict};
use crate::commands::cni_conf::{self, CniConf};

pub(super) fn look(findings: &mut Findings, directory: &Path) {
    let confs = cni_conf::read_all(directory);
    let (verdict, text) = match confs.first() {
        None => (Stays, "no CNI configuration is here: the runtime has another way".to_owned()),
        Some(first) => judge(first, confs.iter().find(|conf| conf.is_flannels())),
    };
    findings.add("cni", verdict, text);
}

fn judge(first: &CniConf, flannels: Option<&CniConf>) -> (MigrationVerdict, String) {
    let name = first.name();
    if first.is_flannels() {
        let text = format!("{name} stays as it is, and works with the plugin of either");
        return (Stays, text);
    }
    if let Err(error) = &first.content {
        return (InTheWay, format!("{name} cannot be read: {error}"));
    }
    let behind = flannels.map(|conf| format!(", before {}", conf.name())).unwrap_or_default();
    let text = format!(
        "runtimes take {name}{behind}, which is not flannel's: pods are not on flannel's network; remove it if that is a \
         mistake"
    );
    (InTheWay, text)
}
