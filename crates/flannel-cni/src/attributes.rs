//! Netlink attributes, nested as deep as nftables likes them, written and read: where the codec for
//! links, addresses and routes has no word for a thing, or takes too long over it.

const NESTED: u16 = 0x8000;
const KIND: u16 = 0x3fff;

#[derive(Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.begin(kind, value.len());
        self.0.extend_from_slice(value);
        self.pad();
        self
    }

    pub(crate) fn text(mut self, kind: u16, value: &str) -> Self {
        self.begin(kind, value.len() + 1);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self.pad();
        self
    }

    /// Numbers are in network order in here.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn long(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn nest(self, kind: u16, inner: Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }

    /// Nested attributes as they were read.
    pub(crate) fn raw_nest(self, kind: u16, inner: &[u8]) -> Self {
        self.bytes(kind | NESTED, inner)
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn begin(&mut self, kind: u16, len: usize) {
        self.0.extend_from_slice(&((len + 4) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// Kind and value of every attribute; stops at what is torn.
pub(crate) fn read(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header: &[u8; 4] = rest.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    read(bytes).find(|(it, _)| *it == kind).map(|(_, value)| value)
}

/// Text without the zero at its end.
pub(crate) fn text(value: &[u8]) -> &str {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let inner = Attributes::default().number(7, 1);
        let bytes = Attributes::default().text(1, "nat").nest(2, inner).long(3, 5);
        let all: Vec<_> = read(bytes.as_bytes()).collect();
        assert_eq!(all.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(text(all[0].1), "nat");
        assert_eq!(find(all[1].1, 7), Some(&[0, 0, 0, 1][..]));
    }

    proptest! {
        #[test]
        fn rubbish_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for (_, value) in read(&bytes) {
                text(value);
            }
        }
    }
}
