//! A change of the firewall, message by message.

use flannel_netlink::{AttributeWriter, RawRequest};

use crate::wire::{self, APPEND, CREATE};
use crate::{
    Element, Expressions, Flowtable, Hook, Set, TableFamily, TableOwnership, of_table, request,
    userdata,
};

/// Elements are told in one attribute, whose length is a number of 16 bits.
const ELEMENTS_BYTES: usize = 48 * 1024;

/// Where among its chain's rules a rule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    First,
    Last,
    /// Before the rule with this handle.
    Before(u64),
}

/// Changes of the objects of a table, or of several, which become a transaction.
pub struct Batch {
    family: TableFamily,
    table: String,
    pub(crate) changes: Vec<RawRequest>,
    /// What each change is for, in words that follow "could not".
    pub(crate) words: Vec<String>,
    sets: u32,
}

impl Batch {
    pub fn new(family: TableFamily, table: &str) -> Self {
        Self { family, table: table.to_owned(), changes: Vec::new(), words: Vec::new(), sets: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether rules or chains are removed by it, which the kernel takes its time to forget.
    pub fn removes(&self) -> bool {
        let kinds = [wire::DELETE_RULE, wire::DELETE_CHAIN, wire::DELETE_TABLE];
        self.changes.iter().any(|change| kinds.contains(&(change.kind & 0xff)))
    }

    /// Goes on with another table.
    pub fn switch(&mut self, family: TableFamily, table: &str) {
        self.family = family;
        table.clone_into(&mut self.table);
    }

    /// Makes the table, unless it is there.
    pub fn table(&mut self, comment: &str) {
        self.owned_table(comment, TableOwnership::Shared);
    }

    /// Makes the table the connection's own, or takes over one whose owner is gone.
    pub fn owned_table(&mut self, comment: &str, ownership: TableOwnership) {
        let table = of_table(&self.table);
        let table = commented(table, wire::TABLE_USERDATA, comment);
        let table = match ownership.flags() {
            0 => table,
            flags => table.be32(wire::TABLE_FLAGS, flags),
        };
        self.push(wire::NEW_TABLE, CREATE, format!("make the table {}", self.table), table);
    }

    /// Removes the table with all that is in it.
    pub fn delete_table(&mut self) {
        let what = format!("remove the table {}", self.table);
        self.push(wire::DELETE_TABLE, 0, what, of_table(&self.table));
    }

    /// Makes a chain that others jump to, unless it is there.
    pub fn chain(&mut self, name: &str) {
        self.make_chain(name, self.of_chain(name));
    }

    /// Makes a base chain that accepts what no rule decides about, unless it is there.
    pub fn base_chain(&mut self, name: &str, hook: Hook, comment: &str) {
        let place = AttributeWriter::default()
            .be32(wire::HOOK_NUMBER, hook.point as u32)
            .be32(wire::HOOK_PRIORITY, hook.priority as u32);
        let chain = self
            .of_chain(name)
            .nest(wire::CHAIN_HOOK, &place)
            .be32(wire::CHAIN_POLICY, wire::ACCEPT)
            .text(wire::CHAIN_TYPE, hook.kind.name());
        self.make_chain(name, commented(chain, wire::CHAIN_USERDATA, comment));
    }

    fn make_chain(&mut self, name: &str, chain: AttributeWriter) {
        self.push(wire::NEW_CHAIN, CREATE, format!("make the chain {name}"), chain);
    }

    pub fn delete_chain(&mut self, name: &str) {
        let chain = self.of_chain(name);
        self.push(wire::DELETE_CHAIN, 0, format!("remove the chain {name}"), chain);
    }

    /// Removes all rules of a chain.
    pub fn flush(&mut self, chain: &str) {
        let rules = of_table(&self.table).text(wire::RULE_CHAIN, chain);
        self.push(wire::DELETE_RULE, 0, format!("empty the chain {chain}"), rules);
    }

    /// Appends a rule that nothing is kept with.
    pub fn rule(&mut self, chain: &str, rule: &Expressions) {
        self.put_rule(chain, rule, &[], Spot::Last);
    }

    /// Adds a rule with a comment by which it is found again and an owner.
    pub fn owned_rule(
        &mut self,
        chain: &str,
        rule: &Expressions,
        (comment, owner): (&str, &str),
        spot: Spot,
    ) {
        self.put_rule(chain, rule, &userdata::encode(Some(comment), Some(owner)), spot);
    }

    fn put_rule(&mut self, chain: &str, rule: &Expressions, userdata: &[u8], spot: Spot) {
        let mut attributes = of_table(&self.table)
            .text(wire::RULE_CHAIN, chain)
            .nest(wire::RULE_EXPRESSIONS, &rule.encode());
        if !userdata.is_empty() {
            attributes = attributes.bytes(wire::RULE_USERDATA, userdata);
        }
        if let Spot::Before(handle) = spot {
            attributes = attributes.be64(wire::RULE_POSITION, handle);
        }
        let place = if spot == Spot::Last { APPEND } else { 0 };
        let what = format!("add a rule to the chain {chain}");
        self.push(wire::NEW_RULE, CREATE | place, what, attributes);
    }

    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        let rule =
            of_table(&self.table).text(wire::RULE_CHAIN, chain).be64(wire::RULE_HANDLE, handle);
        self.push(wire::DELETE_RULE, 0, format!("remove a rule from the chain {chain}"), rule);
    }

    /// Makes a set or a map, unless it is there.
    pub fn set(&mut self, set: &Set) {
        self.sets += 1;
        let attributes = set.encode(&self.table, self.sets);
        self.push(wire::NEW_SET, CREATE, format!("make the set {}", set.name), attributes);
    }

    pub fn delete_set(&mut self, name: &str) {
        let set = of_table(&self.table).text(wire::SET_NAME, name);
        self.push(wire::DELETE_SET, 0, format!("remove the set {name}"), set);
    }

    pub fn add_elements(&mut self, set: &str, elements: &[Element]) {
        let what = format!("add to the set {set}");
        self.change_elements(wire::NEW_ELEMENTS, CREATE, &what, set, elements);
    }

    pub fn delete_elements(&mut self, set: &str, elements: &[Element]) {
        let what = format!("remove from the set {set}");
        self.change_elements(wire::DELETE_ELEMENTS, 0, &what, set, elements);
    }

    /// Removes all elements of a set.
    pub fn flush_set(&mut self, set: &str) {
        let all = of_table(&self.table).text(wire::SET_NAME, set);
        self.push(wire::DELETE_ELEMENTS, 0, format!("empty the set {set}"), all);
    }

    fn change_elements(
        &mut self,
        kind: u16,
        flags: u16,
        what: &str,
        set: &str,
        elements: &[Element],
    ) {
        let mut elements = elements.iter().peekable();
        while elements.peek().is_some() {
            let mut list = AttributeWriter::default();
            while list.as_bytes().len() < ELEMENTS_BYTES
                && let Some(element) = elements.next()
            {
                let element = element.encode();
                list.append(&AttributeWriter::default().nest(wire::LIST_ELEMENT, &element));
            }
            let change =
                of_table(&self.table).text(wire::SET_NAME, set).nest(wire::ELEMENTS, &list);
            self.push(kind, flags, what.to_owned(), change);
        }
    }

    /// Makes a named counter, which counts from 0, unless it is there.
    pub fn counter(&mut self, name: &str) {
        let zero =
            AttributeWriter::default().be64(wire::COUNTER_BYTES, 0).be64(wire::COUNTER_PACKETS, 0);
        let counter = self.of_counter(name).nest(wire::OBJECT_DATA, &zero);
        self.push(wire::NEW_OBJECT, CREATE, format!("make the counter {name}"), counter);
    }

    pub fn delete_counter(&mut self, name: &str) {
        let counter = self.of_counter(name);
        self.push(wire::DELETE_OBJECT, 0, format!("remove the counter {name}"), counter);
    }

    pub fn flowtable(&mut self, flowtable: &Flowtable) {
        let attributes = flowtable.encode(&self.table);
        let what = format!("make the flowtable {}", flowtable.name);
        self.push(wire::NEW_FLOWTABLE, CREATE, what, attributes);
    }

    pub fn delete_flowtable(&mut self, name: &str) {
        let flowtable = of_table(&self.table).text(wire::FLOWTABLE_NAME, name);
        self.push(wire::DELETE_FLOWTABLE, 0, format!("remove the flowtable {name}"), flowtable);
    }

    fn of_chain(&self, name: &str) -> AttributeWriter {
        of_table(&self.table).text(wire::CHAIN_NAME, name)
    }

    fn of_counter(&self, name: &str) -> AttributeWriter {
        of_table(&self.table)
            .text(wire::OBJECT_NAME, name)
            .be32(wire::OBJECT_TYPE, wire::OBJECT_COUNTER)
    }

    fn push(&mut self, kind: u16, flags: u16, what: String, attributes: AttributeWriter) {
        self.changes.push(RawRequest { flags, ..request(kind, self.family, attributes) });
        self.words.push(what);
    }
}

/// Older kernels do not keep comments of tables and chains, and do not mind them.
fn commented(object: AttributeWriter, kind: u16, comment: &str) -> AttributeWriter {
    match comment {
        "" => object,
        comment => object.bytes(kind, &userdata::encode(Some(comment), None)),
    }
}
