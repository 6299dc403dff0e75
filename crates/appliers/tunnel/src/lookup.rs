//! Longest-prefix match, built once and read by every packet.
//!
//! Subnets of a network lie close together and mostly have one length, so the table is an array over the range they
//! span, a slot for each subnet of the longest length: a packet costs a subtraction, a shift and a load. Prefixes too
//! far apart for that are hashed, one map for each length.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Largest number of slots in an array: 4 MB.
const MAX_SLOTS: u128 = 1 << 20;
const EMPTY: u32 = u32::MAX;

/// A prefix of addresses of `bits` bits, all in the low bits of a `u128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub address: u128,
    pub len: u8,
}

#[derive(Clone, Debug)]
pub struct Lookup(LookupKind);

#[derive(Clone, Debug)]
enum LookupKind {
    Array {
        base: u128,
        shift: u32,
        slots: Box<[u32]>,
        /// Whether every prefix has a slot of its own.
        is_flat: bool,
    },
    /// Maps by prefix length, longest first.
    Maps(Vec<(u32, PrefixMap)>),
}

type PrefixMap = HashMap<u128, u32, BuildHasherDefault<PrefixHasher>>;

impl Lookup {
    /// Builds a lookup for addresses of 32 or 128 bits. Of equal prefixes the first counts.
    pub fn new(bits: u8, prefixes: &[(Prefix, u32)]) -> Self {
        Self::array(bits, prefixes).unwrap_or_else(|| Self::maps(bits, prefixes))
    }

    fn array(bits: u8, prefixes: &[(Prefix, u32)]) -> Option<Self> {
        let longest = prefixes.iter().map(|(prefix, _)| prefix.len).max()?;
        let shift = u32::from(bits - longest);
        // Shifting by all bits of the type is not defined; a prefix of everything has one slot.
        let slot = |address: u128| address.checked_shr(shift).unwrap_or(0);
        let last = |prefix: &Prefix| {
            let below = u32::from(bits - prefix.len);
            prefix.address | 1_u128.checked_shl(below).map_or(u128::MAX, |one| one - 1)
        };
        let base = prefixes.iter().map(|(prefix, _)| slot(prefix.address)).min()?;
        let end = prefixes.iter().map(|(prefix, _)| slot(last(prefix))).max()?;
        if end - base >= MAX_SLOTS {
            return None;
        }
        let mut slots = vec![EMPTY; (end - base) as usize + 1];
        let mut sorted: Vec<_> = prefixes.iter().collect();
        // Longer prefixes overwrite shorter ones, and the first of equal ones the others.
        sorted.sort_by_key(|(prefix, _)| prefix.len);
        for chunk in sorted.chunk_by(|a, b| a.0.len == b.0.len) {
            for (prefix, value) in chunk.iter().rev() {
                let range =
                    (slot(prefix.address) - base) as usize..=(slot(last(prefix)) - base) as usize;
                if let Some(range) = slots.get_mut(range) {
                    range.fill(*value);
                }
            }
        }
        let taken = slots.iter().filter(|value| **value != EMPTY).count();
        let is_flat =
            taken == prefixes.len() && prefixes.iter().all(|(prefix, _)| prefix.len == longest);
        Some(Self(LookupKind::Array { base, shift, slots: slots.into(), is_flat }))
    }

    fn maps(bits: u8, prefixes: &[(Prefix, u32)]) -> Self {
        let mut maps: BTreeMap<u32, PrefixMap> = BTreeMap::new();
        for (prefix, value) in prefixes {
            let shift = u32::from(bits - prefix.len);
            let key = prefix.address.checked_shr(shift).unwrap_or(0);
            maps.entry(shift).or_default().entry(key).or_insert(*value);
        }
        Self(LookupKind::Maps(maps.into_iter().collect()))
    }

    /// Slot of one prefix, where it can be changed without regard to others. `bits` is the length of addresses.
    pub(crate) fn slot_mut(&mut self, bits: u8, prefix: Prefix) -> Option<Slot<'_>> {
        let LookupKind::Array { base, shift, slots, is_flat: true } = &mut self.0 else {
            return None;
        };
        if *shift != u32::from(bits - prefix.len) {
            return None;
        }
        let slot = prefix.address.checked_shr(*shift).unwrap_or(0).checked_sub(*base)?;
        slots.get_mut(usize::try_from(slot).ok()?).map(Slot)
    }

    /// Value of the longest prefix that covers the address.
    #[inline]
    pub fn get(&self, address: u128) -> Option<u32> {
        match &self.0 {
            LookupKind::Array { base, shift, slots, .. } => {
                let slot = address.checked_shr(*shift).unwrap_or(0).checked_sub(*base)?;
                let value = *slots.get(usize::try_from(slot).ok()?)?;
                (value != EMPTY).then_some(value)
            }
            LookupKind::Maps(maps) => maps.iter().find_map(|(shift, map)| {
                map.get(&address.checked_shr(*shift).unwrap_or(0)).copied()
            }),
        }
    }
}

pub(crate) struct Slot<'a>(&'a mut u32);

impl Slot<'_> {
    pub(crate) fn get(&self) -> Option<u32> {
        (*self.0 != EMPTY).then_some(*self.0)
    }

    pub(crate) fn set(&mut self, value: Option<u32>) {
        *self.0 = value.unwrap_or(EMPTY);
    }
}

/// Hashes by multiplication; keys come from leases, and senders of packets cannot add any.
#[derive(Default)]
struct PrefixHasher(u64);

impl Hasher for PrefixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        if word >> 64 != 0 {
            self.write_u64((word >> 64) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(prefixes: &[(Prefix, u32)], bits: u8, address: u128) -> Option<u32> {
        let covers = |prefix: &Prefix| {
            let shift = u32::from(bits - prefix.len);
            prefix.address.checked_shr(shift).unwrap_or(0)
                == address.checked_shr(shift).unwrap_or(0)
        };
        let longest = prefixes.iter().filter(|(p, _)| covers(p)).map(|(p, _)| p.len).max()?;
        prefixes.iter().find(|(p, _)| p.len == longest && covers(p)).map(|(_, value)| *value)
    }

    fn prefix(bits: u8, within: u128) -> impl Strategy<Value = Prefix> {
        (0..=bits, any::<u128>()).prop_map(move |(len, address)| {
            let address = address & within;
            let below = 1_u128.checked_shl((bits - len).into()).map_or(u128::MAX, |one| one - 1);
            Prefix { address: address & !below, len }
        })
    }

    proptest! {
        #[test]
        fn array_and_maps_find_what_a_linear_search_finds(
            prefixes in prop::collection::vec(prefix(32, 0xffff_ffff), 0..40),
            near in prop::collection::vec(prefix(32, 0xff00), 0..40),
            probes in prop::collection::vec(any::<u32>(), 40),
        ) {
            for list in [&prefixes, &near] {
                let list: Vec<_> = list.iter().copied().zip(0..).collect();
                let (lookup, maps) = (Lookup::new(32, &list), Lookup::maps(32, &list));
                let edges = list.iter().map(|(p, _)| p.address as u32);
                for probe in probes.iter().copied().chain(probes.iter().map(|p| p & 0xffff)).chain(edges) {
                    let expected = naive(&list, 32, probe.into());
                    prop_assert_eq!(lookup.get(probe.into()), expected);
                    prop_assert_eq!(maps.get(probe.into()), expected);
                }
            }
        }

        #[test]
        fn prefixes_of_ipv6_are_found_as_by_a_linear_search(
            prefixes in prop::collection::vec(prefix(128, u128::MAX), 0..20),
            probes in prop::collection::vec(any::<u128>(), 20),
        ) {
            let list: Vec<_> = prefixes.into_iter().zip(0..).collect();
            let lookup = Lookup::new(128, &list);
            for probe in probes.into_iter().chain(list.iter().map(|(p, _)| p.address)) {
                prop_assert_eq!(lookup.get(probe), naive(&list, 128, probe));
            }
        }
    }
}
