//! What the daemon expects of the host and does not change by itself.

use std::fs;
use std::path::Path;

use anyhow::bail;

use crate::iface::Stack;

/// Pods of one node talk through a bridge; without this kernel module iptables never sees them, and
/// services stop working in ways that are hard to find.
pub fn bridge_filter(stack: Stack, nftables: bool) -> anyhow::Result<()> {
    if nftables {
        return Ok(());
    }
    for (used, name) in
        [(stack.v4, "bridge-nf-call-iptables"), (stack.v6, "bridge-nf-call-ip6tables")]
    {
        let path = Path::new("/proc/sys/net/bridge").join(name);
        if used && !path.exists() {
            bail!(
                "{} does not exist: load the kernel module br_netfilter (modprobe br_netfilter), or \
                 set EnableNFTables in the network config",
                path.display()
            );
        }
    }
    Ok(())
}

/// A host that does not forward carries no pod traffic. It is the operator's to decide, so it is said
/// and not changed.
pub fn forwarding(stack: Stack) {
    for (used, path) in [
        (stack.v4, "/proc/sys/net/ipv4/ip_forward"),
        (stack.v6, "/proc/sys/net/ipv6/conf/all/forwarding"),
    ] {
        if used && fs::read_to_string(path).is_ok_and(|value| value.trim() == "0") {
            let name = path.trim_start_matches("/proc/sys/").replace('/', ".");
            tracing::warn!(
                "{name} is 0: this host forwards nothing, so its pods reach no other node; \
                 set it with sysctl -w {name}=1"
            );
        }
    }
}
