//! Chains of the table `filter` that all containers share, and a container's rules among them.

use super::Table;
use super::chain::{SharedChain, make_missing, rules_of, stand};
use super::program::{Kind, Program, has_legacy_table};
use super::transaction::{Rule, Transaction};
use crate::nft::{Nft, TableFamily};
use crate::protocol::Error;

/// Makes what is missing of these chains and their rules.
pub(crate) fn ensure_filters(family: TableFamily, shared: &[SharedChain]) -> Result<(), Error> {
    make_missing(&Program::of_host(family)?, Table::Filter, shared)
}

/// Whether all of these rules stand.
pub(crate) fn check_filters(family: TableFamily, shared: &[SharedChain]) -> Result<(), Error> {
    let rules = rules_of(shared).map(|it| it.place());
    stand(&Program::of_host(family)?, Table::Filter, rules)
}

/// Removes rules of a chain, whichever kind of iptables has it. Those that are gone are fine.
pub(crate) fn remove_filters(
    nft: &mut Nft,
    family: TableFamily,
    chain: &str,
    rules: &[Rule],
) -> Result<(), Error> {
    let is_in_nft = nft.has_chain(family, Table::Filter.name(), chain)?;
    let is_in_legacy = has_legacy_table(family, Table::Filter);
    for (kind, may_be) in [(Kind::Nftables, is_in_nft), (Kind::Legacy, is_in_legacy)] {
        // Whoever has no such program cannot have made such rules with it.
        if let Some(program) = may_be.then(|| Program::of_kind(family, kind)).flatten() {
            remove_each(&program, chain, rules);
        }
    }
    Ok(())
}

fn remove_each(program: &Program, chain: &str, rules: &[Rule]) {
    let mut all = Transaction::of(Table::Filter);
    rules.iter().for_each(|rule| all.delete(chain, rule));
    if all.commit(program).is_ok() {
        return;
    }
    for rule in rules {
        let mut one = Transaction::of(Table::Filter);
        one.delete(chain, rule);
        let _ = one.commit(program);
    }
}
