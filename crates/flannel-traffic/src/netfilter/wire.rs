//! What nftables calls its messages and their attributes, and how a rule says where it jumps to. Pure.

use flannel_netlink::nfnetlink::{NFTABLES, NetfilterRequest};
use flannel_netlink::{AttributeWriter, Attributes};

use crate::Family;

pub(crate) const NEW_TABLE: u16 = 0;
pub(crate) const GET_TABLE: u16 = 1;
pub(crate) const DELETE_TABLE: u16 = 2;
pub(crate) const NEW_CHAIN: u16 = 3;
pub(crate) const GET_CHAIN: u16 = 4;
pub(crate) const DELETE_CHAIN: u16 = 5;
pub(crate) const NEW_RULE: u16 = 6;
pub(crate) const GET_RULE: u16 = 7;
pub(crate) const DELETE_RULE: u16 = 8;
pub(crate) const NEW_GENERATION: u16 = 15;

/// Attributes. The table's name is attribute 1 of tables, chains, rules, sets and all the rest.
pub(crate) const TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const GENERATION_PROCESS: u16 = 2;
pub(crate) const GENERATION_PROCESS_NAME: u16 = 3;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CHAIN: u16 = 2;

/// What the kernel calls the family: NFPROTO_IPV4 or NFPROTO_IPV6.
pub(crate) fn protocol(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

pub(crate) fn request(kind: u16, family: Family, attributes: AttributeWriter) -> NetfilterRequest {
    NetfilterRequest { subsystem: NFTABLES, kind, flags: 0, family: protocol(family), attributes }
}

/// Whether these are a rule's, and one that jumps to `chain`. `None`: it does not say what it does.
pub(crate) fn jumps_to(rule: Attributes<'_>, chain: &str) -> Option<bool> {
    let expressions = rule.nested(RULE_EXPRESSIONS)?;
    Some(expressions.iter().any(|(_, expression)| {
        let expression = Attributes(expression);
        expression.text(EXPRESSION_NAME) == Some("immediate")
            && expression
                .nested(EXPRESSION_DATA)
                .and_then(|data| data.nested(IMMEDIATE_DATA))
                .and_then(|data| data.nested(DATA_VERDICT))
                .and_then(|verdict| verdict.text(VERDICT_CHAIN))
                == Some(chain)
    }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn jump_rule(table: &str, chain: &str, target: &str) -> AttributeWriter {
        let new = AttributeWriter::default;
        let verdict = new().be32(1, 0xffff_fffd).text(VERDICT_CHAIN, target);
        let data = new().nest(DATA_VERDICT, &verdict);
        let data = new().be32(1, 0).nest(IMMEDIATE_DATA, &data);
        let jump = new().text(EXPRESSION_NAME, "immediate").nest(EXPRESSION_DATA, &data);
        let counter = new().text(EXPRESSION_NAME, "counter");
        let expressions = new().nest(1, &counter).nest(1, &jump);
        new()
            .text(TABLE, table)
            .text(RULE_CHAIN, chain)
            .be64(RULE_HANDLE, 7)
            .nest(RULE_EXPRESSIONS, &expressions)
    }

    #[test]
    fn a_jump_is_found_among_other_expressions() {
        let rule = jump_rule("nat", "POSTROUTING", "FLANNEL-POSTRTG");
        assert_eq!(jumps_to(rule.read(), "FLANNEL-POSTRTG"), Some(true));
        assert_eq!(jumps_to(rule.read(), "FLANNEL-FWD"), Some(false));
        assert_eq!(jumps_to(Attributes(&[]), "FLANNEL-FWD"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_rule_is_too_strange_to_read(bytes: Vec<u8>) {
            let _ = jumps_to(Attributes(&bytes), "x");
            let nested = AttributeWriter::default().bytes(RULE_EXPRESSIONS, &bytes);
            proptest::prop_assert!(jumps_to(nested.read(), "x").is_some());
        }
    }
}
