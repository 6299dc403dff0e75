//! Options of the connection to etcd.

use std::path::PathBuf;

pub use flannel_common::Secret;
use flannel_lease::NetworkName;

use super::ClusterPin;

/// The `--etcd-*` options.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// `http://host:port`, `https://host:port`, or `host:port`, which means TLS where there are files for it.
    pub endpoints: Vec<String>,
    /// Prefix of flannel's keys, e.g. `/coreos.com/network`.
    pub prefix: String,
    /// CA bundle that signed etcd's certificate; without it the system's roots are trusted.
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub username: Option<String>,
    pub password: Option<Secret>,
    /// The cluster that all endpoints must be members of.
    pub cluster: ClusterPin,
}

impl EtcdOptions {
    /// Options of the network of that name in the same etcd.
    #[must_use]
    pub fn of_network(mut self, name: &NetworkName) -> Self {
        if !name.is_default() {
            self.prefix = format!("{}/{name}", self.prefix);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_does_not_show_in_the_options() {
        let options = EtcdOptions {
            username: Some("flannel".to_owned()),
            password: Some(Secret::new("hunter2")),
            ..EtcdOptions::default()
        };
        let shown = format!("{options:?}");
        assert!(shown.contains("flannel") && !shown.contains("hunter2"), "{shown}");
    }
}
