//! A table whose chains have fixed rules, beside chains for rules of others. Whoever adds a rule first compares this
//! layout with what is there: somebody may have emptied it.

use crate::{Batch, Expressions, Hook, Nft, Result, Rule, TableFamily};

/// A table, its chains, and the rules that lead packets from one to the next.
pub struct TableLayout {
    family: TableFamily,
    table: &'static str,
    comment: &'static str,
    chains: Vec<Chain>,
}

struct Chain {
    name: &'static str,
    hook: Option<Hook>,
    /// `None`: its rules are others'.
    rules: Option<Vec<Expressions>>,
    /// Packets find their way without it.
    is_guard: bool,
}

/// A chain that is not as it must be.
pub struct Flaw {
    pub chain: &'static str,
    /// Packets find their way without it.
    pub is_guard: bool,
    /// It is there, but stands elsewhere in the packets' way.
    is_elsewhere: bool,
}

impl TableLayout {
    pub fn new(family: TableFamily, table: &'static str, comment: &'static str) -> Self {
        Self { family, table, comment, chains: Vec::new() }
    }

    /// Adds a chain whose rules are others'.
    pub fn holder(mut self, name: &'static str, hook: Option<Hook>) -> Self {
        self.chains.push(Chain { name, hook, rules: None, is_guard: false });
        self
    }

    /// Adds a chain that has these rules and no others. What it leads to is named before.
    pub fn leading(
        mut self,
        name: &'static str,
        hook: Option<Hook>,
        rules: Vec<Expressions>,
    ) -> Self {
        self.chains.push(Chain { name, hook, rules: Some(rules), is_guard: false });
        self
    }

    /// Adds a chain that keeps packets away, and that packets find their way without.
    pub fn guard(mut self, name: &'static str, hook: Hook, rules: Vec<Expressions>) -> Self {
        self.chains.push(Chain { name, hook: Some(hook), rules: Some(rules), is_guard: true });
        self
    }

    /// What is missing or different. `present`: all rules of the table. A chain without a hook is there
    /// if a rule leads to it, so it needs no look of its own.
    pub fn flaws(&self, nft: &mut Nft, present: &[Rule]) -> Result<Vec<Flaw>> {
        let mut flaws = Vec::new();
        for chain in &self.chains {
            let found = match chain.hook {
                None => None,
                Some(_) => nft.chain(self.family, self.table, chain.name)?,
            };
            let stands = chain
                .hook
                .is_none_or(|hook| found.as_ref().is_some_and(|found| found.stands_at(hook)));
            if !stands || !chain.holds_its_rules(present) {
                let is_elsewhere = found.is_some() && !stands;
                flaws.push(Flaw { chain: chain.name, is_guard: chain.is_guard, is_elsewhere });
            }
        }
        Ok(flaws)
    }

    /// Makes all of it, where something is not as it must be.
    pub fn restore(&self, batch: &mut Batch, flaws: &[Flaw]) {
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
                Some(hook) => batch.base_chain(chain.name, hook, ""),
                None => batch.chain(chain.name),
            }
            if let Some(rules) = &chain.rules
                && flaws.iter().any(|flaw| flaw.chain == chain.name)
            {
                batch.flush(chain.name);
                for rule in rules {
                    batch.rule(chain.name, rule);
                }
            }
        }
    }
}

impl Chain {
    fn holds_its_rules(&self, present: &[Rule]) -> bool {
        let Some(rules) = &self.rules else { return true };
        let found = present.iter().filter(|rule| rule.chain == self.name);
        rules.iter().eq(found.map(|rule| &rule.expressions))
    }
}
