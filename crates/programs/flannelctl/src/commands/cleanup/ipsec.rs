//! IPsec's policies between pods, and what is left of the tunnels for them.

use std::io;

use anyhow::Context as _;
use flannel_common::xfrm::{ESP_REQID, EspTunnel};
use flannel_kernel::is_flannel_policy;
use flannel_netlink::xfrm::{self, ObservedPolicy, State};
use flannel_netlink::{Connection, NetlinkError, Protocol, RawRequest};

use super::{Report, remove_one};

pub(super) fn clean(report: &mut Report) -> anyhow::Result<()> {
    // A kernel without IPsec has none.
    let Ok(mut kernel) = Connection::open(Protocol::Xfrm) else { return Ok(()) };
    let failed = |error: NetlinkError| io::Error::from_raw_os_error(error.errno);
    let policies: Vec<ObservedPolicy> = kernel
        .ask_all(&xfrm::list_policies(), xfrm::read_policy)
        .and_then(|found| found.map_err(failed))
        .context("list the xfrm policies")?;
    let ours: Vec<ObservedPolicy> = policies.into_iter().filter(is_flannel_policy).collect();
    let tunnels: Vec<EspTunnel> = ours.iter().filter_map(|policy| policy.tunnel).collect();
    let states: Vec<State> = kernel
        .ask_all(&xfrm::list_states(), xfrm::read_state)
        .and_then(|found| found.map_err(failed))
        .context("list the xfrm states")?;
    let mut clean = |words: String, request: RawRequest| {
        report.clean(words, || remove_one(&mut kernel, request));
    };
    for ObservedPolicy { direction, src, dst, .. } in ours {
        let words = format!("xfrm policy {direction} {src} -> {dst}");
        clean(words, xfrm::delete_policy(direction, src, dst));
    }
    for state in states {
        let State { src, dst, reqid, spi, .. } = state;
        if reqid == ESP_REQID && spi != 0 && tunnels.contains(&EspTunnel { src, dst, reqid }) {
            let words = format!("xfrm state {src} -> {dst} spi {spi:#010x}");
            clean(words, xfrm::delete_state(&state));
        }
    }
    Ok(())
}
