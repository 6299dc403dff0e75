//! A change of the firewall, message by message.

use std::borrow::Cow;

use flannel_netlink::AttributeWriter;
use flannel_netlink::nfnetlink::{NFTABLES, NetfilterRequest};

use super::expression::Expressions;
use super::{
    DELETE_CHAIN, DELETE_RULE, NEW_CHAIN, NEW_RULE, NEW_TABLE, NLM_F_APPEND, NLM_F_CREATE,
    TableFamily,
};

const COMMENT: u8 = 0;
/// Ours, where others have left room: which network a rule was made for.
const NETWORK: u8 = 0xf1;
/// Ours too: what a rule of a layout was made of.
const PRINT: u8 = 0xf2;
/// As long as `nft` allows a comment to be.
const LONGEST_COMMENT: usize = 127;
/// The kernel keeps 256 bytes of both together.
const LONGEST_NETWORK: usize = 100;

const TABLE_NAME: u16 = 1;
const TABLE_USERDATA: u16 = 6;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_POSITION: u16 = 6;
const RULE_USERDATA: u16 = 7;

/// Where in a packet's way a base chain stands.
#[derive(Clone, Copy)]
pub(crate) enum Hook {
    Prerouting,
    Output,
    Postrouting,
    /// Before anything else has looked at the packet, to refuse it.
    Arrival,
}

impl Hook {
    /// The kernel's number, and the place among others: `dstnat`, `srcnat` or `raw`.
    pub(super) fn numbers(self) -> (u32, i32) {
        match self {
            Self::Prerouting => (0, -100),
            Self::Output => (3, -100),
            Self::Postrouting => (4, 100),
            Self::Arrival => (0, -300),
        }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Prerouting | Self::Output | Self::Postrouting => "nat",
            Self::Arrival => "filter",
        }
    }
}

/// Where among its chain's rules a rule goes.
#[derive(Clone, Copy)]
pub(crate) enum Spot {
    First,
    Last,
    /// Before the rule with this handle.
    Before(u64),
}

pub(crate) struct Batch {
    family: TableFamily,
    table: String,
    pub(super) changes: Vec<NetfilterRequest>,
    /// What each change is for, in words that follow "could not".
    pub(super) words: Vec<String>,
}

impl Batch {
    pub(crate) fn new(family: TableFamily, table: &str) -> Self {
        Self { family, table: table.to_owned(), changes: Vec::new(), words: Vec::new() }
    }

    /// Whether there is something in it that removes.
    pub(super) fn removes(&self) -> bool {
        self.changes.iter().any(|change| matches!(change.kind, DELETE_RULE | DELETE_CHAIN))
    }

    /// Goes on with another table.
    pub(crate) fn switch(&mut self, family: TableFamily, table: &str) {
        self.family = family;
        table.clone_into(&mut self.table);
    }

    pub(crate) fn table(&mut self, comment: &str) {
        let mut attributes = AttributeWriter::default().text(TABLE_NAME, &self.table);
        if !comment.is_empty() {
            attributes = attributes.bytes(TABLE_USERDATA, &userdata(Some(comment), None, None));
        }
        self.push(NEW_TABLE, NLM_F_CREATE, format!("make the table {}", self.table), attributes);
    }

    pub(crate) fn chain(&mut self, name: &str) {
        let attributes =
            AttributeWriter::default().text(CHAIN_TABLE, &self.table).text(CHAIN_NAME, name);
        self.push(NEW_CHAIN, NLM_F_CREATE, format!("make the chain {name}"), attributes);
    }

    pub(crate) fn base_chain(&mut self, name: &str, hook: Hook) {
        let kind = hook.kind();
        let (number, priority) = hook.numbers();
        let hook = AttributeWriter::default()
            .be32(HOOK_NUMBER, number)
            .be32(HOOK_PRIORITY, priority as u32);
        let attributes = AttributeWriter::default()
            .text(CHAIN_TABLE, &self.table)
            .text(CHAIN_NAME, name)
            .nest(CHAIN_HOOK, &hook)
            .text(CHAIN_TYPE, kind);
        self.push(NEW_CHAIN, NLM_F_CREATE, format!("make the chain {name}"), attributes);
    }

    /// Of the bridge family: every frame that comes in by a port of a bridge passes it first.
    pub(crate) fn bridge_chain(&mut self, name: &str) {
        const PREROUTING: u32 = 0;
        const FIRST: i32 = -300;
        const ACCEPT: u32 = 1;
        let hook = AttributeWriter::default()
            .be32(HOOK_NUMBER, PREROUTING)
            .be32(HOOK_PRIORITY, FIRST as u32);
        let attributes = AttributeWriter::default()
            .text(CHAIN_TABLE, &self.table)
            .text(CHAIN_NAME, name)
            .nest(CHAIN_HOOK, &hook)
            .be32(CHAIN_POLICY, ACCEPT)
            .text(CHAIN_TYPE, "filter");
        self.push(NEW_CHAIN, NLM_F_CREATE, format!("make the chain {name}"), attributes);
    }

    pub(crate) fn delete_chain(&mut self, name: &str) {
        let attributes =
            AttributeWriter::default().text(CHAIN_TABLE, &self.table).text(CHAIN_NAME, name);
        self.push(DELETE_CHAIN, 0, format!("remove the chain {name}"), attributes);
    }

    pub(crate) fn flush(&mut self, chain: &str) {
        let attributes =
            AttributeWriter::default().text(RULE_TABLE, &self.table).text(RULE_CHAIN, chain);
        self.push(DELETE_RULE, 0, format!("empty the chain {chain}"), attributes);
    }

    /// A rule of a layout, which is known by what it is made of.
    pub(super) fn frame_rule(&mut self, chain: &str, rule: &Expressions) {
        let userdata = userdata(None, None, Some(rule.print()));
        self.put_rule(chain, rule, &userdata, Spot::Last);
    }

    /// `owner`: the comment by which the rule is found again, and the network it belongs to.
    pub(crate) fn owned_rule(
        &mut self,
        chain: &str,
        rule: &Expressions,
        (comment, network): (&str, &str),
        spot: Spot,
    ) {
        let userdata = userdata(Some(comment), Some(network), None);
        self.put_rule(chain, rule, &userdata, spot);
    }

    fn put_rule(&mut self, chain: &str, rule: &Expressions, userdata: &[u8], spot: Spot) {
        let mut attributes = AttributeWriter::default()
            .text(RULE_TABLE, &self.table)
            .text(RULE_CHAIN, chain)
            .nest(RULE_EXPRESSIONS, &rule.to_attributes())
            .bytes(RULE_USERDATA, userdata);
        if let Spot::Before(handle) = spot {
            attributes = attributes.be64(RULE_POSITION, handle);
        }
        let place = if matches!(spot, Spot::Last) { NLM_F_APPEND } else { 0 };
        self.push(
            NEW_RULE,
            NLM_F_CREATE | place,
            format!("add a rule to the chain {chain}"),
            attributes,
        );
    }

    pub(crate) fn delete_rule(&mut self, chain: &str, handle: u64) {
        let attributes = AttributeWriter::default()
            .text(RULE_TABLE, &self.table)
            .text(RULE_CHAIN, chain)
            .be64(RULE_HANDLE, handle);
        self.push(DELETE_RULE, 0, format!("remove a rule from the chain {chain}"), attributes);
    }

    fn push(&mut self, kind: u16, flags: u16, what: String, attributes: AttributeWriter) {
        let family = self.family as u8;
        self.changes.push(NetfilterRequest {
            subsystem: NFTABLES,
            kind,
            flags,
            family,
            attributes,
        });
        self.words.push(what);
    }
}

/// What nftables keeps with an object without looking at it: a comment, which `nft` shows, and more.
fn userdata(comment: Option<&str>, network: Option<&str>, print: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |kind: u8, value: &[u8]| {
        bytes.extend_from_slice(&[kind, value.len() as u8 + 1]);
        bytes.extend_from_slice(value);
        bytes.push(0);
    };
    if let Some(comment) = comment {
        put(COMMENT, fitted(comment, LONGEST_COMMENT).as_bytes());
    }
    if let Some(network) = network {
        put(NETWORK, fitted(network, LONGEST_NETWORK).as_bytes());
    }
    if let Some(print) = print {
        put(PRINT, &print.to_be_bytes());
    }
    bytes
}

/// A comment, as the firewall can hold it.
pub(crate) fn fitted_comment(text: &str) -> Cow<'_, str> {
    fitted(text, LONGEST_COMMENT)
}

/// The name of a network, as the firewall can hold it.
pub(crate) fn fitted_network(text: &str) -> Cow<'_, str> {
    fitted(text, LONGEST_NETWORK)
}

/// What is too long is cut, and told apart from others that begin alike.
fn fitted(text: &str, longest: usize) -> Cow<'_, str> {
    if text.len() <= longest {
        return Cow::Borrowed(text);
    }
    let print = format!("~{:016x}", print(text.as_bytes()));
    let end = text.floor_char_boundary(longest - print.len());
    Cow::Owned(format!("{}{print}", &text[..end]))
}

/// A number that others hardly have, by the method of Fowler, Noll and Vo.
pub(super) fn print(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// What stands with a rule.
#[derive(Default)]
pub(super) struct Userdata {
    pub(super) comment: Option<String>,
    pub(super) network: Option<String>,
    pub(super) print: Option<u64>,
}

pub(super) fn read_userdata(mut bytes: &[u8]) -> Userdata {
    let mut userdata = Userdata::default();
    while let [kind, len, rest @ ..] = bytes {
        let Some(value) = rest.get(..usize::from(*len)) else { break };
        let text = || flannel_netlink::text(value).unwrap_or_default().to_owned();
        match *kind {
            COMMENT => userdata.comment = Some(text()),
            NETWORK => userdata.network = Some(text()),
            PRINT => userdata.print = value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)),
            _ => {}
        }
        bytes = &rest[usize::from(*len)..];
    }
    userdata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_and_still_told_apart() {
        let [a, b] = ["a", "b"].map(|last| format!("{}{last}", "c".repeat(199)));
        let (a, b) = (fitted_comment(&a), fitted_comment(&b));
        assert_eq!((a.len(), b.len()), (LONGEST_COMMENT, LONGEST_COMMENT));
        assert_ne!(a, b);
        assert_eq!(fitted_comment("short"), "short");
        assert_eq!(fitted_comment(&a), a, "it stays as it is");
        let all = userdata(Some(&"c".repeat(300)), Some(&"n".repeat(300)), None);
        assert!(all.len() <= 256, "the kernel keeps no more: {}", all.len());
    }

    #[test]
    fn what_stands_with_a_rule_is_read_as_it_was_written() {
        let read = read_userdata(&userdata(Some("abc"), Some("net"), Some(7)));
        assert_eq!(
            (read.comment.as_deref(), read.network.as_deref(), read.print),
            (Some("abc"), Some("net"), Some(7))
        );
    }
}
