//! A tool that looks changes nothing: no diagnostic makes a daemon report what was not there before.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use flannel_lab::{Lab, LabError, Result};
use serde_json::Value;

use crate::support::{LIMIT, connected_pods, flanneld, lab, probe};

/// Ends the watching with the test, however that ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks every node whether it is ready until it is told to stop, and keeps every other answer than yes.
fn watch_readiness(lab: &Lab, stop: &AtomicBool) -> BTreeSet<String> {
    let mut complaints = BTreeSet::new();
    while !stop.load(Ordering::Relaxed) {
        for node in lab.nodes() {
            match probe(lab, node.number(), "/readyz") {
                Ok(Ok((200, _))) => {}
                Ok(Ok((status, body))) => drop(complaints.insert(format!("{status} {body}"))),
                other => drop(complaints.insert(format!("{other:?}"))),
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    complaints
}

fn flannelctl(lab: &Lab, node: u16, words: &[&str]) -> Result<(i32, String)> {
    let program = flanneld().with_file_name("flannelctl");
    let words: Vec<&str> = [program.to_str().unwrap()].iter().chain(words).copied().collect();
    let output = lab.node(node).output(&words)?;
    Ok((output.status.code().unwrap_or(-1), output.stdout + &output.stderr))
}

fn state(lab: &Lab, node: u16) -> Result<Value> {
    let (status, text) = flannelctl(lab, node, &["status", "-o", "json"])?;
    assert_eq!(status, 0, "{text}");
    Ok(serde_json::from_str(&text).expect("JSON"))
}

/// Warnings and errors among the events of a node.
fn warnings(lab: &Lab, node: u16) -> Result<Vec<String>> {
    let (_, text) = flannelctl(lab, node, &["events", "-o", "json"])?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_warning = |event: &Value| event["kind"] == "warning" || event["kind"] == "error";
    Ok(events.filter(is_warning).map(|event| event.to_string()).collect())
}

#[test]
fn no_diagnostic_makes_a_node_report_what_was_not_there_before() -> Result<()> {
    let lab = lab(2).flag("--ip-masq").start()?;
    let (one, two) = connected_pods(&lab)?;
    // A pod has processes, by which its network is found.
    let running: Vec<_> = [&one, &two]
        .into_iter()
        .map(|pod| {
            let mut sleep = Command::new("sleep");
            sleep.arg("600");
            pod.spawn(sleep)
        })
        .collect::<Result<_>>()?;
    for node in lab.nodes() {
        lab.wait_until("a network that works", LIMIT, || {
            match flannelctl(&lab, node.number(), &["status"])? {
                (0, _) => Ok(()),
                (_, text) => Err(LabError::Spec(text)),
            }
        })?;
    }
    let before: Vec<Vec<String>> =
        (1..=2).map(|node| warnings(&lab, node)).collect::<Result<_>>()?;
    let endpoints = format!("--etcd-endpoints={}", lab.etcd()?.endpoints());
    let prefix = format!("--etcd-prefix={}", lab.spec().etcd_prefix);
    let (from, to) = (one.v4().unwrap().to_string(), two.v4().unwrap().to_string());
    let store = [endpoints.as_str(), prefix.as_str()];
    let diagnostics: Vec<Vec<&str>> = vec![
        [&["test", "connectivity"], &store[..]].concat(),
        vec!["check"],
        vec!["trace", &from, &to],
        vec!["trace", &from, &to, "--live"],
        vec!["diff"],
        vec!["peers"],
        [&["leases"], &store[..]].concat(),
        vec!["bundle", "-f", "/run/bundle.tar.gz"],
        vec!["status", "-o", "wide"],
    ];
    let stop = AtomicBool::new(false);
    let complaints = std::thread::scope(|scope| {
        let watched = scope.spawn(|| watch_readiness(&lab, &stop));
        let end = StopOnDrop(&stop);
        for words in &diagnostics {
            let (status, text) = flannelctl(&lab, 1, words)?;
            // What `check` says of the machine that the lab runs on is that machine's.
            assert!(status == 0 || words[0] == "check", "{words:?}: {text}");
            for node in 1..=2 {
                let network = state(&lab, node)?["networks"][0].take();
                assert_eq!(network["verdict"], "ready", "{words:?}: {network:#}");
                for list in [&network["issues"], &network["entries"]["hazards"]] {
                    assert!(list.as_array().is_none_or(Vec::is_empty), "{words:?}: {network:#}");
                }
            }
        }
        drop(end);
        Ok::<_, LabError>(watched.join().expect("it only asks"))
    })?;
    assert_eq!(complaints, BTreeSet::new());
    for node in 1..=2 {
        assert_eq!(warnings(&lab, node)?, before[usize::from(node) - 1], "node {node}");
    }
    drop(running);
    Ok(())
}
