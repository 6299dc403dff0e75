//! What the daemon that runs here has found itself.

use std::path::Path;

use flannel_state::{Finding, Layer};

use super::node_context::NodeContext;

pub(super) fn look(context: &NodeContext, found: &[Finding]) -> Vec<Finding> {
    if context.state.is_none() {
        return vec![unasked(context)];
    }
    // Asked last: what has been seen here, it has seen meanwhile.
    let Some(state) = context.ask_daemon() else { return Vec::new() };
    let is_found = |layer: Layer| found.iter().any(|one| one.layer == layer);
    let mut findings = Vec::new();
    for mut network in state.networks {
        // Paths that carry less are shown with what fits.
        if let Some(probing) = network.probing.as_mut().filter(|_| is_found(Layer::Mtu)) {
            probing.findings.retain(|peer| peer.probe.verdict != super::mtu::BLACK_HOLE);
        }
        findings.extend(network.findings());
    }
    // The store was asked from here, too.
    findings.retain(|one| one.layer != Layer::Store || !is_found(Layer::Store));
    findings
}

fn unasked(context: &NodeContext) -> Finding {
    if context.hangs {
        let what = "flanneld listens here and does not answer: it hangs, or was stopped (SIGSTOP)";
        let why = "traffic continues; changes, here or elsewhere, are not followed";
        return Finding::broken(Layer::Daemon, what, why, context.commands.restart_here());
    }
    if context.is_running {
        let why = "it is another flannel, or keeps its socket elsewhere (--socket)";
        return Finding::note(Layer::Daemon, "a flanneld runs here that cannot be asked", why);
    }
    // Below /run, so it was written since the machine was started.
    let left = Path::new("/run/flannel/subnet.env");
    if !left.exists() {
        let why = "only the node was checked";
        return Finding::note(Layer::Daemon, "no flanneld runs here", why);
    }
    let what = format!("no flanneld runs here, and one has: {} is there", left.display());
    let why = "traffic continues with what it has left; nodes that come, go or change are not followed, and nothing is \
               repaired";
    let start = context.commands.restart_here();
    let fix = format!("{start}; if flannel is not wanted here any more: flannelctl cleanup");
    Finding::warning(Layer::Daemon, what, why, fix)
}
