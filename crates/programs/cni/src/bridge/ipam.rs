//! Addresses for the bridge's containers: from host-local, which is built in, or from whichever
//! other plugin the configuration names.

use std::net::IpAddr;

use crate::delegate::Delegate;
use crate::ipam::{self as host_local, AllocatedAddresses};
use crate::protocol::{Call, Command, Error, compact};

const BUILT_IN: &str = "host-local";

pub(super) fn add(call: &Call, kind: &str, retried: bool) -> Result<AllocatedAddresses, Error> {
    let given = match kind {
        BUILT_IN => host_local::add(call, retried)?,
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

/// Of another plugin's configuration nothing is known.
pub(super) fn validate(call: &Call, kind: &str) -> Result<(), Error> {
    if kind == BUILT_IN { host_local::validate(call) } else { Ok(()) }
}

pub(super) fn del(call: &Call, kind: &str) -> Result<(), Error> {
    run(call, kind, Command::Del, host_local::del)
}

/// What an ADD was given that failed, and nothing else.
pub(super) fn take_back(call: &Call, kind: &str, given: &[IpAddr]) -> Result<(), Error> {
    run(call, kind, Command::Del, |call| host_local::take_back(call, given))
}

pub(super) fn check(call: &Call, kind: &str) -> Result<(), Error> {
    run(call, kind, Command::Check, host_local::check)
}

pub(super) fn gc(call: &Call, kind: &str) -> Result<(), Error> {
    run(call, kind, Command::Gc, host_local::gc)
}

pub(super) fn status(call: &Call, kind: &str) -> Result<(), Error> {
    run(call, kind, Command::Status, host_local::status)
}

fn run(
    call: &Call,
    kind: &str,
    command: Command,
    built_in: impl FnOnce(&Call) -> Result<(), Error>,
) -> Result<(), Error> {
    match kind {
        BUILT_IN => built_in(call),
        _ => Delegate { kind, conf: &whole_conf(call) }.run(call, command),
    }
}

/// IPAM plugins are given the whole configuration of who calls them.
fn whole_conf(call: &Call) -> String {
    compact(&call.conf.members)
}
