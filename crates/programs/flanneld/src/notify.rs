//! Tells systemd how the daemon is. Without `NOTIFY_SOCKET`, as in a container, nothing happens.

use sd_notify::NotifyState;

pub fn ready() {
    send(&[NotifyState::Ready]);
}

pub fn status(status: &str) {
    send(&[NotifyState::Status(&one_line(status))]);
}

pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    // A supervisor that does not listen is not a reason to stop.
    if let Err(error) = sd_notify::notify(states) {
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
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use tracing_subscriber::layer::{Context, SubscriberExt as _};
    use tracing_subscriber::util::SubscriberInitExt as _;

    use super::*;

    /// The child that the tests below start: the environment is a process's own.
    #[test]
    #[ignore = "started by the tests below"]
    fn say_all_to_whoever_listens() {
        tracing_subscriber::registry().with(WarningsToStderr).init();
        ready();
        status("10.244.1.0/24 through eth0\nSTOPPING=1");
        stopping();
    }

    struct WarningsToStderr;

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for WarningsToStderr {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            eprintln!("{} {event:?}", event.metadata().level());
        }
    }

    /// Returns what the child logged.
    fn say_all(socket: Option<&Path>) -> String {
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        let child_test = "notify::tests::say_all_to_whoever_listens";
        child.args(["--ignored", "--exact", child_test, "--nocapture"]);
        child.env_remove("NOTIFY_SOCKET");
        child.envs(socket.map(|path| ("NOTIFY_SOCKET", path)));
        let output = child.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[test]
    fn systemd_hears_of_readiness_status_and_stopping() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
        let log = say_all(Some(&path));
        assert!(!log.contains("WARN"), "{log}");
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
    fn a_socket_nobody_listens_to_is_reported_and_no_socket_is_not() {
        let log = say_all(Some(Path::new("/nonexistent/notify")));
        assert!(log.contains("Cannot notify systemd: check NOTIFY_SOCKET"), "{log}");
        let log = say_all(None);
        assert!(!log.contains("WARN"), "{log}");
    }
}
