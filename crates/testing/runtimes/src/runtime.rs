//! What tests do with any container runtime.

use std::time::Duration;

use flannel_lab::wait_until;

/// How long a server may take until it listens.
const LIMIT: Duration = Duration::from_secs(20);

pub trait Runtime {
    /// Starts a container in the runtime's network of pods; `options` are its own.
    fn start(&self, name: &str, options: &[&str], command: &[&str]);

    /// Runs the runtime's command with these words and returns what it printed.
    fn try_run(&self, words: &[&str]) -> flannel_lab::Result<String>;

    /// As [`Self::start`], for a server; returns when it listens.
    fn serve(&self, name: &str, options: &[&str], port: u16, command: &[&str]) {
        let text = port.to_string();
        let server = ["nc", "-ll", "-p", &text, "-e"];
        self.start(name, options, &[&server[..], command].concat());
        wait_until("the server to listen", LIMIT, || {
            let listening = self.exec(name, &["netstat", "-ltn"]).map_err(|e| e.to_string())?;
            if listening.contains(&format!(":{port} ")) { Ok(()) } else { Err(listening) }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs a command in a container and returns what it printed.
    fn exec(&self, name: &str, command: &[&str]) -> flannel_lab::Result<String> {
        let mut words = vec!["exec", name];
        words.extend(command);
        self.try_run(&words)
    }
}
