//! Rules as they stand in chains.

use flannel_netlink::Attributes;

use crate::{
    Expression, Expressions, Header, Nft, Result, TableFamily, of_table, request, userdata, wire,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub chain: String,
    pub handle: u64,
    pub comment: Option<String>,
    /// Who a rule of ours was made for.
    pub owner: Option<String>,
    pub expressions: Expressions,
}

impl Rule {
    /// The chain that it leads to.
    pub fn target(&self) -> Option<&str> {
        self.expressions.target()
    }

    /// Whether it loads the destination address from the header of IPv4 or IPv6.
    pub fn asks_for_destination(&self) -> bool {
        self.expressions.0.iter().any(|expression| {
            matches!(
                expression,
                Expression::Payload { header: Header::Network, offset: 16 | 24, .. }
            )
        })
    }

    pub(crate) fn read(rule: Attributes<'_>) -> Option<Self> {
        let userdata = rule.get(wire::RULE_USERDATA).map(userdata::decode).unwrap_or_default();
        let expressions = rule.nested(wire::RULE_EXPRESSIONS).unwrap_or_default();
        let expressions = Expressions::decode(expressions);
        let of_iptables = || expressions.comment_of_iptables().map(str::to_owned);
        Some(Self {
            chain: rule.text(wire::RULE_CHAIN)?.to_owned(),
            handle: rule.be64(wire::RULE_HANDLE)?,
            comment: userdata.comment.or_else(of_iptables),
            owner: userdata.owner,
            expressions,
        })
    }
}

impl Nft {
    /// The rules of a chain, in order. Empty if there is no such chain.
    pub fn rules(&mut self, family: TableFamily, table: &str, chain: &str) -> Result<Vec<Rule>> {
        let question = of_table(table).text(wire::RULE_CHAIN, chain);
        let mut rules = self.list(family, table, question)?;
        // Kernels before 4.14 do not filter.
        rules.retain(|rule| rule.chain == chain);
        Ok(rules)
    }

    /// The rules of all chains of a table, in order. Empty if there is no such table.
    pub fn all_rules(&mut self, family: TableFamily, table: &str) -> Result<Vec<Rule>> {
        self.list(family, table, of_table(table))
    }

    fn list(
        &mut self,
        family: TableFamily,
        table: &str,
        question: flannel_netlink::AttributeWriter,
    ) -> Result<Vec<Rule>> {
        self.get_all(&request(wire::GET_RULE, family, question), table, Rule::read)
    }
}
