//! The applier of hooks: runs the commands that are wanted.
//!
//! One after the other, in a thread of its own, so that nobody who declares wishes waits for a command. A failed
//! command is run again, after growing pauses. That somebody undoes what a command did cannot be seen from here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use flannel_common::{Backoff, RepairPolicy, Work, Worker};
use flannel_entries::commands::{Command, Hook, HookKey};
use flannel_wanted::{
    Applier, COMMAND_QUEUE, Comparison, KeyedEntry, Requester, Status, StatusPublisher, Wanted,
    WorkerHandle,
};
use tokio::sync::oneshot;

use crate::command::{MAX_SHOWN_CHARS, run};

const POLICY: RepairPolicy =
    RepairPolicy { at_once: 0, calm: Duration::from_secs(60), undone: RETRY, refused: RETRY };
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Number of attempts of a command that undoes something: what it should remove may be gone already.
const MAX_UNDO_ATTEMPTS: u32 = 5;

#[derive(Clone)]
pub struct CommandRunner<S>(WorkerHandle<S, Hook, (), Stop>);

/// Request to undo the network's command.
type Stop = oneshot::Sender<()>;
type Job<S> = flannel_wanted::Command<S, Hook, (), Stop>;

impl<S: Requester> CommandRunner<S> {
    pub fn new(seed: u64) -> Self {
        Self(WorkerHandle::lazy("command runner", move |status| {
            Worker::start("commands", COMMAND_QUEUE, move || HookWork::new(status, seed))
        }))
    }
}

impl<S: Requester> Applier for CommandRunner<S> {
    type Requester = S;
    type Entry = Hook;
    /// What earlier runs have done is not known.
    type Ownership = ();
    type Other = Stop;

    fn handle(&self) -> &WorkerHandle<S, Hook, (), Stop> {
        &self.0
    }

    /// Undoes the network's command; those of peers stay, as they do on a crash.
    async fn stop(&self) {
        let _ = self.0.ask(Job::Other).await;
    }
}

struct HookWork<S> {
    wanted: Wanted<S, Hook>,
    /// Hooks to be run, the network's first.
    due: BTreeSet<HookKey>,
    /// Something may have become due since `due` was filled.
    changed: bool,
    /// Hooks that have been run, and so are to be undone one day.
    begun: BTreeSet<HookKey>,
    undoing: BTreeMap<HookKey, Undoing>,
    /// Comparisons that are answered when everything they made due has been run.
    comparing: Vec<oneshot::Sender<Comparison>>,
    stopped: bool,
    status: StatusPublisher,
    rng: fastrand::Rng,
}

struct Undoing {
    command: Command,
    tries: u32,
    due: Instant,
}

impl<S: Requester> Work for HookWork<S> {
    type Command = Job<S>;

    fn carry_out(&mut self, job: Job<S>) {
        let (unwanted, answer) = match job {
            Job::Replace((), desired, answer) => (self.wanted.replace(desired), answer),
            Job::Update(changes, answer) => (self.wanted.update(changes), answer),
            Job::Status(answer) => (Vec::new(), answer),
            Job::Report(report) => return report.answer(&self.wanted, |tally| tally),
            // The effects of commands cannot be seen: those that have failed are run again.
            Job::Compare(answer) => {
                if self.comparing.is_empty() {
                    self.wanted.begin_comparison();
                }
                self.comparing.push(answer);
                self.changed = true;
                if self.stopped {
                    self.end_comparing();
                }
                return;
            }
            Job::Other(answer) => {
                self.stop();
                let _ = answer.send(());
                return;
            }
        };
        self.changed = true;
        self.let_go(unwanted);
        let _ = answer.send(Status::of(&self.wanted));
    }

    /// Runs one command at a time: declarations are handled before the next.
    fn tick(&mut self) {
        if !self.stopped {
            self.step();
        }
        self.end_comparing();
        self.status.publish(Status::of(&self.wanted));
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        let runnable = self.changed || self.next().is_some();
        let now = runnable.then(Instant::now);
        let undoing = self.undoing.values().map(|undoing| undoing.due);
        now.into_iter().chain(self.wanted.next_wake()).chain(undoing).min()
    }
}

impl<S: Requester> HookWork<S> {
    fn new(status: StatusPublisher, seed: u64) -> Self {
        Self {
            wanted: Wanted::new(POLICY),
            due: BTreeSet::new(),
            changed: false,
            begun: BTreeSet::new(),
            undoing: BTreeMap::new(),
            comparing: Vec::new(),
            stopped: false,
            status,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    fn end_comparing(&mut self) {
        let is_over = self.stopped || !self.changed && self.next().is_none();
        if self.comparing.is_empty() || !is_over {
            return;
        }
        let comparison = self.wanted.end_comparison(Instant::now());
        for answer in self.comparing.drain(..) {
            let _ = answer.send(comparison.clone());
        }
    }

    fn let_go(&mut self, unwanted: Vec<Hook>) {
        for Hook { key, undo, .. } in unwanted {
            if self.begun.remove(&key)
                && let Some(command) = undo
            {
                self.undoing.insert(key, Undoing { command, tries: 0, due: Instant::now() });
            }
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        let due = self.undoing.iter().rev().find(|(_, undoing)| undoing.due <= now);
        if let Some(key) = due.map(|(key, _)| key.clone()) {
            self.undo(key);
            return;
        }
        if self.wanted.next_wake().is_some_and(|due| due <= now) {
            self.wanted.wake(now);
            self.changed = true;
        }
        if std::mem::take(&mut self.changed) {
            let batch = self.wanted.batch();
            self.due.extend(self.wanted.entries(&batch).map(KeyedEntry::key));
        }
        if let Some(key) = self.next().cloned() {
            self.due.remove(&key);
            self.run(key);
        }
    }

    fn next(&self) -> Option<&HookKey> {
        let first = self.due.first()?;
        let waits =
            *first != HookKey::Network && self.wanted.is_good(&HookKey::Network) == Some(false);
        (!waits).then_some(first)
    }

    fn run(&mut self, key: HookKey) {
        if !self.wanted.is_marked(&key) {
            return;
        }
        let command = self.wanted.get(&key).and_then(|hook| hook.run.clone());
        let result = command.as_ref().map_or(Ok(()), |command| run_and_log(&key, command));
        self.begun.insert(key.clone());
        let Err(error) = result else { return self.wanted.succeeded(&key) };
        let retry = self.wanted.failed(&key, error.clone(), Instant::now(), &mut self.rng);
        if let (Some((pause, true)), Some(command)) = (retry, command) {
            let call = Hook::call(&key, &command);
            tracing::error!("{call} has failed: {error}; next try in {pause:.0?}");
        }
    }

    fn undo(&mut self, key: HookKey) {
        let Some(mut undoing) = self.undoing.remove(&key) else { return };
        // What is wanted again is about to be run again.
        if undoing.tries + 1 == MAX_UNDO_ATTEMPTS || self.wanted.get(&key).is_some() {
            return run_once(&key, &undoing.command);
        }
        if let Err(error) = run_and_log(&key, &undoing.command) {
            let pause = RETRY.pause(undoing.tries, &mut self.rng);
            let call = Hook::call(&key, &undoing.command);
            tracing::error!("{call} has failed: {error}; next try in {pause:.0?}");
            undoing.tries += 1;
            undoing.due = Instant::now() + pause;
            self.undoing.insert(key, undoing);
        }
    }

    fn stop(&mut self) {
        // What was about to be undone is not postponed until a time that does not come.
        for (key, Undoing { command, .. }) in std::mem::take(&mut self.undoing).into_iter().rev() {
            run_once(&key, &command);
        }
        let begun =
            !std::mem::replace(&mut self.stopped, true) && self.begun.contains(&HookKey::Network);
        let hook = self.wanted.get(&HookKey::Network).filter(|_| begun);
        if let Some(command) = hook.and_then(|hook| hook.undo.as_ref()) {
            run_once(&HookKey::Network, command);
        }
    }
}

fn run_once(key: &HookKey, command: &Command) {
    if let Err(error) = run_and_log(key, command) {
        let call = Hook::call(key, command);
        tracing::error!("{call} has failed: {error}; it is not tried again");
    }
}

fn run_and_log(key: &HookKey, command: &Command) -> Result<(), String> {
    let output = command.input.hide_in(&run(command)?);
    let call = Hook::call(key, command);
    match output.lines().next().map(|line| line.chars().take(MAX_SHOWN_CHARS).collect::<String>()) {
        Some(line) => tracing::info!("Ran {call}: {line}"),
        None => tracing::info!("Ran {call}"),
    }
    Ok(())
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
