//! Tunnel processes, which outlive flanneld: found by their sockets, and ended with their devices.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use flannel_tunnel::{Client, TunnelError, end_processes, sockets};

use super::Report;

pub(super) fn clean(report: &mut Report, directory: &Path) {
    let mut found: Vec<_> = sockets(directory).collect();
    found.sort();
    for (device, socket) in found {
        report.clean(format!("tunnel process of {device}"), || {
            // A socket that nobody listens on is all that is left of a process.
            match Client::find(&socket) {
                Ok(Some((client, _))) => client.remove()?,
                Ok(None) => {}
                Err(TunnelError::Hung { .. }) => end_processes(&device)?,
                Err(error) => return Err(error.into()),
            }
            fs::remove_file(&socket).with_context(|| socket.display().to_string())
        });
    }
}
