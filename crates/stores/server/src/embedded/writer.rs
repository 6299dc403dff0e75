//! The one thread that owns the lease state. Requests that wait while the disk is busy are carried out together with one
//! sync; nobody is answered, and nothing is published, before that has succeeded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flannel_common::Work;
use flannel_lease::NetworkName;
use flannel_store::Refusal;
use tokio::sync::oneshot;

use super::AskError;
use super::journal::Journal;
use super::recent::RecentCommits;
use crate::clock::Clock;
use crate::lease_state::{Commit, LeaseState, Reply, Request, Undo};
use crate::metrics::LogFigures;
use crate::watch_log::WatchLogs;

const MAX_GROUP: usize = 512;
/// Interval at which the time is written when nothing else is.
const TIME_NOTE_INTERVAL: Duration = Duration::from_secs(600);
/// Time by which a lease may outlive its end.
const EXPIRY_SLACK: Duration = Duration::from_millis(250);
/// Pause in requests after which the acknowledged revision is noted, and the interval at which it is noted without one.
const ACKNOWLEDGE_NOTE_DELAY: Duration = Duration::from_millis(20);
const ACKNOWLEDGE_NOTE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Job {
    pub(super) network: NetworkName,
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Result<Reply, AskError>>,
}

pub(super) struct Writer {
    pub(super) lease_state: LeaseState,
    pub(super) journal: Journal,
    pub(super) recent: RecentCommits,
    pub(super) watch_logs: Arc<WatchLogs>,
    pub(super) clock: Clock,
    pub(super) rng: fastrand::Rng,
    pub(super) waiting: Vec<Job>,
    pub(super) asked_at: Instant,
    pub(super) noted_at: Instant,
    pub(super) failing: bool,
    pub(super) figures: Arc<LogFigures>,
}

type Answer = (oneshot::Sender<Result<Reply, AskError>>, Result<Reply, Refusal>);

impl Work for Writer {
    type Command = Job;

    fn carry_out(&mut self, job: Job) {
        self.asked_at = Instant::now();
        self.waiting.push(job);
        if self.waiting.len() >= MAX_GROUP {
            self.tick();
        }
    }

    fn tick(&mut self) {
        // A tick without a request is no pause yet: a worker is also woken by one that it has carried out already.
        let is_due = self.asked_at.elapsed() >= ACKNOWLEDGE_NOTE_DELAY
            || self.noted_at.elapsed() >= ACKNOWLEDGE_NOTE_INTERVAL;
        if is_due && self.is_unnoted() {
            self.note_acknowledged();
            self.noted_at = Instant::now();
        }
        let group = std::mem::take(&mut self.waiting);
        self.carry_out_group(group);
    }

    fn next_wake(&self) -> Option<Instant> {
        let deadline = self.next_deadline();
        let quiet = deadline.min(ACKNOWLEDGE_NOTE_DELAY);
        Some(Instant::now() + if self.is_unnoted() { quiet } else { deadline })
    }
}

/// Nobody is left who could send a request.
impl Drop for Writer {
    fn drop(&mut self) {
        // What a panic has left in memory need not be on the disk.
        if !std::thread::panicking() {
            self.note_acknowledged();
        }
    }
}

impl Writer {
    fn is_unnoted(&self) -> bool {
        !self.failing && self.journal.is_unnoted(&self.lease_state)
    }

    /// Notes the acknowledged revision. Nobody waits for it; a failure is tried again with the next change.
    fn note_acknowledged(&mut self) {
        if let Err(error) = self.journal.note_acknowledged(&self.lease_state) {
            tracing::debug!(%error, "cannot note the acknowledged revision of the lease log");
        }
    }

    fn next_deadline(&self) -> Duration {
        let now = self.clock.now();
        let expiry = self.lease_state.next_expiry().map_or(TIME_NOTE_INTERVAL, |at| {
            Duration::from_millis(at.saturating_sub(now)).max(EXPIRY_SLACK)
        });
        let tick = Duration::from_millis(
            (self.lease_state.time + TIME_NOTE_INTERVAL.as_millis() as u64).saturating_sub(now),
        );
        expiry.min(tick.max(EXPIRY_SLACK))
    }

    fn carry_out_group(&mut self, group: Vec<Job>) {
        let now = self.clock.now();
        let mut commits = Vec::new();
        let mut undos = Vec::new();
        let mut answers: Vec<Answer> = Vec::with_capacity(group.len());
        if let Some(expired) = self.lease_state.expire(now) {
            self.apply(expired, &mut commits, &mut undos);
        }
        for job in group {
            match self.lease_state.decide(&job.network, &job.request, now, &mut self.rng) {
                Ok((reply, commit)) => {
                    if let Some(commit) = commit {
                        self.apply(commit, &mut commits, &mut undos);
                    }
                    answers.push((job.reply, Ok(reply)));
                }
                Err(refusal) => answers.push((job.reply, Err(refusal))),
            }
        }
        let overdue =
            now.saturating_sub(self.lease_state.time) >= TIME_NOTE_INTERVAL.as_millis() as u64;
        if commits.is_empty() && overdue {
            self.apply(self.lease_state.tick(now), &mut commits, &mut undos);
        }
        match self.write(&commits) {
            Ok(()) => {
                commits.iter().for_each(|commit| self.watch_logs.publish(commit));
                commits.into_iter().for_each(|commit| self.recent.push(commit));
                for (asker, answer) in answers {
                    // A caller that is gone needs no answer.
                    let _ = asker.send(answer.map_err(AskError::Refused));
                }
                self.compact_log();
            }
            Err(reason) => {
                undos.into_iter().rev().for_each(|undo| self.lease_state.undo(undo));
                for (asker, _) in answers {
                    let _ = asker.send(Err(AskError::ReadOnly(reason.clone())));
                }
                // Without a pause, expired leases would cause another try at once.
                std::thread::sleep(EXPIRY_SLACK);
            }
        }
    }

    fn apply(&mut self, commit: Commit, commits: &mut Vec<Commit>, undos: &mut Vec<Undo>) {
        undos.push(self.lease_state.apply(&commit));
        commits.push(commit);
    }

    fn write(&mut self, commits: &[Commit]) -> Result<(), String> {
        if commits.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let written = self.journal.append(commits);
        self.figures.unwritable.store(written.is_err(), Ordering::Relaxed);
        match written {
            Ok(()) => {
                self.figures.sync.since(begin);
                self.note_length();
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the lease store is writable again");
                }
                Ok(())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(
                        %error,
                        "cannot write the lease store: leases stay as they are and are served, changes are refused until it is \
                         writable; make room, or make the file system writable"
                    );
                }
                Err(error.to_string())
            }
        }
    }

    pub(super) fn note_length(&self) {
        self.figures.log_bytes.store(self.journal.length, Ordering::Relaxed);
        self.figures.snapshot_bytes.store(self.journal.snapshot_length, Ordering::Relaxed);
    }

    fn compact_log(&mut self) {
        if !self.journal.needs_compaction() {
            return;
        }
        if let Err(error) = self.journal.compact(&self.lease_state, &self.recent) {
            tracing::warn!("Cannot compact the lease log: {error}; it keeps growing");
        }
        self.note_length();
    }
}
