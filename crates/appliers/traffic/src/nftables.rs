//! Rules in nftables, read and written by netlink. Names, comments and order are the Go flannel's; the rules mean what
//! its iptables rules mean.

use flannel_common::Family;
use flannel_entries::rules::{Purpose, TunnelPackets};
use flannel_nft::{
    Batch, Comparison, Expression, Expressions, Field, Header, Hook, MetaKey, Nft, NftError,
    TableFamily, loaded_network,
};

use crate::TrafficError;
use crate::firewall::{Firewall, Kind, Look, Wish};
use crate::rule::{KUBE_MARK, Rule, Side, Verdict};

struct ChainPlace {
    name: &'static str,
    hook: Hook,
    comment: &'static str,
}

impl ChainPlace {
    fn of(purpose: Purpose) -> Self {
        let (name, hook, comment) = match purpose {
            Purpose::Masquerade => {
                ("postrtg", Hook::SOURCE_NAT, "chain to manage traffic masquerading by flannel")
            }
            Purpose::Forward => ("forward", Hook::FORWARD, "chain to accept flannel traffic"),
            Purpose::GuardInput => (
                "tunnelin",
                Hook::INPUT,
                "chain to keep packets of pods out of the tunnel of this node",
            ),
            Purpose::GuardForward => (
                "tunnelout",
                Hook::FORWARD,
                "chain to keep packets of pods out of the tunnels of other nodes",
            ),
        };
        Self { name, hook, comment }
    }
}

pub(crate) fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel-ipv4",
        Family::V6 => "flannel-ipv6",
    }
}

pub(crate) fn table_family(family: Family) -> TableFamily {
    match family {
        Family::V4 => TableFamily::Ipv4,
        Family::V6 => TableFamily::Ipv6,
    }
}

/// The chains of a table that exist, each with its rules; `None` is a rule that no flannel writes.
type Chains = Vec<(Purpose, Vec<Option<Rule>>)>;

#[derive(Debug, Default, PartialEq, Eq)]
struct Listing {
    exists: bool,
    chains: Chains,
    /// Whether it holds what does not belong there, or a chain stands elsewhere.
    is_odd: bool,
}

pub(crate) struct Nftables {
    nft: Nft,
    last_look: Option<LastLook>,
}

/// What there was, at which generation, and what is wanted instead.
struct LastLook {
    generation: u32,
    listing: Listing,
    wanted: Vec<(Purpose, Vec<Rule>)>,
}

impl Nftables {
    pub(crate) fn open() -> Result<Self, TrafficError> {
        Ok(Self { nft: Nft::open()?, last_look: None })
    }

    fn list(&mut self, family: Family) -> Result<Listing, NftError> {
        let (name, of) = (table(family), table_family(family));
        let Some(table) = self.nft.table(of, name)? else { return Ok(Listing::default()) };
        let mut listing = Listing { exists: true, is_odd: table.is_dormant, ..Listing::default() };
        for purpose in Purpose::ALL {
            let place = ChainPlace::of(purpose);
            let Some(chain) = self.nft.chain(of, name, place.name)? else { continue };
            listing.is_odd |= !chain.stands_at(place.hook);
            let rules = self.nft.rules(of, name, place.name)?;
            let rules = rules.iter().map(|rule| read(family, &rule.expressions)).collect();
            listing.chains.push((purpose, rules));
        }
        listing.is_odd |= table.objects as usize != listing.chains.len();
        Ok(listing)
    }
}

impl Firewall for Nftables {
    fn kind(&self) -> Kind {
        Kind::Nftables
    }

    fn look(&mut self, family: Family, wish: &Wish) -> Result<Look, TrafficError> {
        let generation = self.nft.generation()?;
        let listing = self.list(family)?;
        let chain = |purpose| Some((purpose, wish.chain(purpose, listing.rules(purpose), true)?));
        let wanted: Vec<_> = Purpose::ALL.into_iter().filter_map(chain).collect();
        let look = listing.compare(&wanted);
        self.last_look = Some(LastLook { generation, listing, wanted });
        Ok(look)
    }

    fn write(&mut self, family: Family, purposes: &[Purpose]) -> Result<(), TrafficError> {
        let Some(LastLook { generation, listing, wanted }) = self.last_look.take() else {
            return Ok(());
        };
        let batch = listing.change(family, &wanted, purposes);
        match self.nft.commit_at(generation, &batch) {
            // The look that follows a write finds what is still to be written.
            Err(NftError::Outdated) => Ok(()),
            other => Ok(other?),
        }
    }
}

impl Listing {
    fn rules(&self, purpose: Purpose) -> &[Option<Rule>] {
        let chain = self.chains.iter().find(|(of, _)| *of == purpose);
        chain.map(|(_, rules)| rules.as_slice()).unwrap_or_default()
    }

    fn compare(&self, wanted: &[(Purpose, Vec<Rule>)]) -> Look {
        let is_wanted = |purpose: &Purpose| wanted.iter().any(|(of, _)| of == purpose);
        let differs = |(purpose, rules): &&(Purpose, Vec<Rule>)| {
            let is_there = self.chains.iter().any(|(of, _)| of == purpose);
            self.is_odd || !is_there || !self.holds(*purpose, rules)
        };
        let differing = wanted.iter().filter(differs).map(|(purpose, _)| *purpose).collect();
        let has_strays = !self.chains.iter().all(|(purpose, _)| is_wanted(purpose));
        Look { differing, unseen: Vec::new(), has_strays }
    }

    fn holds(&self, purpose: Purpose, rules: &[Rule]) -> bool {
        self.rules(purpose).iter().map(Option::as_ref).eq(rules.iter().map(Some))
    }

    /// The transaction that makes the table hold what is wanted for these purposes, and nothing that is not wanted. A
    /// chain that stays is emptied and filled, not replaced, so that packets on their way through it are not lost.
    fn change(
        &self,
        family: Family,
        wanted: &[(Purpose, Vec<Rule>)],
        purposes: &[Purpose],
    ) -> Batch {
        let mut batch = Batch::new(table_family(family), table(family));
        let is_new = !self.exists || self.is_odd;
        if self.is_odd {
            batch.delete_table();
        }
        if is_new {
            batch.table(&format!("rules for {}", table(family)));
        }
        for purpose in Purpose::ALL {
            let place = ChainPlace::of(purpose);
            let exists = !is_new && self.chains.iter().any(|(of, _)| *of == purpose);
            let wanted = wanted.iter().find(|(of, _)| *of == purpose).map(|(_, rules)| rules);
            match wanted {
                None if !exists => continue,
                Some(_) if !purposes.contains(&purpose) => continue,
                Some(rules) if exists && self.holds(purpose, rules) => continue,
                _ if exists => batch.flush(place.name),
                _ => batch.base_chain(place.name, place.hook, place.comment),
            }
            match wanted {
                None => batch.delete_chain(place.name),
                Some(rules) => rules.iter().for_each(|rule| batch.rule(place.name, &write(rule))),
            }
        }
        batch
    }
}

fn write(rule: &Rule) -> Expressions {
    let mut all = Expressions::new();
    if rule.marked {
        all = all.marked(KUBE_MARK);
    }
    if let Some(link) = &rule.incoming {
        all = all.from(link);
    }
    for (field, side) in [(Field::Source, rule.source), (Field::Destination, rule.destination)] {
        all = match side {
            Some(Side { net, outside: false }) => all.network(field, net),
            Some(Side { net, outside: true }) => all.not_network(field, net),
            None => all,
        };
    }
    all = match rule.packets {
        Some(TunnelPackets::Udp(port)) => all.udp_port(port),
        Some(TunnelPackets::Protocol(number)) => all.protocol(number),
        None => all,
    };
    match rule.verdict {
        Verdict::Return => all.verdict(flannel_nft::Verdict::Return),
        Verdict::Accept => all.verdict(flannel_nft::Verdict::Accept),
        Verdict::Drop => all.verdict(flannel_nft::Verdict::Drop),
        Verdict::Masquerade { random } => all.masquerade(random),
    }
}

/// `None` for anything that [`write`] would not have written.
fn read(family: Family, expressions: &Expressions) -> Option<Rule> {
    use Expression::{Bitwise, Compare, Masquerade, Meta, Payload};
    let mut rule = Rule::always(Verdict::Return);
    let mut rest = expressions.0.as_slice();
    loop {
        rest = match rest {
            [Meta { key: MetaKey::Mark, .. }, Bitwise { .. }, Compare { .. }, rest @ ..] => {
                rule.marked = true;
                rest
            }
            [Meta { key: MetaKey::InputName, .. }, Compare { value, .. }, rest @ ..] => {
                rule.incoming = Some(flannel_nft::text(value)?.to_owned());
                rest
            }
            [Meta { key: MetaKey::TransportProtocol, .. }, Compare { value, .. }, rest @ ..] => {
                let [protocol] = value.as_slice() else { return None };
                rule.packets = Some(TunnelPackets::Protocol(*protocol));
                rest
            }
            [Payload { header: Header::Transport, .. }, Compare { value, .. }, rest @ ..] => {
                let port = value.as_slice().try_into().ok()?;
                rule.packets = Some(TunnelPackets::Udp(u16::from_be_bytes(port)));
                rest
            }
            [
                Payload { offset, .. },
                Bitwise { mask, .. },
                Compare { value, how, .. },
                rest @ ..,
            ] => {
                rule.side(family, *offset, value, Some(mask), *how)?;
                rest
            }
            [Payload { offset, .. }, Compare { value, how, .. }, rest @ ..] => {
                rule.side(family, *offset, value, None, *how)?;
                rest
            }
            [verdict] => {
                rule.verdict = match verdict {
                    Expression::Verdict(flannel_nft::Verdict::Return) => Verdict::Return,
                    Expression::Verdict(flannel_nft::Verdict::Accept) => Verdict::Accept,
                    Expression::Verdict(flannel_nft::Verdict::Drop) => Verdict::Drop,
                    Masquerade { fully_random } => Verdict::Masquerade { random: *fully_random },
                    _ => return None,
                };
                // Whatever was passed over above shows now.
                return (write(&rule) == *expressions).then_some(rule);
            }
            _ => return None,
        }
    }
}

impl Rule {
    fn side(
        &mut self,
        family: Family,
        offset: u32,
        value: &[u8],
        mask: Option<&[u8]>,
        how: Comparison,
    ) -> Option<()> {
        let (field, net) = loaded_network(offset, value, mask, table_family(family))?;
        let side = Some(Side { net, outside: how == Comparison::NotEqual });
        match field {
            Field::Source => self.source = side,
            Field::Destination => self.destination = side,
        }
        Some(())
    }
}
