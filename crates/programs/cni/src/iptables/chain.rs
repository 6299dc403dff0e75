//! The two sorts of chains: those that all containers share, which are made once, and a container's own.

use flannel_nft::TableFamily;

use super::program::{self, Kind, Program};
use super::saved_nat::SavedNat;
use super::transaction::{Rule, Transaction};
use super::{NAT, remove};
use crate::nft::Nft;
use crate::protocol::{Result, internal};

/// Others change the firewall, too.
const TRIES: usize = 3;

/// A chain that the first container needs and that stays, with its rules and what leads to it.
pub(crate) struct SharedChain {
    pub(crate) name: &'static str,
    pub(crate) rules: Vec<SharedRule>,
}

pub(crate) struct SharedRule {
    chain: &'static str,
    rule: Rule,
    first: bool,
}

pub(crate) struct OwnChain {
    pub(crate) family: TableFamily,
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
    /// The chain that leads to it, and by which rules.
    pub(crate) entry: &'static str,
    pub(crate) entries: Vec<Rule>,
    pub(crate) position: Position,
    /// Other attachments of the container have entries of their own to the same chain.
    pub(crate) has_others: bool,
    /// What must be there besides.
    pub(crate) shared: Vec<SharedChain>,
}

/// Where a container's entries go among those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Last,
    First,
    /// Behind all that lead to chains which ask for the destination's address, before the rest.
    BehindSpecific,
}

/// Makes a container's chain, in place of one by this name, and what is missing of the shared ones.
pub(crate) fn establish(nft: &mut Nft, own: &OwnChain) -> Result<()> {
    let program = Program::of_host(own.family)?;
    clear(nft, &program, own)?;
    if program.kind == Kind::Legacy {
        // Here the question has to be asked before.
        make_missing(&program, &own.shared)?;
    }
    let mut tries = 0;
    loop {
        tries += 1;
        match write(nft, &program, own) {
            Ok(()) => return Ok(()),
            // What others have may have become less meanwhile, so that the place is none any more.
            Err(_) if tries < TRIES && own.position == Position::BehindSpecific => {}
            Err(error) => return Err(error),
        }
    }
}

fn write(nft: &mut Nft, program: &Program, own: &OwnChain) -> Result<()> {
    let mut transaction = Transaction::default();
    if program.kind == Kind::Nftables {
        own.shared_rules().for_each(|it| transaction.push("-C", it.chain, &it.rule));
    }
    transaction.empty_chain(&own.name);
    for rule in &own.rules {
        transaction.push("-A", &own.name, rule);
    }
    let before = match own.position {
        Position::Last => None,
        Position::First => Some(0),
        Position::BehindSpecific => Some(entries_to_specific(nft, program, own)?),
    };
    for (at, rule) in own.jumps().enumerate() {
        match before.map(|before| format!("{} {}", own.entry, before + at + 1)) {
            None => transaction.push("-A", own.entry, &rule),
            Some(place) => transaction.push("-I", &place, &rule),
        }
    }
    match transaction.commit(program) {
        Err(_) if program.kind == Kind::Nftables && !own.shared.is_empty() => {
            make_missing(program, &own.shared)?;
            Ok(transaction.commit(program)?)
        }
        other => Ok(other?),
    }
}

/// How many entries reach down to the last one that leads to a chain which asks for the destination's address.
fn entries_to_specific(nft: &mut Nft, program: &Program, own: &OwnChain) -> Result<usize> {
    match program.kind {
        Kind::Nftables => {
            let rules = nft.all_rules(own.family, NAT)?;
            let is_specific =
                |chain: &str| rules.iter().any(|it| it.asks_for_destination() && it.chain == chain);
            let entries: Vec<_> = rules.iter().filter(|it| it.chain == own.entry).collect();
            let last = entries.iter().rposition(|it| it.target().is_some_and(is_specific));
            Ok(last.map_or(0, |at| at + 1))
        }
        Kind::Legacy => Ok(SavedNat::parse(&program.save()?).entries_to_specific(own.entry)),
    }
}

/// Whether a container's chain, its rules and its entries are there. `None`: no such chain.
pub(crate) fn verify(nft: &mut Nft, own: &OwnChain) -> Option<Result<()>> {
    let kind = match place(nft, own) {
        Ok(kind) => kind?,
        Err(error) => return Some(Err(error)),
    };
    let program = Program::of_kind(own.family, kind)?;
    let own_rules = own.rules.iter().map(|rule| (own.name.as_str(), rule.clone()));
    let entries = own.jumps().map(|rule| (own.entry, rule));
    let shared = own.shared_rules().map(SharedRule::place);
    let all_there = stand(&program, shared.chain(own_rules).chain(entries));
    Some(all_there.and_then(|()| {
        if own.position == Position::Last {
            return Ok(());
        }
        let saved = program.save()?;
        match SavedNat::parse(&saved).port_taken_from(own.entry, &own.name) {
            None => Ok(()),
            Some((port, by)) => Err(internal!(
                "host port {port} leads to another container: its chain {by} comes first"
            )
            .with_details("remove the other container, or choose another hostPort or hostIP")),
        }
    }))
}

fn place(nft: &mut Nft, own: &OwnChain) -> Result<Option<Kind>> {
    if nft.has_chain(own.family, NAT, &own.name)? {
        return Ok(Some(Kind::Nftables));
    }
    if !program::has_legacy_table(own.family) {
        return Ok(None);
    }
    let Some(program) = Program::of_kind(own.family, Kind::Legacy) else { return Ok(None) };
    let declaration = format!(":{} ", own.name);
    let is_there = program.save()?.lines().any(|line| line.starts_with(&declaration));
    Ok(is_there.then_some(Kind::Legacy))
}

/// What an ADD that was cut short may have left.
fn clear(nft: &mut Nft, program: &Program, own: &OwnChain) -> Result<()> {
    if !own.has_others {
        return remove::remove_of(nft, own.family, &own.name, own.entry);
    }
    if place(nft, own)? != Some(program.kind) {
        return Ok(());
    }
    for rule in own.jumps() {
        let mut transaction = Transaction::default();
        transaction.push("-D", own.entry, &rule);
        while transaction.commit(program).is_ok() {}
    }
    Ok(())
}

/// Makes what is missing of chains that containers share. Whoever makes a chain makes its rules with it;
/// where there is a chain already, what is missing is added one by one.
fn make_missing(program: &Program, shared: &[SharedChain]) -> Result<()> {
    if stand(program, shared.iter().flat_map(|it| &it.rules).map(SharedRule::place)).is_ok() {
        return Ok(());
    }
    for chain in shared {
        let mut whole = Transaction::default();
        whole.push("-N", chain.name, &Rule::default());
        chain.rules.iter().for_each(|it| it.put(&mut whole));
        match whole.commit(program) {
            Ok(()) => continue,
            // There is one.
            Err(refusal) if refusal.line.as_ref().is_some_and(|(at, _)| *at == 0) => {}
            Err(refusal) => return Err(refusal.into()),
        }
        for it in &chain.rules {
            if stand(program, std::iter::once(it.place())).is_err() {
                let mut missing = Transaction::default();
                it.put(&mut missing);
                missing.commit(program)?;
            }
        }
    }
    Ok(())
}

/// Whether all these rules are there. Programs of the older kind, those of IPv6 at least, take a rule for
/// another when they are asked for it; they know them apart when they are to delete one.
fn stand<'a>(program: &Program, rules: impl Iterator<Item = (&'a str, Rule)>) -> Result<()> {
    let mut transaction = Transaction::default();
    let (command, options): (_, &[&str]) = match program.kind {
        Kind::Nftables => ("-C", &[]),
        Kind::Legacy => ("-D", &["--test"]),
    };
    for (chain, rule) in rules {
        transaction.push(command, chain, &rule);
    }
    transaction.run(program, options).map_err(|refusal| match refusal.line {
        Some((_, line)) => {
            let rule = line.get(2..).unwrap_or_default();
            internal!("iptables lacks the rule \"-A{rule}\"")
        }
        None => refusal.into(),
    })
}

impl OwnChain {
    fn shared_rules(&self) -> impl Iterator<Item = &SharedRule> {
        self.shared.iter().flat_map(|chain| &chain.rules)
    }

    /// Its entries, as they lead to it.
    fn jumps(&self) -> impl Iterator<Item = Rule> {
        self.entries.iter().map(|rule| rule.clone().jump(&self.name))
    }
}

impl SharedRule {
    /// Before all others.
    pub(crate) fn first(chain: &'static str, rule: Rule) -> Self {
        Self { chain, rule, first: true }
    }

    /// Behind all others.
    pub(crate) fn last(chain: &'static str, rule: Rule) -> Self {
        Self { chain, rule, first: false }
    }

    fn place(&self) -> (&str, Rule) {
        (self.chain, self.rule.clone())
    }

    fn put(&self, transaction: &mut Transaction) {
        transaction.push(if self.first { "-I" } else { "-A" }, self.chain, &self.rule);
    }
}
