//! Hooks against real programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::path::{Path, PathBuf};

use flannel_common::Secret;
use flannel_entries::commands::Form;
use flannel_wanted::{Applier as _, Desired, Importance};

use super::*;

struct Case {
    runner: CommandRunner<u32>,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runner: CommandRunner::new(1), runtime, directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes `word` into the log, and fails while the file `broken-<word>` is there.
    fn command(&self, name: &'static str, word: &str) -> Command {
        let (log, broken) = (self.path("log"), self.path(&format!("broken-{word}")));
        let (log, broken) = (log.display(), broken.display());
        Command {
            name,
            line: format!("echo {word} $SUBNET $(cat) >> {log}; test ! -e {broken}"),
            form: Form::Shell,
            variables: vec![("SUBNET", "10.1.2.0/24".to_owned())],
            input: Secret::new("data"),
            limit: Duration::from_secs(60),
        }
    }

    fn network(&self) -> Hook {
        Hook {
            key: HookKey::Network,
            run: Some(self.command("PostStartupCommand", "post")),
            undo: Some(self.command("ShutdownCommand", "shutdown")),
        }
    }

    fn peer(&self, name: &str) -> Hook {
        Hook {
            key: HookKey::Peer(name.to_owned()),
            run: Some(self.command("SubnetAddCommand", &format!("add-{name}"))),
            undo: Some(self.command("SubnetRemoveCommand", &format!("remove-{name}"))),
        }
    }

    fn replace(&self, desired: Desired<u32, Hook>) -> Status {
        self.runtime.block_on(self.runner.replace((), desired)).unwrap()
    }

    fn update(&self, changes: Desired<u32, Hook>) -> Status {
        self.runtime.block_on(self.runner.update(changes)).unwrap()
    }

    /// The first words of what was run so far.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        let words = text.lines().map(|line| {
            let (word, rest) = line.split_once(' ').unwrap();
            assert_eq!(rest, "10.1.2.0/24 data");
            word.to_owned()
        });
        words.collect()
    }

    fn wait_for(&self, what: impl Fn(&[String], &Status) -> bool) -> Vec<String> {
        let begin = Instant::now();
        loop {
            let status = self.runtime.block_on(self.runner.status()).unwrap();
            let log = self.log();
            if what(&log, &status) {
                return log;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{log:?} {status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn touch(path: &Path) {
    std::fs::write(path, "").unwrap();
}

#[test]
fn commands_run_once_in_order_and_are_undone_in_reverse() {
    let case = Case::new();
    case.replace(vec![
        (2, vec![case.peer("b")]),
        (1, vec![case.peer("a")]),
        (0, vec![case.network()]),
    ]);
    let log = case.wait_for(|_, status| status.is_settled());
    assert_eq!(log, ["post", "add-a", "add-b"]);
    case.update(vec![(1, vec![case.peer("a")])]);
    case.replace(vec![(0, vec![case.network()]), (2, vec![case.peer("b")])]);
    let log = case.wait_for(|log, status| status.is_settled() && log.len() == 4);
    assert_eq!(log[3], "remove-a", "and what is unchanged is not run again");
    case.replace(Vec::new());
    let log = case.wait_for(|log, _| log.len() == 6);
    assert_eq!(log[4..], ["remove-b", "shutdown"]);
}

#[test]
fn a_hook_that_has_changed_is_run_again_and_not_undone() {
    let case = Case::new();
    case.replace(vec![(1, vec![case.peer("a")])]);
    case.wait_for(|_, status| status.is_settled());
    let other = Hook { key: case.peer("a").key, ..case.peer("other") };
    case.update(vec![(1, vec![other])]);
    assert_eq!(case.wait_for(|log, _| log.len() == 2), ["add-a", "add-other"]);
}

#[test]
fn what_fails_is_named_and_tried_again_and_peers_wait_for_the_network() {
    let case = Case::new();
    touch(&case.path("broken-post"));
    case.replace(vec![(0, vec![case.network()]), (1, vec![case.peer("a")])]);
    case.wait_for(|log, status| {
        let problem =
            status.problems.iter().find(|problem| problem.importance == Importance::Foundation);
        log.len() == 1
            && problem.is_some_and(|p| p.to_string() == "PostStartupCommand: exit status: 1")
    });
    std::fs::remove_file(case.path("broken-post")).unwrap();
    let log = case.wait_for(|_, status| status.is_settled());
    assert_eq!(log.last().unwrap(), "add-a");
    assert!(log.len() >= 3 && log[..log.len() - 1].iter().all(|word| word == "post"), "{log:?}");
}

#[test]
fn one_peer_that_fails_does_not_hold_up_the_others() {
    let case = Case::new();
    touch(&case.path("broken-add-a"));
    case.replace(vec![(1, vec![case.peer("a")]), (2, vec![case.peer("b")])]);
    case.wait_for(|log, status| log.contains(&"add-b".to_owned()) && status.bad == 1);
}

#[test]
fn a_removal_that_fails_is_tried_again() {
    let case = Case::new();
    case.replace(vec![(1, vec![case.peer("a")])]);
    case.wait_for(|_, status| status.is_settled());
    touch(&case.path("broken-remove-a"));
    case.update(vec![(1, Vec::new())]);
    case.wait_for(|log, _| log.len() == 2);
    std::fs::remove_file(case.path("broken-remove-a")).unwrap();
    assert_eq!(case.wait_for(|log, _| log.len() == 3)[2], "remove-a");
}

#[test]
fn at_the_end_the_shutdown_command_is_run_once_and_nothing_else() {
    let case = Case::new();
    case.replace(vec![(0, vec![case.network()]), (1, vec![case.peer("a")])]);
    case.wait_for(|_, status| status.is_settled());
    case.runtime.block_on(case.runner.stop());
    case.runtime.block_on(case.runner.stop());
    case.update(vec![(2, vec![case.peer("b")])]);
    assert_eq!(case.log(), ["post", "add-a", "shutdown"]);
}

#[test]
fn what_is_wanted_no_more_when_it_ends_is_undone_all_the_same() {
    let case = Case::new();
    case.replace(vec![(0, vec![case.network()]), (1, vec![case.peer("a")])]);
    case.wait_for(|_, status| status.is_settled());
    case.replace(Vec::new());
    case.runtime.block_on(case.runner.stop());
    assert_eq!(case.log(), ["post", "add-a", "remove-a", "shutdown"]);
}
