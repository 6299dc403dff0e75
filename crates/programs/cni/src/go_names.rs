//! Names that the Go plugins make up for their links and firewall rules, so that ours are found by them and
//! theirs by us. They are cut from a SHA-512 of what they stand for.

use flannel_common::{Mac, hex};
use sha2::{Digest as _, Sha512};

/// The chain of iptables that masquerades one container's traffic.
pub(crate) fn masquerade_chain(network: &str, container_id: &str) -> String {
    prefixed(28, "CNI-", &format!("{network}{container_id}"))
}

/// The chain of iptables with one container's port mappings.
pub(crate) fn portmap_chain(network: &str, container_id: &str) -> String {
    prefixed(28, "CNI-DN-", &format!("{network}{container_id}"))
}

pub(crate) fn ifb_name(network: &str, container_id: &str) -> String {
    prefixed(15, "bwp", &format!("{network}{container_id}"))
}

/// How the MAC address of such a link begins, by which it is known as one of a network from the moment it is made.
pub(crate) fn ifb_mark(network: &str) -> [u8; 4] {
    /// One that nobody has assigned.
    const LOCAL: u8 = 2;
    let hash = Sha512::digest(format!("CNI bandwidth of {network}"));
    [LOCAL, hash[0], hash[1], hash[2]]
}

/// The MAC address of the link through which what a container sends is led.
pub(crate) fn ifb_mac(network: &str, container_id: &str) -> Mac {
    let [a, b, c, d] = ifb_mark(network);
    let hash = Sha512::digest(format!("{network}{container_id}"));
    Mac([a, b, c, d, hash[0], hash[1]])
}

/// What the comments of a network's masquerading rules in nftables begin with.
pub(crate) fn network_hash(network: &str) -> String {
    prefixed(16, "", network)
}

/// What the comments of one attachment's masquerading rules in nftables begin with.
pub(crate) fn attachment_hash(network: &str, ifname: &str, container_id: &str) -> String {
    let attachment = prefixed(16, "", &format!("{ifname}:{container_id}"));
    format!("{}-{attachment}", network_hash(network))
}

fn prefixed(length: usize, prefix: &str, text: &str) -> String {
    let mut name = format!("{prefix}{}", hex(&Sha512::digest(text)));
    name.truncate(length);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_length_that_iptables_allows() {
        let chain = masquerade_chain("cbr0", "abc");
        assert!(chain.starts_with("CNI-") && chain.len() == 28, "{chain}");
        let chain = portmap_chain("cbr0", "abc");
        assert!(chain.starts_with("CNI-DN-") && chain.len() == 28, "{chain}");
        assert_eq!(attachment_hash("n", "eth0", "abc").len(), 33);
    }
}
