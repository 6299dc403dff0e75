//! Removal of containers' chains, whoever made them and by whichever kind of iptables.

use flannel_nft::{SavedLine, TableFamily, read_saved};

use super::NAT;
use super::program::{Kind, Program, has_legacy_table};
use super::transaction::{Rule, Transaction};
use crate::nft::{Batch, Nft, NftError};
use crate::protocol::{Error, Result};

const FAMILIES: [TableFamily; 2] = [TableFamily::Ipv4, TableFamily::Ipv6];

/// Removes a chain, of both families, and the rules of `entry` that jump to it. Usually there is none,
/// and to find that out costs a system call or two.
pub(crate) fn remove_chain(nft: &mut Nft, chain: &str, entry: &str) -> Result<()> {
    for family in FAMILIES {
        remove_of(nft, family, chain, entry)?;
    }
    Ok(())
}

pub(super) fn remove_of(
    nft: &mut Nft,
    family: TableFamily,
    chain: &str,
    entry: &str,
) -> Result<()> {
    remove_from_nft(nft, family, chain, entry)?;
    if has_legacy_table(family) {
        remove_from_legacy(family, entry, |target, _| target == chain)?;
    }
    Ok(())
}

pub(crate) struct Stale<'a> {
    /// The chain that leads to them.
    pub(crate) entry: &'a str,
    /// What the comment of a rule that leads to one of this network's begins with.
    pub(crate) comment: &'a str,
    pub(crate) valid: &'a [String],
}

impl Stale<'_> {
    fn is(&self, chain: &str, comment: &str) -> bool {
        const OURS: &str = "CNI-";
        chain.starts_with(OURS)
            && comment.starts_with(self.comment)
            && !self.valid.iter().any(|valid| valid == chain)
    }
}

/// Removes the chains of a network's containers that no longer exist, whoever made them.
pub(crate) fn collect(nft: &mut Nft, stale: &Stale<'_>) -> Result<()> {
    for family in FAMILIES {
        let mut chains: Vec<String> = Vec::new();
        for rule in nft.rules(family, NAT, stale.entry)? {
            if let (Some(chain), Some(comment)) = (rule.target(), &rule.comment)
                && stale.is(chain, comment)
                && !chains.iter().any(|it| it == chain)
            {
                chains.push(chain.to_owned());
            }
        }
        for chain in chains {
            remove_from_nft(nft, family, &chain, stale.entry)?;
        }
        if has_legacy_table(family) {
            remove_from_legacy(family, stale.entry, |chain, comment| stale.is(chain, comment))?;
        }
    }
    Ok(())
}

fn remove_from_nft(
    nft: &mut Nft,
    family: TableFamily,
    chain: &str,
    entry: &str,
) -> Result<(), NftError> {
    if !nft.has_chain(family, NAT, chain)? {
        return Ok(());
    }
    let mut batch = Batch::new(family, NAT);
    for rule in nft.rules(family, NAT, entry)? {
        if rule.target() == Some(chain) {
            batch.delete_rule(entry, rule.handle);
        }
    }
    batch.flush(chain);
    batch.delete_chain(chain);
    match nft.commit(&batch) {
        // Somebody else was faster.
        Err(error) if error.is_absence() => Ok(()),
        other => other,
    }
}

/// Removes the chains that `is_wanted` says, by name and by the comment of the rule that leads there.
fn remove_from_legacy(
    family: TableFamily,
    entry: &str,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> Result<()> {
    // Whoever has no such program cannot have made such rules with it.
    let Some(program) = Program::of_kind(family, Kind::Legacy) else { return Ok(()) };
    let saved = program.save()?;
    let mut transaction = Transaction::default();
    let mut chains: Vec<String> = Vec::new();
    for line in read_saved(&saved) {
        match line {
            // One that nothing leads to, as an ADD leaves it that was cut short.
            SavedLine::Chain { name, .. } if is_wanted(name, "") => chains.push(name.to_owned()),
            SavedLine::Rule(rule) if rule.chain == entry => {
                let comment = rule.option("--comment").unwrap_or_default();
                let Some(chain) = rule.option("-j").filter(|it| is_wanted(it, comment)) else {
                    continue;
                };
                transaction.push("-D", entry, &Rule(rule.words.clone()));
                if !chains.iter().any(|it| it == chain) {
                    chains.push(chain.to_owned());
                }
            }
            _ => {}
        }
    }
    if chains.is_empty() {
        return Ok(());
    }
    for chain in &chains {
        transaction.delete_chain(chain);
    }
    transaction.commit(&program).map_err(|refusal| {
        Error::from(refusal).context(format_args!("could not remove {}", chains.join(", ")))
    })
}
