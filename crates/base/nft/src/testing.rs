//! Rules without a kernel, for fuzzers.

use flannel_netlink::Attributes;

use crate::{Expressions, Rule};

/// Reads a rule as the kernel tells of it.
pub fn read_rule(rule: Attributes<'_>) -> Option<Rule> {
    Rule::read(rule)
}

/// Writes expressions as for the kernel, and reads them.
pub fn rewrite(expressions: &Expressions) -> Expressions {
    Expressions::decode(expressions.encode().read())
}
