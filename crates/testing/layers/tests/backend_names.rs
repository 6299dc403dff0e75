//! What a backend is like is asked of the backend: nobody else looks at its name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::fs;
use std::path::{Path, PathBuf};

/// Names of backends. `udp` is left out: it is a protocol's name, too.
const NAMES: &[&str] = &[
    "vxlan",
    "host-gw",
    "wireguard",
    "ipip",
    "ipsec",
    "extension",
    "alloc",
    "aws-vpc",
    "ali-vpc",
    "gce",
    "tencent-vpc",
];
/// Files in which such a word is somebody else's name for something, and what that is.
const OTHER_MEANINGS: &[(&str, &str)] = &[
    ("appliers/traffic/src/iptables/text.rs", "ipip is a protocol of iptables"),
    ("tools/trace/src/firewall/path.rs", "ipip is a protocol of iptables"),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && !["tests", "testing"].contains(&name.as_str()) {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.contains("tests") {
            found.push(path);
        }
    }
}

fn matches_a_name(line: &str) -> bool {
    NAMES.iter().any(|name| {
        let quoted = format!("\"{name}\"");
        let forms = [
            format!("== {quoted}"),
            format!("!= {quoted}"),
            format!("{quoted} =>"),
            format!("{quoted} |"),
            format!("| {quoted}"),
            format!("({quoted}) =>"),
        ];
        forms.iter().any(|form| line.contains(form.as_str()))
    })
}

#[test]
fn no_file_outside_the_backends_matches_the_name_of_one() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    sources(&crates, &mut files);
    assert!(files.len() > 500, "sources were not found below {}", crates.display());
    let mut wrong = Vec::new();
    for path in files {
        let file = path.strip_prefix(&crates).unwrap().to_str().unwrap();
        let may = file.starts_with("core/backend/") || file.starts_with("testing/");
        if may || OTHER_MEANINGS.iter().any(|(excepted, _)| *excepted == file) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for (number, line) in product.lines().enumerate().filter(|(_, line)| matches_a_name(line)) {
            wrong.push(format!("{file}:{}: {}", number + 1, line.trim()));
        }
    }
    assert!(wrong.is_empty(), "ask the backend instead (`Encapsulation`):\n{}", wrong.join("\n"));
}
