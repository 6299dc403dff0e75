//! The manifest for `kubectl apply` says what the kustomize base says.

use std::path::PathBuf;
use std::process::Command;

use flannel_runtimes::our_manifest;

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dist/monitoring");

#[test]
fn the_manifest_is_the_base_in_one_file() {
    let parts = ["namespace", "rbac", "admission", "config", "daemonset"];
    let base = parts.map(|part| our_manifest(&format!("base/{part}.yaml"))).join("---\n");
    let whole = our_manifest("kube-flannel.yml");
    let (_, whole) = whole.split_once("apiVersion").expect("a manifest");
    assert_eq!(format!("apiVersion{whole}"), base, "change both: kube-flannel.yml and base/");
    let resources = our_manifest("base/kustomization.yaml");
    for part in parts {
        assert!(resources.contains(&format!("- {part}.yaml")), "{part}.yaml is not in the base");
    }
}

#[test]
fn the_uninstaller_for_overlays_is_the_one_in_one_file() {
    let whole = our_manifest("uninstall.yml");
    let (_, whole) = whole.split_once("apiVersion").expect("a manifest");
    let part = our_manifest("uninstall/daemonset.yaml");
    assert_eq!(format!("apiVersion{whole}"), part, "change both: uninstall.yml and uninstall/");
}

#[test]
fn every_manifest_names_the_image_of_this_version() {
    let image = format!("flannel-rs/flannel:v{}", env!("CARGO_PKG_VERSION"));
    for name in
        ["kube-flannel.yml", "uninstall.yml", "base/daemonset.yaml", "lease-server/server.yaml"]
    {
        let manifest = our_manifest(name);
        let images: Vec<&str> =
            manifest.lines().filter_map(|l| l.split("image: ").nth(1)).collect();
        assert!(!images.is_empty() && images.iter().all(|it| *it == image), "{name}: {images:?}");
    }
    assert_eq!(flannel_runtimes::IMAGE, image);
    let chart = our_manifest("chart/values.yaml");
    assert!(chart.contains(&format!("tag: v{}", env!("CARGO_PKG_VERSION"))), "the chart's tag");
}

/// `kubectl apply -k` refuses a patch that no longer fits the base.
#[test]
fn overlay_for_monitoring_opens_the_port_and_tells_prometheus_of_it() {
    let directory = std::env::var_os("FLANNEL_TEST_KUBERNETES_DIR").map(PathBuf::from);
    let cached = || std::env::home_dir().map(|home| home.join(".cache/flannel-rs/bin/kubernetes"));
    let kubectl = directory.or_else(cached).map(|directory| directory.join("kubectl"));
    let mut command = Command::new(kubectl.expect("`scripts/deps kubernetes` builds kubectl"));
    let output = command.args(["kustomize", "kubernetes"]).current_dir(MONITORING).output();
    let output = output.expect("`scripts/deps kubernetes` builds kubectl");
    let rendered = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["- --healthz-ip=0.0.0.0", "prometheus.io/scrape: \"true\"", "host: 127.0.0.1"] {
        assert!(rendered.contains(part), "{part}: {rendered}");
    }
}
