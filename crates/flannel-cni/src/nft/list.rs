//! What the firewall holds: rules by chain, with what is needed to find and remove ours.

use std::net::IpAddr;
use std::time::Duration;

use super::batch::{Userdata, read_userdata};
use super::{Family, GET_CHAIN, GET_RULE, Nft, NftError};
use crate::attributes::{Attributes, find, read, text};

const GENERIC_HEADER: usize = 4;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
/// With the pauses between them, ten seconds.
const DUMP_TRIES: u32 = 100;
const TORN_PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedRule {
    pub(crate) chain: String,
    pub(crate) handle: u64,
    pub(crate) comment: Option<String>,
    /// The network it was made for, if we made it.
    pub(crate) network: Option<String>,
    /// The chain it jumps to.
    pub(crate) target: Option<String>,
    /// Of a rule of a frame that is ours: what it was made of, as a number.
    pub(super) print: Option<u64>,
    /// What kinds of expressions it is made of.
    pub(super) shape: Vec<String>,
    /// It asks for the destination's address.
    pub(crate) is_specific: bool,
    /// It sends packets elsewhere than where they wanted to go.
    pub(crate) translates: bool,
    /// The address that connections are sent on to.
    pub(crate) translated_to: Option<IpAddr>,
}

impl Nft {
    /// Empty when there is no such chain.
    pub(crate) fn rules(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<ListedRule>, NftError> {
        self.list(family, table, Some(chain))
    }

    /// Of all chains of a table, in their order. Empty when there is no such table.
    pub(crate) fn all_rules(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<ListedRule>, NftError> {
        self.list(family, table, None)
    }

    fn list(
        &mut self,
        family: Family,
        table: &str,
        chain: Option<&str>,
    ) -> Result<Vec<ListedRule>, NftError> {
        let mut wanted = Attributes::default().text(RULE_TABLE, table);
        if let Some(chain) = chain {
            wanted = wanted.text(RULE_CHAIN, chain);
        }
        let mut rules = Vec::new();
        for tries in 0..DUMP_TRIES {
            rules.clear();
            let whole = self.dump(GET_RULE, family, &wanted, |payload| {
                let Some(attributes) = payload.get(GENERIC_HEADER..) else { return };
                // Kernels before 4.14 do not know how to filter.
                let listed_chain = find(attributes, RULE_CHAIN).map(text);
                if find(attributes, RULE_TABLE).map(text) == Some(table)
                    && chain.is_none_or(|chain| listed_chain == Some(chain))
                {
                    rules.extend(listed(attributes));
                }
            })?;
            if whole {
                return Ok(rules);
            }
            // Others are changing it. What is missing in a torn list would stay for ever.
            std::thread::sleep(TORN_PAUSE * tries);
        }
        Err(NftError::Restless { table: table.to_owned() })
    }

    /// The attributes of a chain.
    pub(super) fn chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Option<Vec<u8>>, NftError> {
        let wanted = Attributes::default().text(1, table).text(3, chain);
        let answer = self.get(GET_CHAIN, family, &wanted)?;
        Ok(answer.map(|payload| payload.get(GENERIC_HEADER..).unwrap_or_default().to_vec()))
    }

    pub(crate) fn has_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<bool, NftError> {
        Ok(self.chain(family, table, chain)?.is_some())
    }
}

fn listed(attributes: &[u8]) -> Option<ListedRule> {
    let handle = u64::from_be_bytes(*find(attributes, RULE_HANDLE)?.first_chunk()?);
    let Userdata { comment, network, print } =
        find(attributes, RULE_USERDATA).map(read_userdata).unwrap_or_default();
    let expressions = find(attributes, RULE_EXPRESSIONS).unwrap_or_default();
    let comment = comment.or_else(|| comment_of_iptables(expressions));
    Some(ListedRule {
        chain: text(find(attributes, RULE_CHAIN)?).to_owned(),
        handle,
        comment,
        network,
        target: jump_target(expressions),
        print,
        shape: names(expressions).map(str::to_owned).collect(),
        is_specific: asks_for_destination(expressions),
        translates: names(expressions).any(|name| name == "nat"),
        translated_to: translation(expressions),
    })
}

fn names(expressions: &[u8]) -> impl Iterator<Item = &str> {
    read(expressions).filter_map(|(_, expression)| find(expression, 1)).map(text)
}

/// Whether the address in the header of IPv4 or IPv6 is loaded.
fn asks_for_destination(expressions: &[u8]) -> bool {
    const NETWORK_HEADER: [u8; 4] = 1u32.to_be_bytes();
    const DESTINATIONS: [[u8; 4]; 2] = [16u32.to_be_bytes(), 24u32.to_be_bytes()];
    data_of(expressions, "payload").any(|data| {
        find(data, 2) == Some(&NETWORK_HEADER[..])
            && DESTINATIONS.iter().any(|offset| find(data, 3) == Some(&offset[..]))
    })
}

/// The address that is at hand when the translation is made.
fn translation(expressions: &[u8]) -> Option<IpAddr> {
    data_of(expressions, "nat").next()?;
    data_of(expressions, "immediate").filter_map(|data| find(find(data, 2)?, 1)).find_map(address)
}

/// The data of every expression of a kind.
fn data_of<'a>(expressions: &'a [u8], kind: &'static str) -> impl Iterator<Item = &'a [u8]> {
    read(expressions)
        .filter(move |(_, expression)| find(expression, 1).map(text) == Some(kind))
        .filter_map(|(_, expression)| find(expression, 2))
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(IpAddr::from(*octets.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*octets.first_chunk::<16>()?)),
        _ => None,
    }
}

/// iptables keeps comments as something that a rule looks for and always finds.
fn comment_of_iptables(expressions: &[u8]) -> Option<String> {
    data_of(expressions, "match")
        .find(|extension| find(extension, 1).map(text) == Some("comment"))
        .and_then(|extension| find(extension, 3))
        .map(|comment| text(comment).to_owned())
}

/// Of the last verdict among the expressions.
fn jump_target(expressions: &[u8]) -> Option<String> {
    read(expressions)
        .filter(|(_, expression)| find(expression, 1).map(text) == Some("immediate"))
        .filter_map(|(_, expression)| {
            let data = find(find(expression, 2)?, 2)?;
            find(find(data, 2)?, 2).map(|chain| text(chain).to_owned())
        })
        .last()
}
