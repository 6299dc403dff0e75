//! What flannel is installed from: our manifests and chart, and the Go flannel's with our image.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::{Cluster, IMAGE};
use crate::programs::{fetched, of_repository};

/// Our manifest, as it lies in the repository.
pub fn our_manifest(name: &str) -> String {
    let path = of_repository(&format!("dist/kubernetes/{name}"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// An overlay of our manifests, as `kubectl apply -k` would apply it.
pub fn our_overlay(cluster: &Cluster, name: &str) -> String {
    cluster.kubectl(&["kustomize", &of_repository(&format!("dist/kubernetes/{name}"))])
}

/// The Helm chart's directory.
pub fn chart() -> String {
    of_repository("dist/kubernetes/chart")
}

/// The program helm.
pub fn helm() -> PathBuf {
    fetched("FLANNEL_TEST_HELM", "helm", "helm")
}

/// What Helm makes of a chart with these values, for this namespace.
pub fn rendered(chart: &str, namespace: &str, values: &[&str]) -> String {
    let words = [&["template", "flannel", chart, "-n", namespace], values].concat();
    let output = Command::new(helm()).args(words).output().expect("run helm");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The Go flanneld.
pub fn go_flanneld() -> PathBuf {
    fetched("FLANNEL_TEST_GO_FLANNELD", "go-flanneld", "go-flannel")
}

/// The Go flannel's manifest, with the names of its images replaced by ours and nothing else.
pub fn upstream_manifest() -> String {
    let text = fs::read_to_string(go_manifests().join("kube-flannel.yml"));
    let text = text.expect("read the Go manifest");
    let lines = text.lines().map(|line| match line.split_once("image: ") {
        Some((before, _)) => format!("{before}image: {IMAGE}"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The directory of the Go flannel's chart.
pub fn upstream_chart() -> String {
    go_manifests().join("chart").display().to_string()
}

/// Values by which a chart, ours or theirs, takes our image.
pub fn our_image_as_values() -> String {
    let (repository, tag) = IMAGE.split_once(':').expect("a name with a tag");
    format!("--set=flannel.image.repository={repository},flannel.image.tag={tag}")
}

fn go_manifests() -> PathBuf {
    fetched("FLANNEL_TEST_GO_MANIFESTS", "go-manifests", "go-manifests")
}
