//! The dependencies between crates are those that the picture in docs/architecture.md allows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::collections::BTreeMap;
use std::process::Command;

use flannel_layers::{EXCEPTIONS, FORBIDDEN, LAYERS};
use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/architecture.md");

struct Workspace {
    /// The layer of each crate.
    layers: BTreeMap<String, String>,
    /// Dependencies on other crates of ours, those of tests left out.
    edges: Vec<(String, String)>,
}

fn workspace() -> Workspace {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let root = metadata["workspace_root"].as_str().unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let layer = |package: &Value| {
        let path = package["manifest_path"].as_str().unwrap().strip_prefix(root).unwrap();
        path.split('/').nth(2).unwrap().to_owned()
    };
    let layers: BTreeMap<String, String> =
        packages.iter().map(|package| (name(package), layer(package))).collect();
    let edges = packages.iter().flat_map(|package| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let ours = dependencies.filter(|it| it["kind"] != "dev").map(name);
        let ours: Vec<String> = ours.filter(|it| layers.contains_key(it)).collect();
        ours.into_iter().map(|to| (name(package), to)).collect::<Vec<_>>()
    });
    Workspace { edges: edges.collect(), layers: layers.clone() }
}

#[test]
fn every_dependency_is_one_that_the_picture_allows() {
    let Workspace { layers, edges } = workspace();
    let allowed = |from: &str, to: &str| {
        let (layer, target) = (layers[from].as_str(), layers[to].as_str());
        let (_, below) = LAYERS.iter().find(|(name, _)| *name == layer).unwrap();
        below.contains(&target)
            && !FORBIDDEN.iter().any(|(name, crate_, _)| (*name, *crate_) == (layer, to))
    };
    let excepted = |from: &str, to: &str| EXCEPTIONS.iter().any(|(a, b, _)| (*a, *b) == (from, to));
    let wrong: Vec<&(String, String)> =
        edges.iter().filter(|(from, to)| !allowed(from, to) && !excepted(from, to)).collect();
    assert!(wrong.is_empty(), "crates/testing/layers/src/lib.rs does not allow these: {wrong:?}");
    for (from, to, _) in EXCEPTIONS {
        let is_there = edges.iter().any(|(a, b)| (a.as_str(), b.as_str()) == (*from, *to));
        assert!(is_there && !allowed(from, to), "{from} → {to} need not be an exception");
    }
}

#[test]
fn the_crates_in_the_architecture_page_are_those_of_the_workspace() {
    let Workspace { layers, .. } = workspace();
    let crates = PAGE.split("\n## Crates\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut documented = BTreeMap::new();
    for line in crates.lines().filter(|line| line.contains("| `")) {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (layer, name) = (cells.next().unwrap(), cells.next().unwrap().trim_matches('`'));
        documented.insert(name.to_owned(), layer.to_owned());
    }
    assert_eq!(documented, layers);
}
