//! Leases for the page.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flannel_lease::{NetworkName, Subnet};
use flannel_page::{LeaseRow, LeaseSource, LeaseTable};
use flannel_store::KeptLease;

use crate::LeaseService;

pub(crate) struct LeasesOfPage(pub(crate) Arc<dyn LeaseService>);

#[async_trait]
impl LeaseSource for LeasesOfPage {
    fn store(&self) -> String {
        "lease server".to_owned()
    }

    fn networks(&self) -> Vec<NetworkName> {
        self.0.watch_logs().names()
    }

    async fn read(&self, network: &NetworkName) -> Result<LeaseTable, String> {
        let subnets = self.0.subnets();
        let Some(watch_log) = self.0.watch_logs().get(network) else {
            return Ok(LeaseTable { config: None, subnets, leases: Vec::new() });
        };
        let all = watch_log.snapshot();
        let (now, served) = (SystemTime::now(), self.0.now());
        let row = |(subnet, kept): (Subnet, KeptLease)| {
            let KeptLease { attrs, expires, owner, .. } = kept;
            // Leases end by the server's time, and are shown by the machine's.
            let left = |end: u64| Duration::from_millis(end.saturating_sub(served));
            LeaseRow {
                subnet,
                name: owner.or(attrs.owner).map(String::from),
                v4: attrs.public_ip,
                v6: attrs.public_ipv6,
                backend: attrs.backend_type.into(),
                ends: expires.map(|end| now + left(end)),
            }
        };
        let leases = all.leases.into_iter().map(row).collect();
        Ok(LeaseTable { config: all.config, subnets, leases })
    }
}
