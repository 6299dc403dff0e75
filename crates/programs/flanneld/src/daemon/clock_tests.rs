//! No file of the daemon but those of the rim reads a clock, waits for time or makes up chance: else a node could not be run
//! by a clock and a seed of a test.

use std::path::Path;

/// The files that wait, act, or ask the world, and what they are for.
const RIM: &[(&str, &str)] = &[
    ("connectivity.rs", "task of an operator's request"),
    ("event_loop.rs", "the loop: reads the clocks once for each event"),
    ("identity.rs", "part of the lease task: asks on the link for a while"),
    ("lease_task.rs", "asks the store for the lease"),
    ("needs.rs", "runs commands and asks clouds"),
    ("now.rs", "has the only function that reads all clocks"),
    ("requests.rs", "runs tasks of operators' requests"),
    ("starting.rs", "waits for a config"),
    ("store_report.rs", "tells the store of lasting trouble"),
];

const FORBIDDEN: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "Now::read",
    ".elapsed()",
    "clock_gettime",
    "tokio::time",
    "sleep_until",
    "thread::sleep",
    "Rng::new()",
    "fastrand::u",
    "random_bytes",
];

/// The first thing in a file, without its tests, that is forbidden outside the rim.
fn forbidden_in(text: &str) -> Option<&'static str> {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    FORBIDDEN.iter().copied().find(|word| text.contains(word))
}

#[test]
fn only_the_rim_of_the_daemon_reads_clocks() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/daemon");
    let is_test = |name: &str| ["clock_tests.rs", "node_tests.rs"].contains(&name);
    let mut rim_files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the sources are here") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if is_test(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let found = forbidden_in(&text);
        match RIM.iter().any(|(file, _)| *file == name) {
            true => {
                assert!(found.is_some(), "{name} needs no clock: take it out of RIM");
                rim_files.push(name);
            }
            false => assert_eq!(found, None, "{name}: take `now: &Now` instead, see event.rs"),
        }
    }
    assert_eq!(rim_files.len(), RIM.len(), "files of RIM are missing");
}

#[test]
fn the_guard_finds_a_clock_in_code_and_leaves_tests_alone() {
    assert_eq!(forbidden_in("let due = Instant::now() + pause;"), Some("Instant::now"));
    assert_eq!(forbidden_in("fn pure() {}\n#[cfg(test)]\nmod tests { Instant::now(); }"), None);
}
