//! What the firewall holds: rules by chain, with what is needed to find and remove ours.

use std::io;
use std::net::IpAddr;

use flannel_netlink::{AttributeWriter, Attributes, ip};

use super::batch::{Userdata, read_userdata};
use super::{GET_CHAIN, GET_RULE, Nft, NftError, TableFamily, question};

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
const NAME: u16 = 1;
const DATA: u16 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedRule {
    pub(crate) chain: String,
    pub(crate) handle: u64,
    pub(crate) comment: Option<String>,
    /// The network it was made for, if we made it.
    pub(crate) network: Option<String>,
    /// The chain it jumps to.
    pub(crate) target: Option<String>,
    /// Of a rule of a layout that is ours: what it was made of, as a number.
    pub(super) print: Option<u64>,
    /// What kinds of expressions it is made of.
    pub(super) shape: Vec<String>,
    /// It asks for the destination's address.
    pub(crate) is_specific: bool,
    /// It sends packets elsewhere than where they wanted to go.
    pub(crate) translates: bool,
    /// The address that connections are sent on to.
    pub(crate) translated_to: Option<IpAddr>,
    /// Connections that it takes, so that no later rule gets them; `None` if it takes none, or it is not known which.
    pub(crate) takes: Option<TakenPort>,
}

/// Connections to a port of the host. What is `None` may be any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenPort {
    /// Of IP: 6 is TCP.
    pub(crate) protocol: Option<u8>,
    pub(crate) port: Option<u16>,
    pub(crate) destination: Option<IpAddr>,
}

impl TakenPort {
    /// Whether all connections of the other one are among these.
    pub(crate) fn covers(self, other: Self) -> bool {
        (self.protocol.is_none() || self.protocol == other.protocol)
            && (self.port.is_none() || self.port == other.port)
            && (self.destination.is_none() || self.destination == other.destination)
    }
}

impl Nft {
    /// Empty when there is no such chain.
    pub(crate) fn rules(
        &mut self,
        family: TableFamily,
        table: &str,
        chain: &str,
    ) -> Result<Vec<ListedRule>, NftError> {
        self.list(family, table, Some(chain))
    }

    /// Of all chains of a table, in their order. Empty when there is no such table.
    pub(crate) fn all_rules(
        &mut self,
        family: TableFamily,
        table: &str,
    ) -> Result<Vec<ListedRule>, NftError> {
        self.list(family, table, None)
    }

    fn list(
        &mut self,
        family: TableFamily,
        table: &str,
        chain: Option<&str>,
    ) -> Result<Vec<ListedRule>, NftError> {
        let mut wanted = AttributeWriter::default().text(RULE_TABLE, table);
        if let Some(chain) = chain {
            wanted = wanted.text(RULE_CHAIN, chain);
        }
        let listed = self.get_all(&question(GET_RULE, family, wanted), |rule| {
            // Kernels before 4.14 do not know how to filter.
            let is_asked_for = rule.text(RULE_TABLE) == Some(table)
                && chain.is_none_or(|chain| rule.text(RULE_CHAIN) == Some(chain));
            is_asked_for.then(|| listed(rule)).flatten()
        });
        match listed {
            // What is missing in a torn list would stay for ever.
            Err(NftError::Io(error)) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(NftError::Restless { table: table.to_owned() })
            }
            other => other,
        }
    }

    /// What `read` makes of a chain. `None`: there is no such chain.
    pub(super) fn chain<T>(
        &mut self,
        family: TableFamily,
        table: &str,
        chain: &str,
        read: impl FnOnce(Attributes<'_>) -> T,
    ) -> Result<Option<T>, NftError> {
        let wanted = AttributeWriter::default().text(1, table).text(3, chain);
        self.get(&question(GET_CHAIN, family, wanted), read)
    }

    pub(crate) fn has_chain(
        &mut self,
        family: TableFamily,
        table: &str,
        chain: &str,
    ) -> Result<bool, NftError> {
        Ok(self.chain(family, table, chain, |_| ())?.is_some())
    }
}

fn listed(rule: Attributes<'_>) -> Option<ListedRule> {
    let Userdata { comment, network, print } =
        rule.get(RULE_USERDATA).map(read_userdata).unwrap_or_default();
    let expressions = rule.nested(RULE_EXPRESSIONS).unwrap_or_default();
    let comment = comment.or_else(|| comment_of_iptables(expressions));
    Some(ListedRule {
        chain: rule.text(RULE_CHAIN)?.to_owned(),
        handle: rule.be64(RULE_HANDLE)?,
        comment,
        network,
        target: jump_target(expressions),
        print,
        shape: names(expressions).map(str::to_owned).collect(),
        is_specific: asks_for_destination(expressions),
        translates: names(expressions).any(|name| name == "nat"),
        translated_to: translation(expressions),
        takes: taken_port(expressions),
    })
}

/// What a rule asks for, if it ends what becomes of a connection and asks for nothing else.
fn taken_port(expressions: Attributes<'_>) -> Option<TakenPort> {
    const EQUAL: u32 = 0;
    const META_L4PROTO: u32 = 16;
    const NETWORK_HEADER: u32 = 1;
    const TRANSPORT_HEADER: u32 = 2;
    const DROP: u32 = 0;
    const ACCEPT: u32 = 1;
    #[derive(Clone, Copy)]
    enum Loaded {
        Protocol,
        Destination,
        Port,
    }
    let (mut taken, mut loaded, mut ends) = (TakenPort::default(), None, false);
    for (_, expression) in expressions.iter() {
        let expression = Attributes(expression);
        let data = expression.nested(DATA).unwrap_or_default();
        match expression.text(NAME)? {
            "counter" | "log" => {}
            "meta" if data.be32(2) == Some(META_L4PROTO) => loaded = Some(Loaded::Protocol),
            "payload" => {
                loaded = Some(match (data.be32(2)?, data.be32(3)?) {
                    (NETWORK_HEADER, 16 | 24) => Loaded::Destination,
                    // In the header of IPv4, and the next one in that of IPv6.
                    (NETWORK_HEADER, 9 | 6) => Loaded::Protocol,
                    (TRANSPORT_HEADER, 2) => Loaded::Port,
                    _ => return None,
                });
            }
            "cmp" => {
                let value = data.nested(3)?.get(1).filter(|_| data.be32(2) == Some(EQUAL))?;
                match loaded.take()? {
                    Loaded::Protocol => taken.protocol = value.first().copied(),
                    Loaded::Port => taken.port = Some(u16::from_be_bytes(value.try_into().ok()?)),
                    Loaded::Destination => taken.destination = Some(ip(value)?),
                }
            }
            "immediate" => match data.nested(2)?.nested(2).map(|verdict| verdict.be32(1)) {
                // A value for what follows, such as the address that packets are sent to.
                None => {}
                Some(Some(DROP | ACCEPT)) => ends = true,
                // Other chains decide, and may come back.
                Some(_) => return None,
            },
            "nat" | "redir" | "reject" => ends = true,
            _ => return None,
        }
    }
    ends.then_some(taken)
}

fn names(expressions: Attributes<'_>) -> impl Iterator<Item = &str> {
    expressions.iter().filter_map(|(_, expression)| Attributes(expression).text(NAME))
}

/// Whether the address in the header of IPv4 or IPv6 is loaded.
fn asks_for_destination(expressions: Attributes<'_>) -> bool {
    const NETWORK_HEADER: u32 = 1;
    const DESTINATIONS: [u32; 2] = [16, 24];
    data_of(expressions, "payload").any(|data| {
        data.be32(2) == Some(NETWORK_HEADER)
            && data.be32(3).is_some_and(|offset| DESTINATIONS.contains(&offset))
    })
}

/// The address that is at hand when the translation is made.
fn translation(expressions: Attributes<'_>) -> Option<IpAddr> {
    data_of(expressions, "nat").next()?;
    data_of(expressions, "immediate").filter_map(|data| data.nested(2)?.get(1)).find_map(ip)
}

/// The data of every expression of a kind.
fn data_of<'a>(
    expressions: Attributes<'a>,
    kind: &'static str,
) -> impl Iterator<Item = Attributes<'a>> {
    expressions
        .iter()
        .map(|(_, expression)| Attributes(expression))
        .filter(move |expression| expression.text(NAME) == Some(kind))
        .filter_map(|expression| expression.nested(DATA))
}

/// iptables keeps comments as something that a rule looks for and always finds.
fn comment_of_iptables(expressions: Attributes<'_>) -> Option<String> {
    data_of(expressions, "match")
        .find(|extension| extension.text(1) == Some("comment"))
        .and_then(|extension| extension.text(3))
        .map(str::to_owned)
}

/// Of the last verdict among the expressions.
fn jump_target(expressions: Attributes<'_>) -> Option<String> {
    data_of(expressions, "immediate")
        .filter_map(|data| data.nested(2)?.nested(2)?.text(2).map(str::to_owned))
        .last()
}
