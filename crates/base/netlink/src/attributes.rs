//! Netlink attributes, nested as deep as nftables likes them: length, kind and value, each padded to
//! four bytes. For what the codec of links and routes has no word for, or takes too long over.

use std::net::IpAddr;

const NESTED: u16 = 0x8000;
const KIND: u16 = 0x3fff;
const HEADER_LEN: usize = 4;

/// Attributes as they stand in a message. What is cut short ends them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let header: &[u8; HEADER_LEN] = rest.first_chunk()?;
            let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND;
            let value = rest.get(HEADER_LEN..len)?;
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(it, _)| *it == kind).map(|(_, value)| value)
    }

    pub fn nested(self, kind: u16) -> Option<Self> {
        self.get(kind).map(Self)
    }

    /// Without the zero at its end.
    pub fn text(self, kind: u16) -> Option<&'a str> {
        self.get(kind).and_then(text)
    }

    /// In the machine's order, as most write their numbers.
    pub fn ne16(self, kind: u16) -> Option<u16> {
        self.get(kind)?.try_into().map(u16::from_ne_bytes).ok()
    }

    pub fn ne32(self, kind: u16) -> Option<u32> {
        self.get(kind)?.try_into().map(u32::from_ne_bytes).ok()
    }

    /// In network order, as netfilter writes its numbers.
    pub fn be32(self, kind: u16) -> Option<u32> {
        self.get(kind)?.try_into().map(u32::from_be_bytes).ok()
    }

    pub fn be64(self, kind: u16) -> Option<u64> {
        self.get(kind)?.try_into().map(u64::from_be_bytes).ok()
    }
}

/// Text without the zero at its end. `None`: it is not text.
pub fn text(value: &[u8]) -> Option<&str> {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).ok()
}

pub fn ne32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

/// An address of either family, by its length.
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        16 => bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributeWriter(Vec<u8>);

impl AttributeWriter {
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.begin(kind, value.len());
        self.0.extend_from_slice(value);
        self.pad();
        self
    }

    pub fn text(mut self, kind: u16, value: &str) -> Self {
        self.begin(kind, value.len() + 1);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self.pad();
        self
    }

    /// In the machine's order, as most read their numbers.
    pub fn ne16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub fn ne32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// In network order, as netfilter reads its numbers.
    pub fn be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn be64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn nest(self, kind: u16, inner: &Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }

    /// Nested attributes as they were read.
    pub fn nest_read(self, kind: u16, inner: Attributes<'_>) -> Self {
        self.bytes(kind | NESTED, inner.0)
    }

    pub fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn read(&self) -> Attributes<'_> {
        Attributes(&self.0)
    }

    fn begin(&mut self, kind: u16, len: usize) {
        self.0.extend_from_slice(&((len + HEADER_LEN) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let inner = AttributeWriter::default().be32(7, 1);
        let written = AttributeWriter::default().text(1, "nat").nest(2, &inner).be64(3, 5);
        let read = written.read();
        assert_eq!(read.iter().map(|(kind, _)| kind).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(read.text(1), Some("nat"));
        assert_eq!(read.nested(2).and_then(|inner| inner.be32(7)), Some(1));
        assert_eq!(read.be64(3), Some(5));
        assert_eq!((read.be32(3), read.get(4)), (None, None));
    }

    proptest! {
        #[test]
        fn nonsense_is_read_without_a_panic(bytes: Vec<u8>) {
            let attributes = Attributes(&bytes);
            prop_assert!(attributes.iter().count() <= bytes.len() / HEADER_LEN);
            for (kind, value) in attributes.iter() {
                prop_assert_eq!(ip(value).is_some(), matches!(value.len(), 4 | 16));
                let _ = (attributes.text(kind), attributes.be32(kind), attributes.nested(kind));
            }
        }
    }
}
