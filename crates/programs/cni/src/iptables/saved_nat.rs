//! Port mappings as `iptables-save` shows them: whose come first. Pure.

use std::collections::BTreeMap;

use flannel_nft::{SavedLine, read_saved};

/// Mappings of the chains of a table, and the order in which packets come to them.
#[derive(Debug, Default)]
pub(super) struct SavedNat {
    /// By the chain that leads on: where to, and whether every packet to a mapped port goes there.
    entries: BTreeMap<String, Vec<(String, bool)>>,
    claims: BTreeMap<String, Vec<Claim>>,
    /// Chains that ask for the destination's address.
    specific: Vec<String>,
}

/// A port that a chain maps, at one address of the host or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    protocol: String,
    port: String,
    host: Option<String>,
}

impl Claim {
    /// Whether nothing is left for somebody who comes later with that claim.
    fn covers(&self, later: &Self) -> bool {
        (&self.protocol, &self.port) == (&later.protocol, &later.port)
            && (self.host.is_none() || self.host == later.host)
    }
}

impl SavedNat {
    pub(super) fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        for line in read_saved(text) {
            if let SavedLine::Rule(rule) = line {
                saved.take(&rule.chain, &rule.words);
            }
        }
        saved
    }

    fn take(&mut self, chain: &str, words: &[String]) {
        let (mut protocol, mut port, mut host, mut target) = (None, None, None, None);
        let mut is_unconditional = true;
        let mut rest = words.iter().map(String::as_str);
        while let Some(word) = rest.next() {
            match word {
                "-p" => protocol = rest.next(),
                "--dport" => port = rest.next(),
                "-d" => host = rest.next(),
                "-j" => target = rest.next(),
                "--dports" | "--comment" => drop(rest.next()),
                "-m" => {
                    let of = rest.next();
                    is_unconditional &=
                        matches!(of, Some("comment" | "multiport" | "tcp" | "udp" | "sctp"));
                }
                _ => is_unconditional = false,
            }
        }
        if host.is_some() {
            self.specific.push(chain.to_owned());
        }
        match (target, protocol, port) {
            (Some("DNAT"), Some(protocol), Some(port)) => {
                let (protocol, port) = (protocol.to_owned(), port.to_owned());
                let claim = Claim { protocol, port, host: host.map(str::to_owned) };
                self.claims.entry(chain.to_owned()).or_default().push(claim);
            }
            (Some(target), ..) => {
                let entry = (target.to_owned(), is_unconditional && host.is_none());
                self.entries.entry(chain.to_owned()).or_default().push(entry);
            }
            _ => {}
        }
    }

    /// How many entries reach down to the last one that leads to a chain which asks for the destination's address.
    pub(super) fn entries_to_specific(&self, entry: &str) -> usize {
        let entries = self.entries.get(entry).map(Vec::as_slice).unwrap_or_default();
        let last = entries.iter().rposition(|(chain, _)| self.specific.contains(chain));
        last.map_or(0, |at| at + 1)
    }

    /// A port of this chain that another one takes before it, and which does.
    pub(super) fn port_taken_from(&self, entry: &str, own: &str) -> Option<(String, &str)> {
        let entries = self.entries.get(entry)?;
        let earlier = entries.iter().take_while(|(chain, _)| chain != own);
        let earlier = earlier.filter(|(_, is_unconditional)| *is_unconditional);
        let claims = |chain: &str| self.claims.get(chain).map(Vec::as_slice).unwrap_or_default();
        for (chain, _) in earlier {
            let taken = claims(own)
                .iter()
                .find(|later| claims(chain).iter().any(|claim| claim.covers(later)));
            if let Some(Claim { protocol, port, host }) = taken {
                let host = host.as_ref().map(|host| format!(" of {host}")).unwrap_or_default();
                return Some((format!("{port}/{protocol}{host}"), chain));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "CNI-HOSTPORT-DNAT";

    /// Chains of containers in the order of their entries, each with the ports it maps.
    fn saved(chains: &[(&str, &[&str])]) -> SavedNat {
        let mut text = String::from("*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n");
        for (chain, _) in chains {
            text += &format!(
                "-A {ENTRY} -p tcp -m comment --comment \"dnat name: \\\"cbr0\\\" id: \\\"x\\\"\" \
                 -m multiport --dports 80 -j {chain}\n"
            );
        }
        for (chain, ports) in chains {
            for port in *ports {
                text += &format!("-A {chain} {port} -j DNAT --to-destination 10.244.1.2:80\n");
            }
        }
        SavedNat::parse(&(text + "COMMIT\n"))
    }

    const ALL: &str = "-p tcp -m tcp --dport 80";
    const ONE: &str = "-d 192.0.2.1/32 -p tcp -m tcp --dport 80";
    const OTHER: &str = "-d 192.0.2.2/32 -p tcp -m tcp --dport 80";

    #[test]
    fn entries_of_ports_of_one_address_stay_before_those_of_all() {
        assert_eq!(saved(&[]).entries_to_specific(ENTRY), 0);
        assert_eq!(saved(&[("A", &[ALL])]).entries_to_specific(ENTRY), 0);
        assert_eq!(saved(&[("A", &[ONE]), ("B", &[ALL])]).entries_to_specific(ENTRY), 1);
        assert_eq!(saved(&[("A", &[ALL]), ("B", &[ALL, ONE])]).entries_to_specific(ENTRY), 2);
    }

    #[test]
    fn a_port_that_another_container_has_is_seen() {
        let by = |chains: &[(&str, &[&str])]| {
            saved(chains).port_taken_from(ENTRY, "B").map(|(port, by)| format!("{port} by {by}"))
        };
        assert_eq!(by(&[("A", &[ALL]), ("B", &[ALL])]).unwrap(), "80/tcp by A");
        let taken = by(&[("A", &[ALL]), ("B", &[ONE])]);
        assert_eq!(taken.unwrap(), "80/tcp of 192.0.2.1/32 by A");
        for fine in [
            by(&[("B", &[ALL]), ("A", &[ALL])]),
            by(&[("A", &[ONE]), ("B", &[ALL])]),
            by(&[("A", &[ONE]), ("B", &[OTHER])]),
            by(&[("A", &["-p udp -m udp --dport 80"]), ("B", &[ALL])]),
            by(&[("A", &["-p tcp -m tcp --dport 81"]), ("B", &[ALL])]),
        ] {
            assert_eq!(fine, None);
        }
    }
}
