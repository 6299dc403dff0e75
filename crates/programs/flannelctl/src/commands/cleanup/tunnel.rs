//! Tunnel processes, which outlive flanneld: found by their sockets, and ended with their devices.

use std::fs;
use std::path::Path;

use flannel_tunnel::{Client, TunnelError, end_processes, sockets};

pub(super) fn find(directory: &Path) -> Vec<String> {
    let mut found: Vec<String> = sockets(directory).map(|(device, _)| words(&device)).collect();
    found.sort();
    found
}

/// What went, and what would not.
pub(super) fn remove(directory: &Path) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    let mut found: Vec<_> = sockets(directory).collect();
    found.sort();
    for (device, socket) in found {
        // A socket that nobody listens on is all that is left of a process.
        let ended = match Client::find(&socket) {
            Ok(Some((client, _))) => client.remove(),
            Ok(None) => Ok(()),
            Err(TunnelError::Hung { .. }) => end_processes(&device).map_err(TunnelError::Lost),
            Err(error) => Err(error),
        };
        match ended.map_err(|error| error.to_string()).and_then(|()| {
            fs::remove_file(&socket).map_err(|error| format!("{}: {error}", socket.display()))
        }) {
            Ok(()) => removed.push(words(&device)),
            Err(error) => failures.push(format!("end the {}: {error}", words(&device))),
        }
    }
    (removed, failures)
}

fn words(device: &str) -> String {
    format!("tunnel process of {device}")
}
