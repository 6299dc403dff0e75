//! Commands whose output goes to a file, with a limit on their time.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::test_output::Ended;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Longer than any test program takes on a slow machine: what takes that long hangs.
pub(crate) const TEST_PROGRAM_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// Starts a command that prints to a file. Not to a pipe: a process that outlives its test would keep that open.
pub(crate) fn spawn_to_log(command: &mut Command, log: &Path) -> io::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Waits for a command, and kills it with all it has started when it takes too long. Says how it ended, and how much
/// processor time it and what it has waited for took.
pub(crate) fn wait(child: &mut Child, timeout: Duration) -> io::Result<(Ended, Duration)> {
    let started = Instant::now();
    let mut processor = Duration::ZERO;
    loop {
        // It can be read until `try_wait` has taken note of the end.
        processor = processor_time(child.id()).unwrap_or(processor);
        if let Some(status) = child.try_wait()? {
            return Ok((Ended::By(status), processor));
        }
        if started.elapsed() >= timeout {
            kill_with_descendants(child);
            return Ok((Ended::TimedOut { seconds: timeout.as_secs() }, processor));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Processor time of a process and of all its children that have ended.
fn processor_time(id: u32) -> Option<Duration> {
    const TICKS_A_SECOND: u64 = 100;
    let fields = stat_fields(id)?;
    let ticks = fields.split(' ').skip(11).take(4).filter_map(|it| it.parse::<u64>().ok());
    Some(Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS_A_SECOND))
}

/// What the kernel says of a process, from its state on.
fn stat_fields(id: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // A program's name may hold blanks and brackets.
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

pub(crate) fn kill_with_descendants(child: &mut Child) {
    let mut ids = descendants(child.id());
    ids.push(child.id());
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let _ = as_root(Command::new("kill").arg("-KILL").args(ids)).stderr(Stdio::null()).status();
    let _ = child.wait();
}

fn descendants(of: u32) -> Vec<u32> {
    let processes: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((id, stat_fields(id)?.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(processes.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        next += 1;
    }
    found.split_off(1)
}

/// The same command, by sudo for an ordinary user.
pub(crate) fn as_root(command: &Command) -> Command {
    if is_root() { prefixed(&[], command) } else { prefixed(&["sudo", "-E"], command) }
}

/// The same command, started by the words before it.
pub(crate) fn prefixed(words: &[&str], command: &Command) -> Command {
    let mut prefixed = match words.split_first() {
        Some((first, rest)) => {
            let mut prefixed = Command::new(first);
            prefixed.args(rest).arg(command.get_program());
            prefixed
        }
        None => Command::new(command.get_program()),
    };
    prefixed.args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        prefixed.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => prefixed.env(name, value),
            None => prefixed.env_remove(name),
        };
    }
    prefixed
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use super::*;

    #[test]
    fn command_that_hangs_is_killed_with_what_it_started() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 300 & sleep 301; :"]).spawn().unwrap();
        while descendants(child.id()).len() < 2 {
            thread::sleep(Duration::from_millis(5));
        }
        let started = descendants(child.id());
        let (ended, _) = wait(&mut child, Duration::from_millis(10)).unwrap();
        assert!(matches!(ended, Ended::TimedOut { .. }));
        let lives = |id: &u32| stat_fields(*id).is_some_and(|fields| !fields.starts_with('Z'));
        let deadline = Instant::now() + Duration::from_secs(60);
        while started.iter().any(lives) {
            assert!(Instant::now() < deadline, "{started:?} live on");
            thread::sleep(Duration::from_millis(5));
        }
    }
    #[test]
    fn processor_time_of_a_command_counts_what_it_has_started() {
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let mut child =
            Command::new("sh").args(["-c", &format!("sh -c '{work}'; :")]).spawn().unwrap();
        let (ended, processor) = wait(&mut child, TEST_PROGRAM_TIMEOUT).unwrap();
        assert!(ended.is_success());
        assert!(processor > Duration::ZERO, "{processor:?}");
    }
}
