//! How many asks are answered in a second, so that nobody who floods a node keeps others from their answers. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Asks of one address: a node asks some twenty times when it looks for the largest packet that passes.
const MAX_ASKS_PER_SOURCE: u32 = 100;
/// Asks of all who have not shown yet that they receive at the address that they send from.
const MAX_ASKS_OF_STRANGERS: u32 = 1_000;
/// Addresses that are told apart in a second; 10,000 peers ask three times in one.
const MAX_SOURCES: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct AskLimits {
    second: u64,
    strangers: u32,
    by_source: HashMap<IpAddr, u32>,
}

impl AskLimits {
    /// Whether to answer. `is_known`: the address was not forged. `now`: since any moment that stays the same.
    pub(crate) fn allow(&mut self, from: IpAddr, is_known: bool, now: Duration) -> bool {
        if now.as_secs() != self.second {
            *self = Self { second: now.as_secs(), ..Self::default() };
        }
        // Whoever forges addresses takes no room from those who do not.
        if !is_known {
            self.strangers += 1;
            if self.strangers > MAX_ASKS_OF_STRANGERS {
                return false;
            }
        }
        if self.by_source.len() >= MAX_SOURCES && !self.by_source.contains_key(&from) {
            return is_known;
        }
        let asks = self.by_source.entry(from).or_default();
        *asks += 1;
        *asks <= MAX_ASKS_PER_SOURCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    #[test]
    fn a_flood_of_one_address_does_not_keep_others_from_their_answers() {
        let mut limits = AskLimits::default();
        let now = Duration::from_secs(7);
        let answered = (0..50_000).filter(|_| limits.allow(address(1), true, now)).count();
        assert_eq!(answered, 100);
        assert!(limits.allow(address(2), true, now));
        assert!(limits.allow(address(3), false, now));
        assert!(limits.allow(address(1), true, now + Duration::from_secs(1)));
    }

    #[test]
    fn a_flood_of_forged_addresses_does_not_keep_peers_from_their_answers() {
        let mut limits = AskLimits::default();
        let now = Duration::from_secs(7);
        let forged = (0..50_000).filter(|number| limits.allow(address(*number), false, now));
        assert_eq!(forged.count(), 1_000);
        assert!(limits.allow(address(100_000), true, now));
        assert!(limits.by_source.len() <= MAX_SOURCES);
    }
}
