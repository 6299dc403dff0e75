//! Rules that stay. Those of flannel and its plugin are there for a reason and would be written again, and what keeps
//! strangers from addresses of the host's loopback device guards services that rely on it.

use super::path::{Drop, Packet};

/// Tables of nftables that flanneld and its plugin make.
const OWN_TABLES: [&str; 4] =
    ["flannel-ipv4", "flannel-ipv6", "cni_hostport", "cni_plugins_masquerade"];
/// How their chains in iptables begin.
const OWN_CHAINS: [&str; 2] = ["FLANNEL-", "CNI-"];

/// Whether a rule is flannel's or its plugin's. `rule`: in words.
pub(crate) fn is_own(rule: &str) -> bool {
    let is_own = |word: &str| {
        OWN_TABLES.contains(&word) || OWN_CHAINS.iter().any(|chain| word.starts_with(chain))
    };
    rule.split(|c: char| c.is_whitespace() || c == '`').any(is_own)
}

/// The same, without the advice to remove a rule that is flannel's own or guards the host.
pub(super) fn keep_guards(drop: Drop, packet: &Packet) -> Drop {
    let fix = if is_own(&drop.rule) {
        "leave this rule: it is flannel's own, and drops what must not pass".to_owned()
    } else if packet.src.is_loopback() || packet.dst.is_loopback() {
        "leave this rule: it keeps others from this host's loopback addresses".to_owned()
    } else {
        return drop;
    };
    Drop { fix, ..drop }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::{Hook, UDP};
    use super::*;

    #[test]
    fn nobody_is_told_to_delete_a_rule_of_flannel_or_one_that_guards() {
        let packet = |dst: IpAddr| Packet {
            iif: "cni0".to_owned(),
            ..Packet::first(Hook::In, [10, 244, 1, 2].into(), dst, UDP)
        };
        let pod = packet([10, 244, 2, 2].into());
        let fix = |rule: &str, packet: &Packet| {
            let (rule, fix) = (rule.to_owned(), "delete it".to_owned());
            keep_guards(Drop { rule, fix, packets: None }, packet).fix
        };
        for ours in [
            "the nftables rule 4 of ip cni_hostport loopback_guard",
            "the nftables rule 9 of ip flannel-ipv4 forward",
            "the rule of iptables `FLANNEL-FWD -s 10.244.0.0/16 -j DROP`",
        ] {
            assert!(fix(ours, &pod).starts_with("leave this rule"), "{ours}");
        }
        let strange = "the nftables rule 4 of inet filter input";
        assert_eq!(fix(strange, &pod), "delete it");
        let guarded = packet([127, 0, 0, 1].into());
        assert!(fix(strange, &guarded).starts_with("leave this rule"));
    }
}
