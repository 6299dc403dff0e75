//! The subnet file follows the network; CNI plugins read it.

use std::time::Instant;

use flannel_lease::SubnetFile;

use super::Daemon;
use super::timing::{SUBNET_FILE_LOOK, SUBNET_FILE_RETRY};
use crate::subnet_file;

impl Daemon {
    pub(super) fn write_subnet_file(&mut self) {
        let (config, subnet) = (self.network.config(), self.own.subnet());
        // While a subnet of the new network is waited for, pods are better told the old one, whole.
        if !config.accepts(&subnet) || self.own.is_anothers() {
            self.subnet_file_due = Instant::now() + SUBNET_FILE_LOOK;
            return;
        }
        let content = SubnetFile {
            network: config.v4.map(|source| source.network()),
            subnet: subnet.v4(),
            ipv6_network: config.v6.map(|source| source.network()),
            ipv6_subnet: subnet.v6(),
            mtu: self.network.mtu(),
            ip_masq: self.setup.options.traffic.ip_masq,
        };
        let path = &self.setup.subnet_file;
        let failed_before = self.subnet_file_error.take().is_some();
        self.subnet_file_due = Instant::now() + SUBNET_FILE_LOOK;
        match subnet_file::write(path, &content) {
            Ok(subnet_file::Written::New) => {
                tracing::info!("Wrote subnet file to {}", path.display());
            }
            Ok(subnet_file::Written::Unchanged) => {}
            Err(error) => {
                if !failed_before {
                    tracing::warn!(
                        "{error}; pods cannot be started before it is there, trying again"
                    );
                }
                self.subnet_file_error = Some(error.to_string());
                self.subnet_file_due = Instant::now() + SUBNET_FILE_RETRY;
            }
        }
    }

    /// Whoever tidies up below `/run` may have taken it away, and without it no pod is started.
    pub(super) fn look_at_subnet_file(&mut self) {
        let path = &self.setup.subnet_file;
        let is_due = self.network.config().accepts(&self.own.subnet()) && !self.own.is_anothers();
        if is_due && self.subnet_file_error.is_none() && !path.exists() {
            tracing::warn!(
                event = "file-restored",
                "Somebody has removed the subnet file {}: it is written anew",
                path.display()
            );
        }
        self.write_subnet_file();
    }
}
