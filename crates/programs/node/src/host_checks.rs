//! What the daemon expects of the host and does not change by itself.

use std::path::Path;

use flannel_backend::Stack;

/// Pods of one node talk through a bridge; without this module iptables never sees them, and services stop working.
pub fn bridge_filter(stack: Stack, nftables: bool) -> Result<(), String> {
    if nftables {
        return Ok(());
    }
    for (used, name) in
        [(stack.v4, "bridge-nf-call-iptables"), (stack.v6, "bridge-nf-call-ip6tables")]
    {
        let path = Path::new("/proc/sys/net/bridge").join(name);
        if used && !path.exists() {
            return Err(format!(
                "{} does not exist: load the kernel module br_netfilter (modprobe br_netfilter), or \
                 set EnableNFTables in the network config",
                path.display()
            ));
        }
    }
    Ok(())
}
