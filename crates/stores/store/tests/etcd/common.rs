//! What most tests need.

use std::time::Duration;

use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet};
use flannel_store::testing::{EtcdServer, plain};
use flannel_store::{Claim, StoreEvent};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Longer than any test should wait for something that does happen.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(40);

pub(crate) fn network(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json).unwrap()
}

/// 10.3.0.0/16 in /24 subnets.
pub(crate) fn v4_network() -> NetworkConfig {
    network(r#"{"Network":"10.3.0.0/16"}"#)
}

pub(crate) fn subnet(key: &str) -> Subnet {
    key.parse().unwrap()
}

pub(crate) fn attrs(public_ip: &str) -> LeaseAttrs {
    LeaseAttrs { public_ip: Some(public_ip.parse().unwrap()), ..LeaseAttrs::default() }
}

pub(crate) fn lease(key: &str, public_ip: &str) -> Lease {
    Lease { subnet: subnet(key), attrs: attrs(public_ip) }
}

pub(crate) fn claim(public_ip: &str) -> Claim {
    Claim::new(attrs(public_ip), None)
}

/// The value of a lease that says no more than this address.
pub(crate) fn value(public_ip: &str) -> String {
    format!(r#"{{"PublicIP":"{public_ip}","PublicIPv6":null}}"#)
}

pub(crate) fn config_key() -> String {
    format!("{}/config", EtcdServer::PREFIX)
}

/// Where every flannel keeps leases.
pub(crate) fn subnets() -> String {
    format!("{}/subnets/", EtcdServer::PREFIX)
}

pub(crate) fn v6_subnets() -> String {
    format!("{}/v6-subnets/", EtcdServer::PREFIX)
}

pub(crate) fn key(subnet: &str) -> String {
    subnets() + subnet
}

/// The next event, without version and reservation.
pub(crate) async fn next(events: &mut Receiver<StoreEvent>) -> StoreEvent {
    let event = timeout(WAIT_LIMIT, events.recv()).await.expect("an event comes in time");
    plain(event.expect("the watch goes on"))
}

/// Events up to one that fulfils the condition, that one included.
pub(crate) async fn until(
    events: &mut Receiver<StoreEvent>,
    condition: impl Fn(&StoreEvent) -> bool,
) -> Vec<StoreEvent> {
    let mut seen = vec![];
    while !seen.last().is_some_and(&condition) {
        seen.push(next(events).await);
    }
    seen
}

/// Waits until something becomes true that happens behind our back.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let wait = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, wait).await.unwrap_or_else(|_| panic!("still not so: {what}"));
}
