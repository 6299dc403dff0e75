//! The manifest for `kubectl apply` says what the kustomize base says.

use flannel_runtimes::our_manifest;

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
