//! A change of the firewall, message by message.

use super::expression::Expressions;
use super::{
    DELETE_CHAIN, DELETE_RULE, Family, NEW_CHAIN, NEW_RULE, NEW_TABLE, NLM_F_ACK, NLM_F_APPEND,
    NLM_F_CREATE, NLM_F_REQUEST, SUBSYSTEM,
};
use crate::attributes::{self, Attributes};
use crate::socket::HEADER_LEN;

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const COMMENT: u8 = 0;
/// Ours, where others have left room: which network a rule was made for.
const NETWORK: u8 = 0xf1;
const LONGEST_COMMENT: usize = 127;

const TABLE_NAME: u16 = 1;
const TABLE_USERDATA: u16 = 6;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;

/// Where in a packet's way a chain of address translation stands.
#[derive(Clone, Copy)]
pub(crate) enum Hook {
    Prerouting,
    Output,
    Postrouting,
}

impl Hook {
    /// The kernel's number, and the place among others: `dstnat` or `srcnat`.
    fn numbers(self) -> (u32, i32) {
        match self {
            Self::Prerouting => (0, -100),
            Self::Output => (3, -100),
            Self::Postrouting => (4, 100),
        }
    }
}

pub(crate) struct Batch {
    family: Family,
    table: String,
    messages: Vec<Pending>,
}

struct Pending {
    what: String,
    kind: u16,
    flags: u16,
    family: Family,
    attributes: Attributes,
}

impl Batch {
    pub(crate) fn new(family: Family, table: &str) -> Self {
        Self { family, table: table.to_owned(), messages: Vec::new() }
    }

    /// Whether there is something in it that removes.
    pub(super) fn removes(&self) -> bool {
        self.messages.iter().any(|message| matches!(message.kind, DELETE_RULE | DELETE_CHAIN))
    }

    /// Goes on with another table.
    pub(crate) fn switch(&mut self, family: Family, table: &str) {
        self.family = family;
        table.clone_into(&mut self.table);
    }

    pub(crate) fn table(&mut self, comment: &str) {
        let attributes = Attributes::default()
            .text(TABLE_NAME, &self.table)
            .bytes(TABLE_USERDATA, &userdata(comment, None));
        self.push(NEW_TABLE, NLM_F_CREATE, format!("make the table {}", self.table), attributes);
    }

    pub(crate) fn chain(&mut self, name: &str) {
        let attributes =
            Attributes::default().text(CHAIN_TABLE, &self.table).text(CHAIN_NAME, name);
        self.push(NEW_CHAIN, NLM_F_CREATE, format!("make the chain {name}"), attributes);
    }

    pub(crate) fn nat_chain(&mut self, name: &str, hook: Hook) {
        let (number, priority) = hook.numbers();
        let hook = Attributes::default()
            .number(HOOK_NUMBER, number)
            .number(HOOK_PRIORITY, priority as u32);
        let attributes = Attributes::default()
            .text(CHAIN_TABLE, &self.table)
            .text(CHAIN_NAME, name)
            .nest(CHAIN_HOOK, hook)
            .text(CHAIN_TYPE, "nat");
        self.push(NEW_CHAIN, NLM_F_CREATE, format!("make the chain {name}"), attributes);
    }

    pub(crate) fn delete_chain(&mut self, name: &str) {
        let attributes =
            Attributes::default().text(CHAIN_TABLE, &self.table).text(CHAIN_NAME, name);
        self.push(DELETE_CHAIN, 0, format!("remove the chain {name}"), attributes);
    }

    pub(crate) fn flush(&mut self, chain: &str) {
        let attributes =
            Attributes::default().text(RULE_TABLE, &self.table).text(RULE_CHAIN, chain);
        self.push(DELETE_RULE, 0, format!("empty the chain {chain}"), attributes);
    }

    pub(crate) fn rule(&mut self, chain: &str, rule: &Expressions) {
        self.owned_rule(chain, rule, None);
    }

    /// `owner`: the comment by which the rule is found again, and the network it belongs to.
    pub(crate) fn owned_rule(
        &mut self,
        chain: &str,
        rule: &Expressions,
        owner: Option<(&str, &str)>,
    ) {
        self.put_rule(chain, rule, owner, NLM_F_APPEND);
    }

    /// Before all others.
    pub(crate) fn insert_owned_rule(
        &mut self,
        chain: &str,
        rule: &Expressions,
        owner: Option<(&str, &str)>,
    ) {
        self.put_rule(chain, rule, owner, 0);
    }

    fn put_rule(
        &mut self,
        chain: &str,
        rule: &Expressions,
        owner: Option<(&str, &str)>,
        place: u16,
    ) {
        let mut attributes = Attributes::default()
            .text(RULE_TABLE, &self.table)
            .text(RULE_CHAIN, chain)
            .nest(RULE_EXPRESSIONS, rule.to_attributes());
        if let Some((comment, network)) = owner {
            attributes = attributes.bytes(RULE_USERDATA, &userdata(comment, Some(network)));
        }
        self.push(
            NEW_RULE,
            NLM_F_CREATE | place,
            format!("add a rule to the chain {chain}"),
            attributes,
        );
    }

    pub(crate) fn delete_rule(&mut self, chain: &str, handle: u64) {
        let attributes = Attributes::default()
            .text(RULE_TABLE, &self.table)
            .text(RULE_CHAIN, chain)
            .long(RULE_HANDLE, handle);
        self.push(DELETE_RULE, 0, format!("remove a rule from the chain {chain}"), attributes);
    }

    fn push(&mut self, kind: u16, flags: u16, what: String, attributes: Attributes) {
        self.messages.push(Pending { what, kind, flags, family: self.family, attributes });
    }

    /// The bytes, with sequence numbers from `first` on, and what each message is for. `None`: there
    /// is nothing to do.
    pub(super) fn finish(self, first: u32) -> Option<(Vec<u8>, Vec<String>)> {
        let count = self.messages.len();
        if count == 0 {
            return None;
        }
        let mut bytes = Vec::new();
        frame(&mut bytes, BATCH_BEGIN, first);
        let mut words = Vec::with_capacity(count);
        for (at, message) in self.messages.into_iter().enumerate() {
            // One acknowledgement closes the batch; errors come unasked.
            let ack = if at + 1 == count { NLM_F_ACK } else { 0 };
            let sequence = first + 1 + at as u32;
            let flags = NLM_F_REQUEST | message.flags | ack;
            append(
                &mut bytes,
                message.kind,
                flags,
                sequence,
                message.family,
                message.attributes.as_bytes(),
            );
            words.push(message.what);
        }
        frame(&mut bytes, BATCH_END, first + 1 + count as u32);
        Some((bytes, words))
    }
}

pub(super) fn append(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    family: Family,
    payload: &[u8],
) {
    header(bytes, SUBSYSTEM << 8 | kind, flags, sequence, payload.len());
    bytes.extend_from_slice(&[family as u8, 0, 0, 0]);
    bytes.extend_from_slice(payload);
}

/// The beginning or the end of a batch: addressed to nftables.
fn frame(bytes: &mut Vec<u8>, kind: u16, sequence: u32) {
    header(bytes, kind, NLM_F_REQUEST, sequence, 0);
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&SUBSYSTEM.to_be_bytes());
}

fn header(bytes: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, payload: usize) {
    bytes.extend_from_slice(&((HEADER_LEN + 4 + payload) as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
}

/// What nftables keeps with an object without looking at it: a comment, which `nft` shows.
fn userdata(comment: &str, network: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |kind: u8, text: &str| {
        let end = text.floor_char_boundary(LONGEST_COMMENT);
        bytes.extend_from_slice(&[kind, end as u8 + 1]);
        bytes.extend_from_slice(&text.as_bytes()[..end]);
        bytes.push(0);
    };
    put(COMMENT, comment);
    if let Some(network) = network {
        put(NETWORK, network);
    }
    bytes
}

/// Comment and network of a rule.
pub(super) fn read_userdata(mut bytes: &[u8]) -> (Option<String>, Option<String>) {
    let (mut comment, mut network) = (None, None);
    while let [kind, len, rest @ ..] = bytes {
        let Some(value) = rest.get(..usize::from(*len)) else { break };
        let text = attributes::text(value).to_owned();
        match *kind {
            COMMENT => comment = Some(text),
            NETWORK => network = Some(text),
            _ => {}
        }
        bytes = &rest[usize::from(*len)..];
    }
    (comment, network)
}
