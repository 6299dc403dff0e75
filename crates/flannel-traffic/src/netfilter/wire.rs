//! Netlink messages of nftables, to bytes and back. Pure.
//!
//! A message: length, kind, flags, sequence, port (16 bytes); family, version, resource (4 bytes);
//! attributes of length, kind and value, each padded to four bytes. Numbers inside attributes are
//! big-endian, those of the header are the machine's.

pub(crate) const SUBSYSTEM: u16 = 10;
pub(crate) const NEW_TABLE: u16 = 0;
pub(crate) const GET_TABLE: u16 = 1;
pub(crate) const DELETE_TABLE: u16 = 2;
pub(crate) const NEW_CHAIN: u16 = 3;
pub(crate) const GET_CHAIN: u16 = 4;
pub(crate) const DELETE_CHAIN: u16 = 5;
pub(crate) const NEW_RULE: u16 = 6;
pub(crate) const GET_RULE: u16 = 7;
pub(crate) const DELETE_RULE: u16 = 8;
pub(crate) const NEW_GENERATION: u16 = 15;

/// Attributes. The table's name is attribute 1 of tables, chains, rules, sets and all the rest.
pub(crate) const TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const GENERATION_PROCESS: u16 = 2;
pub(crate) const GENERATION_PROCESS_NAME: u16 = 3;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CHAIN: u16 = 2;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const KIND_OF_ATTRIBUTE: u16 = 0x3fff;
const HEADER: usize = 20;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;

/// Messages to send, numbered from 1 in order.
#[derive(Default)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    count: u32,
}

impl Request {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn last_number(&self) -> u32 {
        self.count
    }

    /// A question with one answer.
    pub(crate) fn get(kind: u16, family: u8, attributes: &[(u16, &[u8])]) -> Self {
        let mut request = Self::default();
        request.push(SUBSYSTEM << 8 | kind, REQUEST | ACKNOWLEDGE, family, 0, attributes);
        request
    }

    /// A question with many answers.
    pub(crate) fn dump(kind: u16, family: u8, attributes: &[(u16, &[u8])]) -> Self {
        let mut request = Self::default();
        request.push(SUBSYSTEM << 8 | kind, REQUEST | DUMP, family, 0, attributes);
        request
    }

    pub(crate) fn begin() -> Self {
        let mut request = Self::default();
        request.push(BATCH_BEGIN, REQUEST, 0, SUBSYSTEM, &[]);
        request
    }

    /// One change of a transaction.
    pub(crate) fn change(&mut self, kind: u16, family: u8, attributes: &[(u16, &[u8])]) {
        self.push(SUBSYSTEM << 8 | kind, REQUEST | ACKNOWLEDGE, family, 0, attributes);
    }

    pub(crate) fn end(&mut self) {
        self.push(BATCH_END, REQUEST, 0, SUBSYSTEM, &[]);
    }

    fn push(&mut self, kind: u16, flags: u16, family: u8, resource: u16, list: &[(u16, &[u8])]) {
        self.count += 1;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&self.count.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&resource.to_be_bytes());
        for (kind, value) in list {
            self.bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
            self.bytes.extend_from_slice(&kind.to_ne_bytes());
            self.bytes.extend_from_slice(value);
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        }
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }
}

/// The value of a name.
pub(crate) fn name(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message<'a> {
    /// Of nftables.
    Object {
        kind: u16,
        family: u8,
        attributes: Attributes<'a>,
    },
    /// The kernel's word on the request of this number: 0 is yes.
    Answer {
        number: u32,
        error: i32,
    },
    /// The end of a dump.
    Done {
        error: i32,
    },
    /// Part of a dump during which something changed: it may be wrong.
    Interrupted,
    Other,
}

/// Splits a datagram; what is cut short is left out.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = bytes.get(..length).filter(|_| length >= 16)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(parse(message))
    })
}

fn parse(message: &[u8]) -> Message<'_> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    const DUMP_INTERRUPTED: u16 = 0x10;
    let [kind, flags] = [4, 6].map(|at| u16::from_ne_bytes([message[at], message[at + 1]]));
    let number = u32_at(message, 8).unwrap_or(0);
    let error = u32_at(message, 16).unwrap_or(0).cast_signed();
    match kind {
        ERROR => Message::Answer { number, error },
        _ if flags & DUMP_INTERRUPTED != 0 && kind != DONE => Message::Interrupted,
        DONE => Message::Done { error },
        _ if kind >> 8 == SUBSYSTEM && message.len() >= HEADER => Message::Object {
            kind: kind & 0xff,
            family: message[16],
            attributes: Attributes(&message[HEADER..]),
        },
        _ => Message::Other,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut bytes = self.0;
        std::iter::from_fn(move || {
            let header = bytes.get(..4)?;
            let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND_OF_ATTRIBUTE;
            let value = bytes.get(4..length)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    pub(crate) fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(k, _)| *k == kind).map(|(_, value)| value)
    }

    fn nested(self, kind: u16) -> Option<Self> {
        self.get(kind).map(Self)
    }

    pub(crate) fn text(self, kind: u16) -> Option<&'a str> {
        let value = self.get(kind)?;
        std::str::from_utf8(value.strip_suffix(b"\0").unwrap_or(value)).ok()
    }

    pub(crate) fn number(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// Whether these are a rule's, and one that jumps to `chain`. `None`: it does not say what it does.
    pub(crate) fn jumps_to(self, chain: &str) -> Option<bool> {
        let expressions = self.nested(RULE_EXPRESSIONS)?;
        Some(expressions.iter().any(|(_, expression)| {
            let expression = Self(expression);
            expression.text(EXPRESSION_NAME) == Some("immediate")
                && expression
                    .nested(EXPRESSION_DATA)
                    .and_then(|data| data.nested(IMMEDIATE_DATA))
                    .and_then(|data| data.nested(DATA_VERDICT))
                    .and_then(|verdict| verdict.text(VERDICT_CHAIN))
                    == Some(chain)
        }))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An attribute with attributes in it.
    pub(crate) fn nest(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut request = Request::default();
        request.push(0, 0, 0, 0, list);
        request.bytes[HEADER..].to_vec()
    }

    /// What the kernel would announce.
    pub(crate) fn datagram(kind: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
        let mut bytes = Request::get(kind, family, &[]).bytes;
        bytes.extend_from_slice(attributes);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    pub(crate) fn jump_rule(table: &str, chain: &str, target: &str) -> Vec<u8> {
        let verdict = nest(&[(1, &[0xff, 0xff, 0xff, 0xfd]), (VERDICT_CHAIN, &name(target))]);
        let data = nest(&[(DATA_VERDICT, &verdict)]);
        let data = nest(&[(1, &[0; 4]), (IMMEDIATE_DATA, &data)]);
        let jump = nest(&[(EXPRESSION_NAME, &name("immediate")), (EXPRESSION_DATA, &data)]);
        let counter = nest(&[(EXPRESSION_NAME, &name("counter"))]);
        let expressions = nest(&[(1, &counter), (1, &jump)]);
        let handle = 7u64.to_be_bytes();
        nest(&[
            (TABLE, &name(table)),
            (RULE_CHAIN, &name(chain)),
            (RULE_HANDLE, &handle),
            (RULE_EXPRESSIONS, &expressions),
        ])
    }

    #[test]
    fn a_request_is_what_the_kernel_documents() {
        let request = Request::get(GET_CHAIN, 2, &[(TABLE, &name("nat"))]);
        let head: &[u8] = &[28, 0, 0, 0, 4, 10, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(request.bytes(), [head, &[8, 0, 1, 0], b"nat\0"].concat());
        }
        assert_eq!(request.last_number(), 1);
    }

    #[test]
    fn what_was_built_is_read_back() {
        let mut request = Request::begin();
        request.change(NEW_RULE, 10, &[(TABLE, &name("filter")), (RULE_CHAIN, &name("FORWARD"))]);
        request.end();
        let objects: Vec<_> = messages(request.bytes())
            .filter_map(|message| match message {
                Message::Object { kind, family, attributes } => {
                    Some((kind, family, attributes.text(TABLE), attributes.text(RULE_CHAIN)))
                }
                _ => None,
            })
            .collect();
        assert_eq!(objects, [(NEW_RULE, 10, Some("filter"), Some("FORWARD"))]);
    }

    #[test]
    fn a_jump_is_found_among_other_expressions() {
        let bytes = jump_rule("nat", "POSTROUTING", "FLANNEL-POSTRTG");
        let rule = Attributes(&bytes);
        assert_eq!(rule.jumps_to("FLANNEL-POSTRTG"), Some(true));
        assert_eq!(rule.jumps_to("FLANNEL-FWD"), Some(false));
        assert_eq!(Attributes(&[]).jumps_to("FLANNEL-FWD"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_datagram_is_too_strange_to_read(bytes: Vec<u8>) {
            for message in messages(&bytes) {
                if let Message::Object { attributes, .. } = message {
                    let _ = (attributes.text(TABLE), attributes.jumps_to("x"));
                }
            }
        }

        #[test]
        fn nor_a_rule(bytes: Vec<u8>) {
            let nested = nest(&[(RULE_EXPRESSIONS, &bytes)]);
            let _ = Attributes(&nested).jumps_to("x");
        }
    }
}
