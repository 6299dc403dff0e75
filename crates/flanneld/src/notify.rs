//! Telling systemd how the daemon is. Without `NOTIFY_SOCKET` in the environment, as in a
//! container, nobody is told and nothing happens.

use std::io;

use sd_notify::NotifyState;

/// What the process was started for works.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// How it goes, as `systemctl status` shows it.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&one_line(status))]);
}

pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    report(sd_notify::notify(states));
}

/// A supervisor that does not listen is no reason to stop.
fn report(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::warn!(%error, "Cannot notify systemd: check NOTIFY_SOCKET");
    }
}

/// A line break would begin another assignment of the protocol.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Runs as the child of the next test, with a socket, or as a test of its own, without one.
    #[test]
    fn notifying_never_fails() {
        ready();
        status("10.244.1.0/24 through eth0\nSTOPPING=1");
        stopping();
    }

    #[test]
    fn systemd_hears_of_readiness_status_and_stopping() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
        // The environment is the process's own, so only another process can have this one.
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "notify::tests::notifying_never_fails"])
            .env("NOTIFY_SOCKET", &path)
            .output()
            .expect("it runs");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        let mut heard = Vec::new();
        for _ in 0..3 {
            let mut bytes = [0; 256];
            let length = socket.recv(&mut bytes).expect("a message");
            heard.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        assert_eq!(
            heard,
            ["READY=1\n", "STATUS=10.244.1.0/24 through eth0 STOPPING=1\n", "STOPPING=1\n",]
        );
    }

    #[test]
    fn a_socket_nobody_listens_to_is_only_reported() {
        report(Err(io::Error::from(io::ErrorKind::ConnectionRefused)));
    }
}
