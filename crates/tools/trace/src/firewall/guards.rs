//! Rules that stay: flannel's and its plugin's, which would be written again, and guards of loopback addresses.

use super::path::{Drop, Packet};

const OWN_TABLES: [&str; 4] =
    ["flannel-ipv4", "flannel-ipv6", "cni_hostport", "cni_plugins_masquerade"];
const OWN_CHAINS: [&str; 2] = ["FLANNEL-", "CNI-"];

const OWN: &str = "leave this rule: it is flannel's own, and drops what must not pass";
const LOOPBACK: &str = "leave this rule: it keeps others from this host's loopback addresses";

pub(crate) fn is_own(rule: &str) -> bool {
    let is_own = |word: &str| {
        OWN_TABLES.contains(&word) || OWN_CHAINS.iter().any(|chain| word.starts_with(chain))
    };
    rule.split(|c: char| c.is_whitespace() || c == '`').any(is_own)
}

/// What undoes a rule (in words): `command`, unless it is flannel's own or guards the host's loopback addresses.
pub(super) fn removal(rule: &str, names_loopback: bool, command: String) -> String {
    if is_own(rule) {
        OWN.to_owned()
    } else if names_loopback {
        LOOPBACK.to_owned()
    } else {
        command
    }
}

pub(super) fn is_loopback(word: &str) -> bool {
    word.starts_with("127.") || word == "::1" || word.starts_with("::1/")
}

/// The same, without the advice to remove a rule that keeps a packet from loopback addresses.
pub(super) fn keep_guards(drop: Drop, packet: &Packet) -> Drop {
    match !is_guard(&drop) && (packet.src.is_loopback() || packet.dst.is_loopback()) {
        true => Drop { fix: LOOPBACK.to_owned(), ..drop },
        false => drop,
    }
}

pub(super) fn is_guard(drop: &Drop) -> bool {
    [OWN, LOOPBACK].contains(&drop.fix.as_str())
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
            let (rule, fix) = (rule.to_owned(), removal(rule, false, "delete it".to_owned()));
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
