//! Packets are taken through this host's rules of nftables, iptables and ebtables. What is dropped whatever cannot be
//! told from outside (a mark, a rate, a set that changes) is dropped, and what may be is told with its counter.

pub(crate) mod guards;
mod iptables;
mod nft;
mod path;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use flannel_common::{SearchPath, run_program};
use flannel_kernel::look::Kernel;
use flannel_nft::TableFamily;

pub(crate) use path::TOO_FEW_HOPS;
pub use path::{Conversation, Drop, Dropped, Hook, HostFacts, Packet, SMALL_PACKET};

pub const ICMP: u8 = 1;
pub const UDP: u8 = 17;
pub const TCP: u8 = 6;
pub const ICMPV6: u8 = 58;
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Rules {
    nft: nft::Ruleset,
    v4: iptables::Tables,
    v6: iptables::Tables,
    bridge: iptables::Tables,
    unread: Vec<&'static str>,
    host: Arc<HostFacts>,
}

impl Rules {
    pub fn read() -> Self {
        let mut unread = Vec::new();
        let mut said = |program: &'static str, arguments: &[&str]| {
            output(program, arguments).unwrap_or_else(|| {
                unread.push(program);
                String::new()
            })
        };
        let v4 = iptables::Tables::read(&said("iptables-save", &["-c"]));
        let v6 = iptables::Tables::read(&said("ip6tables-save", &["-c"]));
        let nft = nft::Ruleset::read().unwrap_or_else(|_| {
            unread.push("nftables");
            nft::Ruleset::default()
        });
        // Hosts without a bridge that is filtered do not have it, and nftables shows that there are rules.
        let bridge = match nft.has_bridge_rules() {
            true => output("ebtables-save", &["-c"]).unwrap_or_default(),
            false => String::new(),
        };
        let devices = Kernel::open().map(|kernel| kernel.devices).unwrap_or_default();
        let addresses = devices.iter().flat_map(|it| it.addresses.iter().map(|net| net.addr()));
        let may_untrack = nft.untracks() || v4.untracks() || v6.untracks();
        let links = devices.iter().map(|device| (device.name.clone(), device.index)).collect();
        let host = Arc::new(HostFacts { addresses: addresses.collect(), links, may_untrack });
        Self { nft, v4, v6, bridge: iptables::Tables::read(&bridge), unread, host }
    }

    /// Programs that could not print them, and `nftables` if the kernel did not tell them.
    pub fn unread(&self) -> &[&'static str] {
        &self.unread
    }

    pub(crate) fn counters(&self) -> Vec<Drop> {
        let mut all = self.v4.counters("iptables");
        all.extend(self.v6.counters("ip6tables"));
        all.extend(self.bridge.counters("ebtables"));
        all.extend(self.nft.counters(&|family, table| match family {
            TableFamily::Ipv4 => self.v4.has(table),
            TableFamily::Ipv6 => self.v6.has(table),
            TableFamily::Bridge => self.bridge.has(table),
            TableFamily::Inet | TableFamily::Arp | TableFamily::Netdev => false,
        }));
        all
    }

    pub fn judge(&self, packet: &Packet) -> Dropped {
        let packet = &Packet { host: self.host.clone(), ..packet.clone() };
        let (tables, program) = match packet.dst.is_ipv4() {
            _ if packet.hook.is_of_bridge() => (&self.bridge, "ebtables"),
            true => (&self.v4, "iptables"),
            false => (&self.v6, "ip6tables"),
        };
        let mut dropped = match packet.is_arp && program != "ebtables" {
            true => Dropped::default(),
            false => tables.judge(packet, program),
        };
        if dropped.surely.is_none() {
            // Those that iptables has made are read by it; nftables has them without their meaning.
            dropped.followed_by(self.nft.judge(packet, &|table| tables.has(table)));
        }
        let keep = |drop: Drop| guards::keep_guards(drop, packet);
        // Nobody is to undo a guard, so it is not named among those who may drop packets.
        let perhaps = dropped.perhaps.into_iter().map(keep).filter(|it| !guards::is_guard(it));
        Dropped { perhaps: perhaps.collect(), surely: dropped.surely.map(keep) }
    }
}

/// What a program prints, if it is there and succeeds.
pub fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut text = Vec::new();
    let found = SearchPath::of_environment().find(program)?;
    let ended = run_program(Command::new(found).args(arguments), b"", PROGRAM_TIMEOUT, |piece| {
        text.extend_from_slice(piece)
    });
    ended.ok()?.status.success().then(|| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARD: &str = "*filter\n:FORWARD ACCEPT [0:0]\n";

    fn rules(v4: &str) -> Rules {
        Rules {
            v4: iptables::Tables::read(&format!("{FORWARD}{v4}\nCOMMIT\n")),
            ..Rules::default()
        }
    }

    #[test]
    fn rules_that_guard_are_neither_suspects_nor_to_be_deleted_by_their_counters() {
        let pods =
            Packet::first(Hook::Forward, [10, 244, 1, 2].into(), [10, 244, 2, 2].into(), UDP);
        let own =
            "[7:9] -A FORWARD -m mark --mark 0x1 -j DROP -m comment --comment \"x CNI-GUARD x\"";
        let loopback = "[8:9] -A FORWARD ! -s 127.0.0.0/8 -m mark --mark 0x1 -j DROP";
        let strange = "[9:9] -A FORWARD -m mark --mark 0x1 -j DROP";
        for (rule, is_suspect) in [(own, false), (loopback, false), (strange, true)] {
            let rules = rules(rule);
            assert_eq!(rules.judge(&pods).perhaps.len(), usize::from(is_suspect), "{rule}");
            let [Drop { fix, .. }] = &rules.counters()[..] else { panic!("{rule}") };
            assert_eq!(fix.starts_with("leave this rule"), !is_suspect, "{fix}");
        }
        let to_loopback = Packet { dst: [127, 0, 0, 1].into(), ..pods };
        assert!(rules(strange).judge(&to_loopback).perhaps.is_empty());
    }

    /// Who drops a pod's packet, and who may.
    fn judged(rules: &Rules) -> (bool, usize) {
        let (one, two) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
        let dropped = rules.judge(&Packet::first(Hook::Forward, one, two, TCP));
        (dropped.surely.is_some(), dropped.perhaps.len())
    }

    #[test]
    fn a_rule_for_untracked_packets_is_for_none_where_nothing_keeps_the_kernel_from_tracking() {
        let rule = "[0:0] -A FORWARD -m conntrack --ctstate UNTRACKED -j DROP";
        assert_eq!(judged(&rules(rule)), (false, 0));
        let host = Arc::new(HostFacts { may_untrack: true, ..HostFacts::default() });
        assert_eq!(judged(&Rules { host, ..rules(rule) }), (false, 1));
        let untracking = rules("-A FORWARD -j CT --notrack");
        assert!(untracking.v4.untracks() && !rules(rule).v4.untracks());
    }

    #[test]
    fn rules_that_write_what_no_packet_survives_are_as_those_that_drop() {
        let host = || {
            let addresses = vec![[192, 0, 2, 1].into()];
            Arc::new(HostFacts { addresses, ..HostFacts::default() })
        };
        let by = |table: &str, rule: &str| {
            let text =
                format!("*{table}\n:POSTROUTING ACCEPT\n:PREROUTING ACCEPT\n{rule}\nCOMMIT\n");
            let v4 = iptables::Tables::read(&text);
            judged(&Rules { v4, host: host(), ..Rules::default() })
        };
        assert_eq!(by("nat", "-A POSTROUTING -j SNAT --to-source 192.0.2.7"), (true, 0));
        assert_eq!(by("nat", "-A POSTROUTING -j SNAT --to-source 192.0.2.1"), (false, 0));
        assert_eq!(by("nat", "-A POSTROUTING -j MASQUERADE"), (false, 0));
        assert_eq!(
            by("mangle", "-A PREROUTING -i cni0 -j TTL --ttl-set 1"),
            (false, 0),
            "not by it"
        );
        assert_eq!(by("mangle", "-A PREROUTING -j TTL --ttl-set 1"), (false, 1));
        assert_eq!(by("mangle", "-A PREROUTING -j TTL --ttl-set 64"), (false, 0));
    }
}
