//! STATUS asks flanneld itself: it must run, and its network must work.
//!
//! A node whose STATUS fails is not ready, and its pods are taken out of their services. So it does not fail while
//! flanneld is replaced: pods are attached and reach each other as before. When flanneld was first missed is noted
//! beside its socket; it has a minute from then.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use flannel_state::{DaemonState, SOCKET_NAME, Verdict};

use crate::protocol::{Code, Error, Result};

/// The file that notes by its time since when no flanneld is at work; beside its socket.
pub const ABSENCE_NOTE: &str = "flanneld.absent";

/// As long as a new image of usual size takes to be pulled and started.
const MISSING_DAEMON_GRACE: Duration = Duration::from_secs(60);
/// A daemon answers within milliseconds.
const DAEMON_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Its state is some kilobytes, without a line for each peer.
const ANSWER_LIMIT: u64 = 1 << 20;

/// The Go flanneld has no socket: its subnet file is all that is known of it.
pub(super) fn ask(subnet_file: &Path, now: SystemTime) -> Result<()> {
    let socket = subnet_file.with_file_name(SOCKET_NAME);
    let note = subnet_file.with_file_name(ABSENCE_NOTE);
    let Some(why) = trouble(&socket) else {
        let _ = fs::remove_file(&note);
        return Ok(());
    };
    match absent_since(&note, now) {
        Ok(since) if now.duration_since(since).unwrap_or_default() < MISSING_DAEMON_GRACE => Ok(()),
        _ => Err(Error::new(Code::NotAvailable, why)),
    }
}

/// Why pods must not be started here, if that is so.
fn trouble(socket: &Path) -> Option<String> {
    match state(socket) {
        Ok(state) if state.verdict() < Verdict::NotReady => None,
        Ok(state) => {
            let bad = state.networks.into_iter().find(|it| it.verdict == Verdict::NotReady);
            let why = bad.and_then(|network| network.why).unwrap_or_default();
            Some(format!("flanneld is not ready: {why}. Check the flannel pod log for this node."))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!(
            "flanneld does not run, or does not answer at {}: {error}. Check the flannel pod of this node.",
            socket.display()
        )),
    }
}

fn state(socket: &Path) -> io::Result<DaemonState> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DAEMON_ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(DAEMON_ANSWER_TIMEOUT))?;
    stream.write_all(b"GET /v1/state HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
    let end = b"\r\n\r\n";
    let header = answer.windows(end.len()).position(|window| window == end);
    let body = header.map(|at| &answer[at + end.len()..]).unwrap_or_default();
    serde_json::from_slice(body).map_err(io::Error::other)
}

/// A note from the future is of a clock that has been set back: it says nothing.
fn absent_since(note: &Path, now: SystemTime) -> io::Result<SystemTime> {
    match fs::metadata(note).and_then(|found| found.modified()) {
        Ok(since) if since <= now => Ok(since),
        _ => {
            let file = fs::File::create(note)?;
            file.set_modified(now)?;
            Ok(now)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    use flannel_state::NetworkState;

    use super::*;

    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// What STATUS says so long after the beginning.
        fn after(&self, seconds: u64) -> Result<()> {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds);
            ask(&self.path("subnet.env"), now)
        }

        /// A daemon that answers so many times, and is then dead.
        fn answers(&self, times: usize, verdict: Verdict) -> thread::JoinHandle<()> {
            let _ = fs::remove_file(self.path(SOCKET_NAME));
            let listener = UnixListener::bind(self.path(SOCKET_NAME)).unwrap();
            let network = NetworkState {
                verdict,
                why: Some("no route to the store".into()),
                ..NetworkState::starting("_")
            };
            let state = DaemonState {
                schema: flannel_state::SCHEMA,
                version: "v".into(),
                hostname: "node".into(),
                started: "2026-01-01T00:00:00Z".into(),
                now: "2026-01-01T00:00:00Z".into(),
                networks: vec![network],
            };
            let state = serde_json::to_string(&state).unwrap();
            thread::spawn(move || {
                for _ in 0..times {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut request = [0; 26];
                    stream.read_exact(&mut request).unwrap();
                    assert_eq!(&request, b"GET /v1/state HTTP/1.0\r\n\r\n");
                    write!(stream, "HTTP/1.0 200 OK\r\n\r\n{state}").unwrap();
                }
            })
        }
    }

    #[test]
    fn a_dead_flanneld_has_a_minute_to_come_back_before_the_node_is_not_ready() {
        let node = Node::new();
        let daemon = node.answers(1, Verdict::Ready);
        node.after(0).unwrap();
        daemon.join().unwrap();
        node.after(10).unwrap();
        node.after(69).unwrap();
        let error = node.after(70).unwrap_err();
        assert_eq!(error.code, Code::NotAvailable as u32);
        assert!(error.msg.starts_with("flanneld does not run"), "{error}");

        let daemon = node.answers(1, Verdict::Ready);
        node.after(71).unwrap();
        daemon.join().unwrap();
        node.after(72).unwrap();
    }

    #[test]
    fn a_network_that_is_not_ready_is_said_with_its_reason() {
        let node = Node::new();
        let daemon = node.answers(2, Verdict::NotReady);
        node.after(0).unwrap();
        let error = node.after(60).unwrap_err();
        assert_eq!(error.code, Code::NotAvailable as u32);
        assert!(error.msg.contains("not ready: no route to the store"), "{error}");
        daemon.join().unwrap();
    }

    /// Forwarding may be off before the first pod, which switches it on.
    #[test]
    fn what_the_first_pod_may_mend_does_not_keep_it_away() {
        let node = Node::new();
        let daemon = node.answers(2, Verdict::CutOff);
        node.after(0).unwrap();
        node.after(600).unwrap();
        daemon.join().unwrap();
    }

    #[test]
    fn of_the_go_flanneld_no_socket_is_expected() {
        let node = Node::new();
        node.after(0).unwrap();
        node.after(600).unwrap();
        assert!(!node.path(ABSENCE_NOTE).exists());
    }

    #[test]
    fn a_clock_that_was_set_back_makes_nobody_dead() {
        let node = Node::new();
        let daemon = node.answers(0, Verdict::Ready);
        daemon.join().unwrap();
        node.after(1000).unwrap();
        node.after(0).unwrap();
        node.after(59).unwrap();
        node.after(60).unwrap_err();
    }
}
