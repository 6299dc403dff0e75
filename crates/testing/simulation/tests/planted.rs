//! The defects that `scripts/simulate --planted` plants still fit the sources: one that does not would be found by nobody.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_planted_defect_applies_to_the_sources() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = directory.join("../../..");
    let mut patches: Vec<PathBuf> = fs::read_dir(directory.join("planted"))
        .expect("the directory of planted defects")
        .map(|entry| entry.expect("a planted defect").path())
        .collect();
    patches.sort();
    assert!(patches.len() >= 10, "{}", patches.len());
    for patch in patches {
        let text = fs::read_to_string(&patch).expect("a patch");
        for (file, before) in hunks(&text) {
            let source = fs::read_to_string(root.join(&file)).expect("a file that a patch names");
            let found = source.matches(&before).count();
            assert_eq!(
                found,
                1,
                "{}: a hunk in {file} has to be made again:\n{before}",
                patch.display()
            );
        }
    }
}

/// The lines that each hunk replaces, with the file that they are in.
fn hunks(patch: &str) -> Vec<(String, String)> {
    let (mut file, mut hunks) = (String::new(), Vec::new());
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("--- a/") {
            name.clone_into(&mut file);
        } else if line.starts_with("@@") {
            hunks.push((file.clone(), String::new()));
        } else if let Some((_, before)) = hunks.last_mut()
            && let Some(text) = line.strip_prefix([' ', '-'])
            && !line.starts_with("---")
        {
            before.push_str(text);
            before.push('\n');
        }
    }
    hunks
}
