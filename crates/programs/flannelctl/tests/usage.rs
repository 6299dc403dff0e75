//! What scripts rely on: how commands end, and in which forms they answer. Nothing runs here that could be asked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn flannelctl(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
    for name in ["REMOTE", "NETWORKS", "ETCD_ENDPOINTS", "KUBECONFIG_FILE", "KUBE_SUBNET_MGR"] {
        command.env_remove(format!("FLANNELD_{name}"));
    }
    command.args(words).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Those that ask the daemon of this node.
const READERS: [&[&str]; 5] = [&["status"], &["peers"], &["events"], &["diff"], &["repair"]];

#[test]
fn what_is_typed_wrongly_ends_with_2_and_says_why() {
    let remote: &[&str] = &["store", "migrate", "--to", "etcd"];
    for words in [
        &["nothing-of-the-kind"][..],
        &["status", "-o", "xml"],
        &["status", "more"],
        &["peers", "one", "two"],
        &["trace", "10.244.1.2"],
        &["page", "--listen", "0.0.0.0:8080"],
        &["page", "--networks", "blue,gr/een"],
        &["leases", "--networks", "blue,green"],
        &["leases", "--networks", "gr/een"],
        &["reserve", "10.244.9.0/24"],
        &["ipam"],
        remote,
    ] {
        let output = flannelctl(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", errors(&output));
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_an_error() {
    for words in [&["completion", "bash"][..], &["--help"], &["config", "validate", "-"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let config = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
        let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
        let output = child.wait_with_output().unwrap();
        assert!(!errors(&output).contains("panicked"), "{words:?}: {}", errors(&output));
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", errors(&output));
    }
}

#[test]
fn every_reader_takes_every_form_and_ends_with_1_where_there_is_nobody_to_ask() {
    for words in READERS {
        for form in ["text", "wide", "json", "yaml"] {
            let all = [words, &["--socket", "/nonexistent", "-o", form]].concat();
            let output = flannelctl(&all);
            assert_eq!(output.status.code(), Some(1), "{all:?}: {}", errors(&output));
            let said = errors(&output);
            assert!(said.contains("flanneld cannot be asked at /nonexistent"), "{all:?}: {said}");
            assert!(!said.contains('\u{1b}'), "colour is for terminals: {said:?}");
            assert!(output.stdout.is_empty(), "{all:?}: a program would read this");
        }
    }
    for command in ["check", "trace", "bundle", "leases", "migrate"] {
        let help = flannelctl(&[command, "--help"]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.contains("--output <OUTPUT>"), "{command}: {help}");
    }
}
