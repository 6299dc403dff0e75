//! What the firewall holds: rules by chain, with what is needed to find and remove ours.

use super::batch::read_userdata;
use super::{Family, GET_CHAIN, GET_RULE, Nft, NftError};
use crate::attributes::{Attributes, find, read, text};

const GENERIC_HEADER: usize = 4;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
const DUMP_TRIES: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedRule {
    pub(crate) handle: u64,
    pub(crate) comment: Option<String>,
    /// The network it was made for, if we made it.
    pub(crate) network: Option<String>,
    /// The chain it jumps to.
    pub(crate) target: Option<String>,
}

impl Nft {
    /// Empty when there is no such chain.
    pub(crate) fn rules(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<ListedRule>, NftError> {
        let wanted = Attributes::default().text(RULE_TABLE, table).text(RULE_CHAIN, chain);
        let mut rules = Vec::new();
        for _ in 0..DUMP_TRIES {
            rules.clear();
            let whole = self.dump(GET_RULE, family, &wanted, |payload| {
                let Some(attributes) = payload.get(GENERIC_HEADER..) else { return };
                // Kernels before 4.14 do not know how to filter.
                if find(attributes, RULE_TABLE).map(text) == Some(table)
                    && find(attributes, RULE_CHAIN).map(text) == Some(chain)
                {
                    rules.extend(listed(attributes));
                }
            })?;
            if whole {
                break;
            }
        }
        Ok(rules)
    }

    pub(crate) fn has_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<bool, NftError> {
        let wanted = Attributes::default().text(1, table).text(3, chain);
        Ok(self.get(GET_CHAIN, family, &wanted)?.is_some())
    }
}

fn listed(attributes: &[u8]) -> Option<ListedRule> {
    let handle = u64::from_be_bytes(*find(attributes, RULE_HANDLE)?.first_chunk()?);
    let (comment, network) = find(attributes, RULE_USERDATA).map(read_userdata).unwrap_or_default();
    let target = find(attributes, RULE_EXPRESSIONS).and_then(jump_target);
    Some(ListedRule { handle, comment, network, target })
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
