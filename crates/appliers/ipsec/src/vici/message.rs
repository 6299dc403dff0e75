//! Messages of VICI, encoded and decoded. Pure.
//!
//! An element is a byte for its type, then its name (one byte of length) or its value (two bytes of length). Sections
//! and lists have an element at either end. Numbers are in network order.

use std::fmt;

const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

/// Largest depth: no message of charon's is nested deeper, and what is read from outside has bounds.
const MAX_DEPTH: usize = 32;

/// Named values in order. It is not shown: values may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Message(Vec<(String, Value)>);

#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    List(Vec<String>),
    Section(Message),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it speaks no VICI: {0}")]
pub struct InvalidMessage(&'static str);

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Message {
    pub fn text(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.push((name.to_owned(), Value::Text(value.into())));
        self
    }

    pub fn list<T: Into<String>>(mut self, name: &str, items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(Into::into).collect();
        self.0.push((name.to_owned(), Value::List(items)));
        self
    }

    pub fn section(mut self, name: &str, inner: Self) -> Self {
        self.0.push((name.to_owned(), Value::Section(inner)));
        self
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(it, _)| it == name).map(|(_, value)| value)
    }

    pub fn get_text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn get_list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    pub fn get_section(&self, name: &str) -> Option<&Self> {
        match self.get(name)? {
            Value::Section(inner) => Some(inner),
            _ => None,
        }
    }

    pub fn sections(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.0.iter().filter_map(|(name, value)| match value {
            Value::Section(inner) => Some((name.as_str(), inner)),
            _ => None,
        })
    }

    /// Encodes the message. Names longer than 255 bytes and values longer than 65535 cannot be encoded.
    pub fn write(&self, bytes: &mut Vec<u8>) -> Result<(), InvalidMessage> {
        for (name, value) in &self.0 {
            match value {
                Value::Text(text) => {
                    write_name(bytes, KEY_VALUE, name)?;
                    write_value(bytes, text)?;
                }
                Value::List(items) => {
                    write_name(bytes, LIST_START, name)?;
                    for item in items {
                        bytes.push(LIST_ITEM);
                        write_value(bytes, item)?;
                    }
                    bytes.push(LIST_END);
                }
                Value::Section(inner) => {
                    write_name(bytes, SECTION_START, name)?;
                    inner.write(bytes)?;
                    bytes.push(SECTION_END);
                }
            }
        }
        Ok(())
    }

    /// Decodes a message. What is not UTF-8 in it is replaced: nothing that is used here is affected.
    pub fn read(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        let mut rest = bytes;
        let message = read_section(&mut rest, 0)?;
        if rest.is_empty() { Ok(message) } else { Err(InvalidMessage("a section ends too often")) }
    }
}

fn write_name(bytes: &mut Vec<u8>, kind: u8, name: &str) -> Result<(), InvalidMessage> {
    let len = u8::try_from(name.len()).map_err(|_| InvalidMessage("a name is too long"))?;
    bytes.extend_from_slice(&[kind, len]);
    bytes.extend_from_slice(name.as_bytes());
    Ok(())
}

fn write_value(bytes: &mut Vec<u8>, value: &str) -> Result<(), InvalidMessage> {
    let len = u16::try_from(value.len()).map_err(|_| InvalidMessage("a value is too long"))?;
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(value.as_bytes());
    Ok(())
}

/// Reads a section to its end, or that of the message.
fn read_section(rest: &mut &[u8], depth: usize) -> Result<Message, InvalidMessage> {
    if depth > MAX_DEPTH {
        return Err(InvalidMessage("it is nested too deeply"));
    }
    let mut message = Message::default();
    while let Some(kind) = take_byte(rest) {
        let (name, value) = match kind {
            SECTION_START => {
                let name = read_name(rest)?;
                (name, Value::Section(read_section(rest, depth + 1)?))
            }
            SECTION_END if depth > 0 => return Ok(message),
            KEY_VALUE => (read_name(rest)?, Value::Text(read_value(rest)?)),
            LIST_START => (read_name(rest)?, Value::List(read_list(rest)?)),
            _ => return Err(InvalidMessage("an element is out of place")),
        };
        message.0.push((name, value));
    }
    if depth == 0 { Ok(message) } else { Err(CUT_SHORT) }
}

const CUT_SHORT: InvalidMessage = InvalidMessage("a message is cut short");

fn read_list(rest: &mut &[u8]) -> Result<Vec<String>, InvalidMessage> {
    let mut items = Vec::new();
    loop {
        match take_byte(rest) {
            Some(LIST_ITEM) => items.push(read_value(rest)?),
            Some(LIST_END) => return Ok(items),
            Some(_) => return Err(InvalidMessage("a list holds something that is not an item")),
            None => return Err(CUT_SHORT),
        }
    }
}

fn read_name(rest: &mut &[u8]) -> Result<String, InvalidMessage> {
    let len = take_byte(rest).ok_or(CUT_SHORT)?;
    take_text(rest, len.into())
}

fn read_value(rest: &mut &[u8]) -> Result<String, InvalidMessage> {
    let (len, after) = rest.split_first_chunk::<2>().ok_or(CUT_SHORT)?;
    *rest = after;
    take_text(rest, u16::from_be_bytes(*len).into())
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    Some(*first)
}

fn take_text(rest: &mut &[u8], len: usize) -> Result<String, InvalidMessage> {
    let (text, after) = rest.split_at_checked(len).ok_or(CUT_SHORT)?;
    *rest = after;
    Ok(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.write(&mut bytes).expect("it can be said");
        bytes
    }

    /// The example of strongSwan's own description of the protocol.
    #[test]
    fn a_message_is_what_strongswan_documents() {
        let sub = Message::default().text("key2", "value2");
        let message = Message::default().text("key1", "value1").section(
            "section1",
            Message::default().section("sub-section", sub).list("list1", ["item1", "item2"]),
        );
        let written = bytes(&message);
        let documented: Vec<u8> = [
            &[3, 4][..],
            b"key1",
            &[0, 6],
            b"value1",
            &[1, 8],
            b"section1",
            &[1, 11],
            b"sub-section",
            &[3, 4],
            b"key2",
            &[0, 6],
            b"value2",
            &[2],
            &[4, 5],
            b"list1",
            &[5, 0, 5],
            b"item1",
            &[5, 0, 5],
            b"item2",
            &[6],
            &[2],
        ]
        .concat();
        assert_eq!(written, documented);
        let read = Message::read(&written).expect("whole");
        assert_eq!(read, message);
        let section = read.get_section("section1").expect("there");
        assert_eq!(section.get_list("list1"), ["item1", "item2"]);
        let names: Vec<&str> = section.sections().map(|(name, _)| name).collect();
        assert_eq!(names, ["sub-section"]);
        assert_eq!(read.get_text("key1"), Some("value1"));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for wrong in [
            &[1, 1, b'a'][..],
            &[2],
            &[3, 4, b'k'],
            &[3, 1, b'k', 0, 9, b'v'],
            &[3, 1, b'k', 0],
            &[4, 1, b'l'],
            &[4, 1, b'l', 3],
            &[5, 0, 0],
            &[6],
            &[9],
        ] {
            assert!(Message::read(wrong).is_err(), "{wrong:?}");
        }
        let deep = [1, 1, b'a'].repeat(MAX_DEPTH + 1);
        assert!(Message::read(&deep).is_err());
        let long = "x".repeat(70_000);
        assert!(Message::default().text("k", long.clone()).write(&mut Vec::new()).is_err());
        assert!(Message::default().text(&long, "v").write(&mut Vec::new()).is_err());
    }

    #[test]
    fn values_are_not_shown() {
        let shown = format!("{:?}", Message::default().text("data", "hunter2"));
        assert_eq!(shown, r#"["data"]"#);
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_as_the_same(input: Vec<u8>) {
            if let Ok(message) = Message::read(&input)
                && let mut again = Vec::new()
                && message.write(&mut again).is_ok()
            {
                prop_assert_eq!(Message::read(&again), Ok(message));
            }
        }
    }
}
