//! IPsec's policies between pods, and what is left of the tunnels for them.

use std::io;

use anyhow::Context as _;
use flannel_common::xfrm::{ESP_REQID, EspTunnel};
use flannel_kernel::is_flannel_policy;
use flannel_netlink::xfrm::{self, ObservedPolicy, State, XfrmRequest};
use flannel_netlink::{Connection, NetlinkError, Protocol};

/// In words.
pub(super) fn find() -> anyhow::Result<Vec<String>> {
    Ok(things()?.into_iter().map(|(words, _)| words).collect())
}

/// Removes them, and says what that was.
pub(super) fn remove() -> anyhow::Result<Vec<String>> {
    let (words, requests): (Vec<String>, Vec<XfrmRequest>) = things()?.into_iter().unzip();
    if words.is_empty() {
        return Ok(words);
    }
    let mut refused = None;
    let mut kernel = Connection::open(Protocol::Xfrm).context("talk to the kernel")?;
    kernel
        .apply(requests, |at, error: NetlinkError| {
            // Somebody else was faster.
            if ![libc::ENOENT, libc::ESRCH].contains(&error.errno) {
                refused = Some(format!("remove {}: {error}", words[at]));
            }
        })
        .context("remove xfrm policies")?;
    refused.map_or(Ok(words), |error| Err(anyhow::Error::msg(error)))
}

fn things() -> anyhow::Result<Vec<(String, XfrmRequest)>> {
    // A kernel without IPsec has none.
    let Ok(mut kernel) = Connection::open(Protocol::Xfrm) else { return Ok(Vec::new()) };
    let policies: Vec<ObservedPolicy> = kernel
        .ask_all(&xfrm::list_policies(), xfrm::read_policy)
        .and_then(|found| found.map_err(|error| io::Error::from_raw_os_error(error.errno)))
        .context("list the xfrm policies")?;
    let ours: Vec<ObservedPolicy> = policies.into_iter().filter(is_flannel_policy).collect();
    let tunnels: Vec<EspTunnel> = ours.iter().filter_map(|policy| policy.tunnel).collect();
    let states: Vec<State> = kernel
        .ask_all(&xfrm::list_states(), xfrm::read_state)
        .and_then(|found| found.map_err(|error| io::Error::from_raw_os_error(error.errno)))
        .context("list the xfrm states")?;
    let policies = ours.into_iter().map(|ObservedPolicy { direction, src, dst, .. }| {
        let words = format!("xfrm policy {direction} {src} -> {dst}");
        (words, xfrm::delete_policy(direction, src, dst))
    });
    let served = |state: &State| {
        let State { src, dst, reqid, spi, .. } = *state;
        reqid == ESP_REQID && spi != 0 && tunnels.contains(&EspTunnel { src, dst, reqid })
    };
    let states = states.into_iter().filter(served).map(|state| {
        let words = format!("xfrm state {} -> {} spi {:#010x}", state.src, state.dst, state.spi);
        (words, xfrm::delete_state(&state))
    });
    Ok(policies.chain(states).collect())
}
