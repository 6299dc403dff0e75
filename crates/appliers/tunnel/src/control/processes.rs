//! Tunnel processes as the system sees them: which ones serve a device, whether one is stopped, and their end.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::service::{PROCESS_NAME, SUBCOMMAND};

/// Time for a process to end after it was killed. One that waits for a disk may take longer.
const KILL_LIMIT: Duration = Duration::from_secs(5);
const KILL_PAUSE: Duration = Duration::from_millis(2);

/// Processes of a device in this network namespace.
pub(super) fn of_device(device: &str) -> Vec<Pid> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let Some(here) = namespace(Path::new("/proc/self")) else { return Vec::new() };
    let command = format!("{PROCESS_NAME}\0{SUBCOMMAND}\0{device}\0");
    let serves = |process: &Path| {
        fs::read(process.join("cmdline")).is_ok_and(|found| found == command.as_bytes())
            && namespace(process).as_ref() == Some(&here)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        serves(&entry.path()).then_some(pid)
    });
    found.collect()
}

pub(super) fn why_stopped(pid: Pid) -> Option<&'static str> {
    match ProcessState::of(pid)?.letter {
        'T' => Some("it is stopped (SIGSTOP)"),
        't' => Some("a debugger holds it"),
        _ => None,
    }
}

/// Kills processes, and returns when they have ended: none of their threads does anything any more.
pub(super) fn end(processes: &[Pid]) -> io::Result<()> {
    for pid in processes {
        let _ = kill_process(*pid, Signal::KILL);
    }
    processes.iter().try_for_each(|pid| wait_for_end(*pid, KILL_LIMIT))
}

/// Waits until a process has ended. A zombie has.
pub(super) fn wait_for_end(pid: Pid, limit: Duration) -> io::Result<()> {
    let end = Instant::now() + limit;
    while let Some(state) = ProcessState::of(pid).filter(|state| !state.has_ended()) {
        if Instant::now() >= end {
            let letter = state.letter;
            let why = format!("process {pid} does not end (state {letter}): see /proc/{pid}/stack");
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        std::thread::sleep(KILL_PAUSE);
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct ProcessState {
    letter: char,
    threads: usize,
}

impl ProcessState {
    fn of(pid: Pid) -> Option<Self> {
        Self::read(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads a line of `/proc/PID/stat`. The name, in parentheses, may hold anything.
    fn read(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let letter = fields.next()?.chars().next()?;
        // The third field is the state, the twentieth the number of threads.
        let threads = fields.nth(16)?.parse().ok()?;
        Some(Self { letter, threads })
    }

    /// Whether it has ended. The first thread may have ended before others have.
    fn has_ended(&self) -> bool {
        matches!(self.letter, 'Z' | 'X') && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_whatever_the_name_of_the_process() {
        let line = |letter| {
            format!(
                "77 (flannel) T (x) {letter} 1 77 77 0 -1 4194624 1 0 0 0 1 2 0 0 20 0 6 0 99 1"
            )
        };
        let state = |letter| ProcessState { letter, threads: 6 };
        assert_eq!(ProcessState::read(&line('t')), Some(state('t')));
        assert!(!state('Z').has_ended() && ProcessState { letter: 'Z', threads: 1 }.has_ended());
        assert_eq!(ProcessState::read("77 (x)"), None);
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs_and_is_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = Pid::from_child(&child);
        assert_eq!(why_stopped(pid), None);
        kill_process(pid, Signal::STOP).expect("it is there");
        while why_stopped(pid).is_none() {
            std::thread::yield_now();
        }
        end(&[pid]).expect("it ends");
        assert!(child.wait().is_ok_and(|status| !status.success()));
    }
}
