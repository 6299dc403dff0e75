//! Addresses for the bridge's containers, from the built-in host-local or another plugin.

use std::net::IpAddr;

use crate::delegate::Delegate;
use crate::ipam::{self as host_local, AllocatedAddresses, HostLocal};
use crate::protocol::{Call, Command, Error, Plugin as _, Result, compact};

const BUILT_IN: &str = "host-local";

/// `kind`: the plugin; empty if addresses are somebody else's business.
pub(super) fn add(call: &Call, kind: &str) -> Result<AllocatedAddresses> {
    let given = match kind {
        "" => return Ok(AllocatedAddresses::default()),
        BUILT_IN => host_local::add(call)?,
        // Nobody knows whether it had given them before.
        _ => AllocatedAddresses {
            outcome: Delegate { kind, conf: &whole_conf(call) }.add(call)?.outcome,
            earlier: false,
        },
    };
    if given.outcome.ips.is_empty() {
        return Err(Error::internal("IPAM plugin returned missing IP config"));
    }
    Ok(given)
}

/// What an ADD was given that failed, and nothing else.
pub(super) fn take_back(call: &Call, kind: &str, given: &[IpAddr]) -> Result<()> {
    match kind {
        BUILT_IN => host_local::take_back(call, given),
        _ => run(&Call { command: Command::Del, ..call.clone() }, kind),
    }
}

pub(super) fn run(call: &Call, kind: &str) -> Result<()> {
    match kind {
        "" => Ok(()),
        BUILT_IN => HostLocal.run(call),
        _ => Delegate { kind, conf: &whole_conf(call) }.run(call),
    }
}

/// IPAM plugins are given the whole configuration of who calls them.
fn whole_conf(call: &Call) -> String {
    compact(&call.conf.members)
}
