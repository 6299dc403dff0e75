//! Addresses at which this node is to be known, where an operator has written them into the store.

use std::time::Duration;

use flannel_common::Backoff;

use super::Setup;
use crate::readiness::Readiness;

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Asks until there is an answer: to go on without would be to announce another address.
pub(super) async fn take_from_store(setup: &mut Setup) {
    let mut tries = RETRY.tries(fastrand::Rng::with_seed(setup.seed));
    let written = loop {
        let error = match setup.store.public_addresses().await {
            Ok(written) => break written,
            Err(error) => error,
        };
        let pause = tries.pause();
        tracing::error!(
            "Cannot ask for this node's public addresses: {error}; next try in {pause:.0?}"
        );
        setup.report.say(Readiness::not_ready(error.to_string()));
        tokio::time::sleep(pause).await;
    };
    let wish = &mut setup.options.underlay;
    if written.v4.is_some() {
        wish.public_ip = written.v4;
    }
    if written.v6.is_some() {
        wish.public_ipv6 = written.v6;
    }
}
