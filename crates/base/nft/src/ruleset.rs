//! All tables of a network namespace with all that is in them, as somebody needs it who follows a packet.

use flannel_netlink::{AttributeWriter, Attributes, nfnetlink};

use crate::set::INTERVAL;
use crate::{Chain, Element, ElementData, Nft, Result, Rule, TableFamily, of_table, request, wire};

/// How often a ruleset that somebody changes is read again.
const READS: usize = 3;

/// A table and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableContents {
    pub family: TableFamily,
    pub name: String,
    pub chains: Vec<Chain>,
    /// Rules of all chains, in order.
    pub rules: Vec<Rule>,
    pub sets: Vec<SetContents>,
}

/// A set or map of any type, with its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetContents {
    pub name: String,
    pub ranges: Vec<KeyRange>,
}

/// An element of a set: the keys from one to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Parts of the key; none in the element for all keys that no other element has.
    pub parts: Vec<KeyPart>,
    pub data: ElementData,
}

/// One part of a concatenated key, or the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// Where in the key the part begins.
    pub offset: usize,
    pub first: Vec<u8>,
    pub last: Vec<u8>,
}

impl KeyRange {
    /// `lengths`: bytes of the parts of a key; none if it has one part.
    fn new(element: Element, last: &[u8], lengths: &[usize]) -> Self {
        let whole = [element.key.len()];
        let lengths = if lengths.is_empty() { &whole[..] } else { lengths };
        let (mut offset, mut parts) = (0, Vec::new());
        for len in lengths {
            let part = |key: &[u8]| key.get(offset..offset + len).map(<[u8]>::to_vec);
            if let (Some(first), Some(last)) = (part(&element.key), part(last)) {
                parts.push(KeyPart { offset, first, last });
            }
            offset += len.next_multiple_of(4);
        }
        Self { parts, data: element.data }
    }
}

fn ranges(elements: Vec<Element>, is_interval: bool, lengths: &[usize]) -> Vec<KeyRange> {
    let (for_all, mut elements): (Vec<_>, Vec<_>) =
        elements.into_iter().partition(|element| element.key.is_empty());
    let has_own_ends =
        lengths.len() > 1 || elements.iter().any(|element| element.key_end.is_some());
    let mut ranges: Vec<_> = if is_interval && !has_own_ends {
        elements.sort_by(|a, b| (&a.key, !a.ends_interval).cmp(&(&b.key, !b.ends_interval)));
        let mut elements = elements.into_iter().peekable();
        std::iter::from_fn(|| {
            let first = elements.find(|element| !element.ends_interval)?;
            let last = match elements.peek() {
                Some(next) => previous(&next.key),
                None => vec![0xff; first.key.len()],
            };
            Some(KeyRange::new(first, &last, &[]))
        })
        .collect()
    } else {
        let single = |element: Element| {
            let last = element.key_end.clone().unwrap_or_else(|| element.key.clone());
            KeyRange::new(element, &last, lengths)
        };
        elements.into_iter().map(single).collect()
    };
    ranges.extend(for_all.into_iter().map(|all| KeyRange { parts: Vec::new(), data: all.data }));
    ranges
}

/// The key before this one.
fn previous(key: &[u8]) -> Vec<u8> {
    let mut previous = key.to_vec();
    for byte in previous.iter_mut().rev() {
        let borrows = *byte == 0;
        *byte = byte.wrapping_sub(1);
        if !borrows {
            break;
        }
    }
    previous
}

impl Nft {
    /// All tables whose chains are in force.
    pub fn ruleset(&mut self) -> Result<Vec<TableContents>> {
        let mut generation = self.generation()?;
        let mut tables = self.read_ruleset()?;
        for _ in 1..READS {
            let read = std::mem::replace(&mut generation, self.generation()?);
            if read == generation {
                break;
            }
            tables = self.read_ruleset()?;
        }
        Ok(tables)
    }

    fn read_ruleset(&mut self) -> Result<Vec<TableContents>> {
        let mut tables = Vec::new();
        for (family, name) in self.tables()? {
            tables.push(TableContents {
                family,
                chains: self.chains(family, &name)?,
                rules: self.all_rules(family, &name)?,
                sets: self.sets_with_elements(family, &name)?,
                name,
            });
        }
        Ok(tables)
    }

    /// Names of all tables that are not dormant.
    fn tables(&mut self) -> Result<Vec<(TableFamily, String)>> {
        let nothing = AttributeWriter::default();
        let question = nfnetlink::request(nfnetlink::NFTABLES, wire::GET_TABLE, 0, nothing);
        let answer = self.connection.ask_all(&question, |message| {
            let table = nfnetlink::read(message, nfnetlink::NFTABLES)?;
            let flags = table.attributes.be32(wire::TABLE_FLAGS).unwrap_or_default();
            let family = TableFamily::ALL.into_iter().find(|it| *it as u8 == table.family)?;
            let name = table.attributes.text(wire::TABLE)?.to_owned();
            (flags & crate::table::DORMANT == 0).then_some((family, name))
        })?;
        answer.or_else(|error| crate::absent(error, Vec::new()))
    }

    fn sets_with_elements(&mut self, family: TableFamily, table: &str) -> Result<Vec<SetContents>> {
        let question = request(wire::GET_SET, family, of_table(table));
        let kinds = self.get_all(&question, table, |set| {
            let is_interval = set.be32(wire::SET_FLAGS).unwrap_or_default() & INTERVAL != 0;
            let description = set.nested(wire::SET_DESCRIPTION).unwrap_or_default();
            let parts = description.nested(wire::DESCRIPTION_PARTS);
            let len = |(_, part)| Attributes(part).be32(wire::PART_LEN).map(|len| len as usize);
            let lengths: Vec<_> = parts.unwrap_or_default().iter().filter_map(len).collect();
            Some((set.text(wire::SET_NAME)?.to_owned(), is_interval, lengths))
        })?;
        let mut sets = Vec::new();
        for (name, is_interval, lengths) in kinds {
            let elements = self.elements(family, table, &name)?;
            sets.push(SetContents { name, ranges: ranges(elements, is_interval, &lengths) });
        }
        Ok(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(key: &[u8], ends_interval: bool) -> Element {
        Element { ends_interval, ..Element::new(key) }
    }

    #[test]
    fn interval_set_is_read_as_ranges_in_whatever_order_its_ends_come() {
        let elements = vec![
            element(&[2, 0], false),
            element(&[0, 0], true),
            element(&[1, 5], true),
            element(&[1, 0], false),
        ];
        let read = ranges(elements, true, &[]);
        let bounds: Vec<_> = read
            .iter()
            .map(|range| (&range.parts[0].first[..], &range.parts[0].last[..]))
            .collect();
        assert_eq!(bounds, [(&[1, 0][..], &[1, 4][..]), (&[2, 0], &[255, 255])]);
    }

    #[test]
    fn parts_of_concatenated_key_have_their_own_ranges_and_catch_all_comes_last() {
        let pair = Element {
            key_end: Some(vec![10, 255, 255, 255, 0, 90, 0, 0]),
            ..Element::new(&[10, 0, 0, 0, 0, 80, 0, 0])
        };
        let read = ranges(vec![Element::new(&[]), pair], true, &[4, 2]);
        assert_eq!(read[0].parts[1], KeyPart { offset: 4, first: vec![0, 80], last: vec![0, 90] });
        assert!(read[1].parts.is_empty());
    }
}
