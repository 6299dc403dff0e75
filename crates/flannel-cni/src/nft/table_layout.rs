//! Where containers' rules are: a table, its chains, and the rules that lead packets from one to the next.
//! Everybody who adds a rule first compares this layout with what is there: somebody may have emptied it.

use flannel_netlink::Attributes;

use super::batch::Hook;
use super::{Batch, Expressions, ListedRule, Nft, NftError, TableFamily};

const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const ACCEPT: u32 = 1;

pub(crate) struct TableLayout {
    pub(crate) family: TableFamily,
    table: &'static str,
    comment: &'static str,
    chains: Vec<Chain>,
}

struct Chain {
    name: &'static str,
    hook: Option<Hook>,
    /// `None`: its rules are the containers'.
    rules: Option<Vec<Expressions>>,
    /// Packets find their way without it.
    is_guard: bool,
}

/// A chain that is not as it must be.
pub(crate) struct Flaw {
    chain: &'static str,
    is_guard: bool,
    /// It is there, but stands elsewhere in the packets' way.
    is_elsewhere: bool,
}

impl Flaw {
    pub(crate) fn chain(&self) -> &'static str {
        self.chain
    }

    /// Whether packets miss their way for it.
    pub(crate) fn matters(&self) -> bool {
        !self.is_guard
    }
}

impl TableLayout {
    pub(crate) fn new(family: TableFamily, table: &'static str, comment: &'static str) -> Self {
        Self { family, table, comment, chains: Vec::new() }
    }

    /// A chain for containers' rules.
    pub(crate) fn holder(mut self, name: &'static str, hook: Option<Hook>) -> Self {
        self.chains.push(Chain { name, hook, rules: None, is_guard: false });
        self
    }

    /// A chain that has these rules and no others. What it leads to is named before.
    pub(crate) fn leading(
        mut self,
        name: &'static str,
        hook: Option<Hook>,
        rules: Vec<Expressions>,
    ) -> Self {
        self.chains.push(Chain { name, hook, rules: Some(rules), is_guard: false });
        self
    }

    /// A chain that keeps packets away. The Go plugins have none.
    pub(crate) fn guard(mut self, name: &'static str, hook: Hook, rules: Vec<Expressions>) -> Self {
        self.chains.push(Chain { name, hook: Some(hook), rules: Some(rules), is_guard: true });
        self
    }

    /// What is missing or different. `present`: all rules of the table. A chain without a hook is there
    /// if a rule leads to it, so it needs no look of its own.
    pub(crate) fn flaws(
        &self,
        nft: &mut Nft,
        present: &[ListedRule],
    ) -> Result<Vec<Flaw>, NftError> {
        let mut flaws = Vec::new();
        for chain in &self.chains {
            let place = match chain.hook {
                None => Place::Right,
                Some(hook) => nft
                    .chain(self.family, self.table, chain.name, |it| place(it, hook))?
                    .unwrap_or(Place::Absent),
            };
            if place != Place::Right || !chain.holds_its_rules(present) {
                let is_elsewhere = place == Place::Wrong;
                flaws.push(Flaw { chain: chain.name, is_guard: chain.is_guard, is_elsewhere });
            }
        }
        Ok(flaws)
    }

    /// Makes all of it, where something is not as it must be.
    pub(crate) fn mend(&self, batch: &mut Batch, flaws: &[Flaw]) {
        if flaws.is_empty() {
            return;
        }
        batch.switch(self.family, self.table);
        batch.table(self.comment);
        for flaw in flaws.iter().filter(|flaw| flaw.is_elsewhere) {
            batch.flush(flaw.chain);
            batch.delete_chain(flaw.chain);
        }
        for chain in &self.chains {
            match chain.hook {
                Some(hook) => batch.base_chain(chain.name, hook),
                None => batch.chain(chain.name),
            }
            if let Some(rules) = &chain.rules
                && flaws.iter().any(|flaw| flaw.chain == chain.name)
            {
                batch.flush(chain.name);
                for rule in rules {
                    batch.frame_rule(chain.name, rule);
                }
            }
        }
    }
}

impl Chain {
    fn holds_its_rules(&self, present: &[ListedRule]) -> bool {
        let Some(rules) = &self.rules else { return true };
        let mut found = present.iter().filter(|rule| rule.chain == self.name);
        rules.iter().all(|rule| found.next().is_some_and(|found| is_as_wanted(found, rule)))
            && found.next().is_none()
    }
}

/// A rule of ours says what it is made of. Of the Go plugins' rules, those are as good that are made of
/// the same parts and lead to the same chain.
fn is_as_wanted(found: &ListedRule, wanted: &Expressions) -> bool {
    match found.print {
        Some(print) => print == wanted.print(),
        None => {
            // A mask of whole bytes needs no arithmetic, which `nft` knows and leaves out.
            let matters = |kind: &&str| *kind != "bitwise";
            let found_shape = found.shape.iter().map(String::as_str).filter(matters);
            found.target.as_deref() == wanted.target()
                && wanted.shape().filter(matters).eq(found_shape)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Right,
    Wrong,
    Absent,
}

fn place(chain: Attributes<'_>, hook: Hook) -> Place {
    let (wanted, priority) = hook.numbers();
    let stands = chain.nested(CHAIN_HOOK).is_some_and(|it| {
        it.be32(HOOK_NUMBER) == Some(wanted) && it.be32(HOOK_PRIORITY) == Some(priority as u32)
    });
    let is_right = stands
        && chain.text(CHAIN_TYPE) == Some(hook.kind())
        && chain.be32(CHAIN_POLICY) == Some(ACCEPT);
    if is_right { Place::Right } else { Place::Wrong }
}
