//! Whether a node that runs may follow a config into another network. One that would cost the node its subnet, or
//! all its peers, is most often a typing error, and costs every pod its connections: it takes an operator's word,
//! which is `Replaces` in the config. A node that starts follows whatever config there is, as the Go flannel does.

use ipnet::IpNet;

use crate::net::Net;
use crate::{NetworkConfig, Subnet, SubnetSource};

/// Loss of a node by a new config. Shown to an operator as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkMove {
    from: Vec<IpNet>,
    /// Networks that would be left. The other family may stay as it is.
    left: Vec<IpNet>,
    to: Vec<IpNet>,
    /// This node's own subnet, if it would be lost.
    own: Option<Subnet>,
    /// The number of peers that are reached now, if none of them would be.
    peers: Option<usize>,
    /// No config can give this node another subnet: the store assigns it.
    is_assigned: bool,
}

impl std::error::Error for NetworkMove {}

impl std::fmt::Display for NetworkMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |nets: &[IpNet], quote: &str| {
            let nets: Vec<String> = nets.iter().map(|net| format!("{quote}{net}{quote}")).collect();
            nets.join(", ")
        };
        let own = self.own.map(|own| format!("this node's subnet {own:#}"));
        let peers = self.peers.map(|peers| match peers {
            1 => "the one peer".to_owned(),
            many => format!("all {many} peers"),
        });
        let lost: Vec<String> = own.into_iter().chain(peers).collect();
        write!(
            f,
            "it has no place for {}: its network is {}, the one in use {}, and running pods would be cut off; ",
            lost.join(" and "),
            list(&self.to, ""),
            list(&self.from, ""),
        )?;
        if self.is_assigned && self.own.is_some() {
            return f.write_str(
                "correct Network; if pods are to move, make the Nodes again with other podCIDRs, and restart flanneld",
            );
        }
        write!(
            f,
            "correct Network, SubnetLen, SubnetMin or SubnetMax if that is a mistake; if pods are to move, add \
             \"Replaces\": [{}] to the config (`flannelctl config set --force` does)",
            list(&self.left, "\""),
        )?;
        // A node whose subnet fits begins with the network that works, also after a restart.
        if self.own.is_some() { f.write_str(", or restart flanneld") } else { Ok(()) }
    }
}

/// Refuses a config that would cost this node its subnet `own` or all `peers` that it reaches now, unless the config
/// says that it replaces the network in use. `former`: subnets that this node had before; going back to one of
/// them costs nothing that it had for long, if peers are there.
pub fn check_move<'a>(
    current: &NetworkConfig,
    next: &NetworkConfig,
    own: &Subnet,
    former: &[Subnet],
    peers: impl IntoIterator<Item = &'a Subnet>,
) -> Result<(), NetworkMove> {
    let mut v4 = FamilyMove::new(current.v4, next.v4, own.v4());
    let mut v6 = FamilyMove::new(current.v6, next.v6, own.v6());
    for peer in peers {
        v4.count(peer.v4());
        v6.count(peer.v6());
    }
    let is_elsewhere = !v4.is_in_both() && !v6.is_in_both();
    let own_is_lost = is_elsewhere || v4.own_is_lost() || v6.own_is_lost();
    let is_left = |net: &IpNet| match net {
        IpNet::V4(_) => is_elsewhere || v4.is_left(),
        IpNet::V6(_) => is_elsewhere || v6.is_left(),
    };
    let left: Vec<IpNet> = current.networks().filter(is_left).collect();
    let returns = former.iter().any(|subnet| next.accepts(subnet));
    let lost_peers = if is_elsewhere { v4.before.max(v6.before) } else { v4.lost() + v6.lost() };
    let own = Some(*own).filter(|_| own_is_lost && !returns);
    let peers = Some(lost_peers).filter(|lost| *lost > 0);
    let is_replaced = |net: &IpNet| next.replaces.iter().any(|replaced| replaced.contains(net));
    let is_assigned = v4.is_assigned() || v6.is_assigned();
    let has_word = left.iter().all(is_replaced) && !(is_assigned && own.is_some());
    if own.is_none() && peers.is_none() || has_word {
        return Ok(());
    }
    let (from, to) = (current.networks().collect(), next.networks().collect());
    Err(NetworkMove { from, left, to, own, peers, is_assigned })
}

struct FamilyMove<N: Net> {
    current: Option<SubnetSource<N>>,
    next: Option<SubnetSource<N>>,
    own: Option<N>,
    before: usize,
    after: usize,
}

impl<N: Net> FamilyMove<N> {
    fn new(
        current: Option<SubnetSource<N>>,
        next: Option<SubnetSource<N>>,
        own: Option<N>,
    ) -> Self {
        Self { current, next, own, before: 0, after: 0 }
    }

    fn count(&mut self, peer: Option<N>) {
        let is_in = |source: &Option<SubnetSource<N>>| match (source, peer) {
            (Some(source), Some(peer)) => {
                let network = source.network();
                network.start() <= peer.start() && peer.end() <= network.end()
            }
            _ => false,
        };
        self.before += usize::from(is_in(&self.current));
        self.after += usize::from(is_in(&self.next));
    }

    fn is_in_both(&self) -> bool {
        self.own.is_some() && self.next.is_some()
    }

    fn is_assigned(&self) -> bool {
        matches!(self.next, Some(SubnetSource::Assigned { .. }))
    }

    fn own_is_lost(&self) -> bool {
        match (self.own, self.next) {
            (Some(own), Some(next)) => !next.accepts(own),
            _ => false,
        }
    }

    fn is_left(&self) -> bool {
        self.own_is_lost() || self.lost() > 0
    }

    /// A family that is switched off is meant to be.
    fn lost(&self) -> usize {
        if self.next.is_some() && self.after == 0 { self.before } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use super::*;
    use crate::SubnetOrigin;

    fn pool(text: &str) -> NetworkConfig {
        NetworkConfig::parse(&format!(r#"{{"Backend":{{"Type":"vxlan"}},{text}}}"#)).unwrap()
    }

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    fn checked(
        current: &NetworkConfig,
        next: &NetworkConfig,
        own: &str,
        peers: &[&str],
    ) -> Result<(), String> {
        let peers: Vec<Subnet> = peers.iter().map(|text| subnet(text)).collect();
        check_move(current, next, &subnet(own), &[], &peers).map_err(|error| error.to_string())
    }

    #[test]
    fn a_network_without_this_nodes_subnet_or_any_peer_takes_an_operators_word() {
        let current = pool(r#""Network":"10.244.0.0/16""#);
        let own = "10.244.5.0-24";
        let refused = |next: &str, peers: &[&str]| {
            checked(&current, &pool(next), own, peers).expect_err(next)
        };
        let typo = refused(r#""Network":"10.224.0.0/16""#, &["10.244.6.0-24", "10.244.7.0-24"]);
        for part in [
            "this node's subnet 10.244.5.0/24 and all 2 peers",
            "10.224.0.0/16, the one in use 10.244.0.0/16",
            r#""Replaces": ["10.244.0.0/16"]"#,
        ] {
            assert!(typo.contains(part), "{typo}");
        }
        assert!(refused(r#""Network":"10.99.0.0/16""#, &[]).contains("10.244.5.0/24:"));
        let narrow = r#""Network":"10.244.4.0/22","SubnetLen":24"#;
        assert!(refused(narrow, &["10.244.9.0-24"]).contains("for the one peer"));
        refused(r#""Network":"10.244.0.0/16","SubnetLen":25"#, &["10.244.6.0-24"]);
        refused(r#""Network":"10.244.0.0/16","SubnetMin":"10.244.9.0""#, &["10.244.9.0-24"]);
        refused(
            r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48""#,
            &["10.244.6.0-24"],
        );
    }

    #[test]
    fn what_keeps_subnet_and_peers_or_has_the_word_is_followed() {
        let current = pool(r#""Network":"10.244.0.0/16""#);
        let peers = ["10.244.6.0-24", "10.244.7.0-24"];
        for next in [
            r#""Network":"10.240.0.0/12","SubnetLen":24"#,
            // One peer outside is that peer's trouble.
            r#""Network":"10.244.4.0/22","SubnetLen":24"#,
            r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48""#,
            r#""Network":"10.99.0.0/16","Replaces":["10.244.0.0/16"]"#,
            r#""Network":"10.99.0.0/16","Replaces":["10.0.0.0/8"]"#,
            r#""Network":"10.244.0.0/16","SubnetLen":25,"Replaces":["10.244.0.0/16"]"#,
        ] {
            assert_eq!(checked(&current, &pool(next), "10.244.5.0-24", &peers), Ok(()), "{next}");
        }
        let stale = pool(r#""Network":"10.98.0.0/16","Replaces":["10.99.0.0/16"]"#);
        checked(&current, &stale, "10.244.5.0-24", &peers).expect_err("the word is for another");
        // A family that is switched off, while the other one goes on.
        let dual = pool(r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48""#);
        let own = "10.244.5.0-24&fd00:0:0:5::-64";
        let peer = ["10.244.6.0-24&fd00:0:0:6::-64"];
        assert_eq!(checked(&dual, &current, own, &peer), Ok(()));
        let typo = pool(r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd01::/48""#);
        checked(&dual, &typo, own, &peer).expect_err("one family is lost");
    }

    #[test]
    fn the_word_is_needed_for_the_family_that_moves_alone() {
        let dual = |v4: &str, v6: &str, word: &str| {
            let replaces =
                if word.is_empty() { String::new() } else { format!(r#","Replaces":["{word}"]"#) };
            pool(&format!(r#""Network":"{v4}","EnableIPv6":true,"IPv6Network":"{v6}"{replaces}"#))
        };
        let (v4, v6) = ("10.244.0.0/16", "fd00::/48");
        let current = dual(v4, v6, "");
        let moves = |next: &NetworkConfig| {
            let own = "10.244.5.0-24&fd00:0:0:5::-64";
            checked(&current, next, own, &["10.244.6.0-24&fd00:0:0:6::-64"])
        };
        for (network, network6, word, other) in
            [("10.99.0.0/16", v6, v4, v6), (v4, "fd01::/48", v6, v4)]
        {
            assert_eq!(moves(&dual(network, network6, word)), Ok(()), "{word}");
            let refused = moves(&dual(network, network6, other)).expect_err("the other's word");
            assert!(refused.contains(&format!(r#""Replaces": ["{word}"]"#)), "{refused}");
        }
        let both = moves(&dual("10.99.0.0/16", "fd01::/48", v4)).expect_err("half a word");
        assert!(both.contains(r#""Replaces": ["10.244.0.0/16", "fd00::/48"]"#), "{both}");
    }

    #[test]
    fn a_node_that_was_moved_by_a_typing_error_goes_back_to_its_peers_without_a_word() {
        let (typo, right) =
            (pool(r#""Network":"10.99.0.0/16""#), pool(r#""Network":"10.244.0.0/16""#));
        let (own, former) = (subnet("10.99.3.0-24"), [subnet("10.244.5.0-24")]);
        let back = |peers: &[&str]| {
            let peers: Vec<Subnet> = peers.iter().map(|text| subnet(text)).collect();
            check_move(&typo, &right, &own, &former, &peers)
        };
        assert_eq!(back(&["10.244.6.0-24"]), Ok(()));
        assert_eq!(back(&[]), Ok(()));
        back(&["10.99.4.0-24"]).expect_err("all peers are in the other one");
    }

    #[test]
    fn a_network_around_no_pod_cidr_is_refused() {
        let read = |network: &str| {
            let text = format!(r#"{{"Network":"{network}","Replaces":["10.0.0.0/8"]}}"#);
            NetworkConfig::read(&text, SubnetOrigin::Store).unwrap()
        };
        let (current, own, peers) = (read("10.244.0.0/16"), "10.244.5.0-24", ["10.244.6.0-24"]);
        let error = checked(&current, &read("10.99.0.0/16"), own, &peers).expect_err("holds none");
        assert!(error.contains("make the Nodes again") && !error.contains("Replaces"), "{error}");
        checked(&current, &read("10.244.6.0/24"), own, &peers).expect_err("not this node's");
        assert_eq!(checked(&current, &read("10.244.0.0/20"), own, &peers), Ok(()));
    }

    #[test]
    fn the_word_is_added_to_a_text_that_stays_as_it_is() {
        let written = "\n{ \"Network\": \"10.99.0.0/16\",\n \"Backend\": {\"Type\": \"vxlan\"} }\n";
        let networks = || pool(r#""Network":"10.244.0.0/16""#).networks();
        let text = NetworkConfig::with_replaces(written, networks());
        assert_eq!(
            text,
            "\n{\"Replaces\":[\"10.244.0.0/16\"], \"Network\": \"10.99.0.0/16\",\n \"Backend\": {\"Type\": \"vxlan\"} }\n"
        );
        let config = NetworkConfig::parse(&text).unwrap();
        assert_eq!(config.replaces, networks().collect::<Vec<_>>());
        assert_eq!(NetworkConfig::parse(&config.to_json()), Ok(config));
        assert_eq!(NetworkConfig::with_replaces(&text, networks()), text, "once");
        assert_eq!(NetworkConfig::with_replaces(written, []), written);
        assert!(NetworkConfig::names_backend(&text) && !NetworkConfig::names_backend("{}"));
    }
}
