//! Sets, maps and verdict maps, and their elements.

use std::net::IpAddr;

use flannel_netlink::{AttributeWriter, Attributes};

use crate::{Nft, Result, TableFamily, Verdict, octets, of_table, request, wire};

const CONSTANT: u32 = 0x2;
pub(crate) const INTERVAL: u32 = 0x4;
const MAP: u32 = 0x8;
const CONCATENATION: u32 = 0x80;
const VERDICT_TYPE: u32 = 0xffff_ff00;
const VERDICT_LEN: u32 = 16;
const INTERVAL_END: u32 = 1;
/// Bits that each part of a concatenated type takes in its number.
const TYPE_BITS: u32 = 6;

/// Type of a key or a value, by the number that `nft` knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum KeyType {
    Ipv4Address = 7,
    Ipv6Address = 8,
    Port = 13,
    Mark = 19,
    InterfaceName = 41,
}

impl KeyType {
    const ALL: [Self; 5] =
        [Self::Ipv4Address, Self::Ipv6Address, Self::Port, Self::Mark, Self::InterfaceName];

    fn len(self) -> u32 {
        match self {
            Self::Port => 2,
            Self::Ipv4Address | Self::Mark => 4,
            Self::Ipv6Address | Self::InterfaceName => 16,
        }
    }
}

/// What the elements of a set stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetData {
    /// Nothing: it is a set.
    Nothing,
    /// A value: it is a map.
    Value(KeyType),
    /// A verdict: it is a verdict map.
    Verdict,
}

/// A set or a map, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    /// Type of its keys; several for concatenated ones.
    pub key: Vec<KeyType>,
    pub data: SetData,
    /// Whether elements are ranges.
    pub is_interval: bool,
    /// Whether elements are added with the set, and never after.
    pub is_constant: bool,
    /// How many elements it may have.
    pub size: Option<u32>,
}

impl Set {
    pub fn new(name: &str, key: &[KeyType], data: SetData) -> Self {
        let (name, key) = (name.to_owned(), key.to_vec());
        Self { name, key, data, is_interval: false, is_constant: false, size: None }
    }

    /// `id`: its number in the batch.
    pub(crate) fn encode(&self, table: &str, id: u32) -> AttributeWriter {
        let is_pair = self.key.len() > 1;
        let mut flags = 0;
        for (flag, is_set) in [
            (INTERVAL, self.is_interval),
            (CONSTANT, self.is_constant),
            (MAP, self.data != SetData::Nothing),
            (CONCATENATION, is_pair && self.is_interval),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let key_type = self.key.iter().fold(0, |sum, part| sum << TYPE_BITS | *part as u32);
        let parts = self.key.iter().map(|part| part.len());
        let key_len: u32 =
            parts.map(|len| if is_pair { len.next_multiple_of(4) } else { len }).sum();
        let mut set = of_table(table)
            .text(wire::SET_NAME, &self.name)
            .be32(wire::SET_FLAGS, flags)
            .be32(wire::SET_KEY_TYPE, key_type)
            .be32(wire::SET_KEY_LEN, key_len)
            .be32(wire::SET_ID, id);
        set = match self.data {
            SetData::Nothing => set,
            SetData::Value(of) => {
                set.be32(wire::SET_DATA_TYPE, of as u32).be32(wire::SET_DATA_LEN, of.len())
            }
            SetData::Verdict => {
                set.be32(wire::SET_DATA_TYPE, VERDICT_TYPE).be32(wire::SET_DATA_LEN, VERDICT_LEN)
            }
        };
        match self.size {
            Some(size) => {
                let size = AttributeWriter::default().be32(wire::DESCRIPTION_SIZE, size);
                set.nest(wire::SET_DESCRIPTION, &size)
            }
            None => set,
        }
    }

    /// `None`: it is of a type that is not known here.
    fn decode(set: Attributes<'_>) -> Option<Self> {
        let flags = set.be32(wire::SET_FLAGS).unwrap_or_default();
        let known = |number: u32| KeyType::ALL.into_iter().find(|of| *of as u32 == number);
        let (mut number, mut key) = (set.be32(wire::SET_KEY_TYPE)?, Vec::new());
        while number > 0 {
            key.insert(0, known(number & ((1 << TYPE_BITS) - 1))?);
            number >>= TYPE_BITS;
        }
        let data = match set.be32(wire::SET_DATA_TYPE) {
            Some(VERDICT_TYPE) => SetData::Verdict,
            Some(number) if flags & MAP != 0 => SetData::Value(known(number)?),
            _ => SetData::Nothing,
        };
        let size = set.nested(wire::SET_DESCRIPTION);
        Some(Self {
            name: set.text(wire::SET_NAME)?.to_owned(),
            key,
            data,
            is_interval: flags & INTERVAL != 0,
            is_constant: flags & CONSTANT != 0,
            size: size.and_then(|size| size.be32(wire::DESCRIPTION_SIZE)),
        })
    }
}

/// What an element stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementData {
    Nothing,
    Value(Vec<u8>),
    Verdict(Verdict),
    /// Something that is not decoded.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Empty in the element for all keys that no other element has.
    pub key: Vec<u8>,
    /// Last key of a range, where the keys are concatenated.
    pub key_end: Option<Vec<u8>>,
    pub data: ElementData,
    /// Whether the key is the first that is behind a range.
    pub ends_interval: bool,
}

impl Element {
    pub fn new(key: &[u8]) -> Self {
        let (key_end, data) = (None, ElementData::Nothing);
        Self { key: key.to_vec(), key_end, data, ends_interval: false }
    }

    pub fn address(ip: IpAddr) -> Self {
        Self::new(&octets(ip))
    }

    pub fn standing_for(self, data: ElementData) -> Self {
        Self { data, ..self }
    }

    /// The elements of an interval set that are the range from `first` to `last`. The end of the last range of all
    /// does not exist.
    pub fn range(first: &[u8], last: &[u8]) -> Vec<Self> {
        let mut elements = vec![Self::new(first)];
        elements.extend(next(last).map(|key| Self { ends_interval: true, ..Self::new(&key) }));
        elements
    }

    pub(crate) fn encode(&self) -> AttributeWriter {
        let value = |bytes: &[u8]| AttributeWriter::default().bytes(wire::DATA_VALUE, bytes);
        let element = AttributeWriter::default().nest(wire::ELEMENT_KEY, &value(&self.key));
        let element = match &self.data {
            ElementData::Nothing | ElementData::Unknown => element,
            ElementData::Value(bytes) => element.nest(wire::ELEMENT_DATA, &value(bytes)),
            ElementData::Verdict(verdict) => element.nest(wire::ELEMENT_DATA, &verdict.encode()),
        };
        if self.ends_interval { element.be32(wire::ELEMENT_FLAGS, INTERVAL_END) } else { element }
    }

    fn decode(element: Attributes<'_>) -> Self {
        let value = |kind| Some(element.nested(kind)?.get(wire::DATA_VALUE)?.to_vec());
        let data = match element.nested(wire::ELEMENT_DATA) {
            None => ElementData::Nothing,
            Some(data) => match data.get(wire::DATA_VALUE) {
                Some(value) => ElementData::Value(value.to_vec()),
                None => Verdict::decode(data).map_or(ElementData::Unknown, ElementData::Verdict),
            },
        };
        Self {
            key: value(wire::ELEMENT_KEY).unwrap_or_default(),
            key_end: value(wire::ELEMENT_KEY_END),
            data,
            ends_interval: element.be32(wire::ELEMENT_FLAGS).unwrap_or(0) & INTERVAL_END != 0,
        }
    }
}

/// The key after this one; `None` if it is the last.
fn next(key: &[u8]) -> Option<Vec<u8>> {
    let at = key.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = key.to_vec();
    next[at] += 1;
    next[at + 1..].fill(0);
    Some(next)
}

impl Nft {
    /// The sets and maps of a table, as far as their types are known here.
    pub fn sets(&mut self, family: TableFamily, table: &str) -> Result<Vec<Set>> {
        self.get_all(&request(wire::GET_SET, family, of_table(table)), table, Set::decode)
    }

    /// The elements of a set or map. Empty if there is no such set.
    pub fn elements(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>> {
        let question = of_table(table).text(wire::SET_NAME, set);
        let pages =
            self.get_all(&request(wire::GET_ELEMENTS, family, question), table, |elements| {
                let list = elements.nested(wire::ELEMENTS)?;
                let each = list.iter().map(|(_, one)| Element::decode(Attributes(one)));
                Some(each.collect::<Vec<_>>())
            })?;
        Ok(pages.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_ends_behind_its_last_key_except_at_the_top() {
        let range = Element::range(&[10, 0, 0, 0], &[10, 0, 255, 255]);
        assert_eq!(range[1].key, [10, 1, 0, 0]);
        assert!(range[1].ends_interval && !range[0].ends_interval);
        assert_eq!(Element::range(&[224, 0, 0, 0], &[255; 4]).len(), 1);
    }

    #[test]
    fn set_and_element_are_decoded_as_they_were_encoded() {
        let pair = [KeyType::Ipv6Address, KeyType::Port];
        let mut set = Set::new("pairs", &pair, SetData::Verdict);
        set.size = Some(512);
        assert_eq!(Set::decode(set.encode("t", 1).read()), Some(set));
        let verdict = ElementData::Verdict(Verdict::goto("there"));
        let element = Element::new(&[1; 20]).standing_for(verdict);
        assert_eq!(Element::decode(element.encode().read()), element);
    }
}
