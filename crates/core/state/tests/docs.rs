//! docs/state.md names every field that a daemon can say, every kind of event, and every word for a condition.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flannel_state::*;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../../docs/state.md");

fn text() -> String {
    "x".to_owned()
}

fn probe() -> ProbeState {
    ProbeState {
        verdict: text(),
        traffic: Some(true),
        layer: Some(Layer::Tunnel),
        why: Some(text()),
        fix: Some(text()),
        latency_micros: Some(1),
        mtu: Some(1),
        asked: Some(1),
        lost: Some(1),
        at: Some(text()),
    }
}

/// With all its fields, as all that follow: one that is added must be added here, or this does not compile.
fn network() -> NetworkState {
    NetworkState {
        name: text(),
        verdict: Verdict::Ready,
        why: Some(text()),
        networks: vec![text()],
        backend: Some(text()),
        config: Some(json!("its keys are those of the network config")),
        lease: Some(LeaseState {
            subnet: Some(text()),
            ipv6_subnet: Some(text()),
            ends: Some(text()),
            remaining_seconds: Some(1),
        }),
        underlay: Some(UnderlayState {
            interface: text(),
            why: text(),
            mtu: 1,
            addresses: Vec::new(),
            public_ip: Some([192, 0, 2, 1].into()),
            public_ipv6: Some([0u16; 8].into()),
        }),
        mtu: Some(1),
        mtu_why: Some(text()),
        store: Some(StoreState { name: text(), up: true, since: text(), why: Some(text()) }),
        peers: PeerCounts { known: 1, unusable: 1, incomplete: 1, vanished: 1 },
        probing: Some(ProbingState {
            port: 1,
            reached: 1,
            unreached: 1,
            impaired: 1,
            not_probed: 1,
            waiting: 1,
            latency_micros: Some(1),
            longest_latency_micros: Some(1),
            asked: 1,
            lost: 1,
            findings: vec![ProbedPeer {
                subnet: text(),
                node: Some([192, 0, 2, 1].into()),
                probe: probe(),
            }],
        }),
        entries: EntriesState {
            wanted: 1,
            missing: 1,
            contested: 1,
            problems: vec![ProblemState { entry: text(), why: text() }],
            hazards: vec![text()],
        },
        issues: vec![Finding::broken(Layer::Lease, "x", "x", "x")],
    }
}

fn daemon() -> DaemonState {
    DaemonState {
        schema: SCHEMA,
        version: text(),
        hostname: text(),
        started: text(),
        now: text(),
        networks: vec![network()],
    }
}

fn peer() -> PeerState {
    PeerState {
        network: text(),
        name: Some(text()),
        subnet: Some(text()),
        ipv6_subnet: Some(text()),
        public_ip: Some([192, 0, 2, 1].into()),
        public_ipv6: Some([0u16; 8].into()),
        backend: text(),
        condition: PeerCondition::Programmed,
        why: Some(text()),
        probe: Some(probe()),
    }
}

fn event() -> HistoryEvent {
    HistoryEvent {
        number: 1,
        at: text(),
        network: Some(text()),
        kind: text(),
        what: text(),
        undone_by: Some(text()),
        after_micros: Some(1),
        entries: Some(1),
    }
}

fn entry() -> EntryState {
    EntryState {
        network: text(),
        subnet: Some(text()),
        ipv6_subnet: Some(text()),
        applier: text(),
        kind: text(),
        entry: text(),
        state: EntryCondition::Programmed,
        why: Some(text()),
    }
}

fn repair() -> RepairState {
    RepairState {
        network: text(),
        applier: text(),
        wanted: 1,
        found: 1,
        entries: vec![RepairedEntry {
            entry: text(),
            state: EntryCondition::Missing,
            why: Some(text()),
        }],
        removed: vec![text()],
        failure: Some(text()),
    }
}

fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys(value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

fn section(name: &str) -> &'static str {
    let from = PAGE.find(&format!("\n## {name}\n")).unwrap_or_else(|| panic!("{name}"));
    let rest = &PAGE[from + 4..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

#[test]
fn every_field_is_documented_where_it_belongs() {
    assert!(PAGE.contains(&format!("describes version {SCHEMA} of the schema")));
    let value = |it: Result<Value, serde_json::Error>| it.unwrap();
    let told: [(Value, &[&str]); 5] = [
        (
            value(serde_json::to_value(daemon())),
            &["The daemon", "A network", "A finding", "A probe"],
        ),
        (value(serde_json::to_value(peer())), &["A peer", "A probe"]),
        (value(serde_json::to_value(event())), &["An event"]),
        (value(serde_json::to_value(entry())), &["An entry"]),
        (value(serde_json::to_value(repair())), &["A repair"]),
    ];
    for (value, sections) in told {
        let text: String = sections.iter().map(|name| section(name)).collect();
        let mut fields = BTreeSet::new();
        keys(&value, &mut fields);
        for field in fields {
            assert!(text.contains(&format!("`{field}`")), "{field} is not in {sections:?}");
        }
    }
}

#[test]
fn every_condition_is_documented() {
    let words = [
        json!([Verdict::Ready, Verdict::ReadyBut, Verdict::CutOff, Verdict::NotReady]),
        json!([Severity::Note, Severity::Warning, Severity::Broken]),
        json!([
            PeerCondition::Programmed,
            PeerCondition::Incomplete,
            PeerCondition::Vanished,
            PeerCondition::Unusable
        ]),
        json!([
            EntryCondition::Programmed,
            EntryCondition::Missing,
            EntryCondition::Refused,
            EntryCondition::Contested
        ]),
    ];
    for word in words.iter().filter_map(Value::as_array).flatten() {
        assert!(PAGE.contains(&format!("`{}`", word.as_str().unwrap())), "{word}");
    }
}

/// Kinds of events in the sources below a directory.
fn kinds(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            kinds(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let names =
                source.split("event = \"").skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_kind_of_event_is_documented() {
    let mut found = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for layer in fs::read_dir(crates).unwrap().flatten() {
        for package in fs::read_dir(layer.path()).unwrap().flatten() {
            let sources = package.path().join("src");
            if sources.is_dir() {
                kinds(&sources, &mut found);
            }
        }
    }
    assert!(found.contains("entry-restored"), "{found:?}");
    for kind in found {
        assert!(section("An event").contains(&format!("`{kind}`")), "{kind}");
    }
}
