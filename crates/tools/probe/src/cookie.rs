//! Cookies: who tells one back receives at the address that he sends from. Without state or an agreed key: a cookie is
//! a keyed hash of the address, with a secret that this process alone knows and forgets at its end.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// A cookie is good for one to two of these: who is probed once an hour need not be challenged each time.
const EPOCH: Duration = Duration::from_secs(6 * 3_600);

#[derive(Default)]
pub struct Cookies(RandomState);

impl Cookies {
    /// `now`: since any moment that stays the same.
    pub fn give(&self, to: IpAddr, now: Duration) -> u64 {
        self.of(to, epoch(now))
    }

    pub fn is_good(&self, cookie: u64, of: IpAddr, now: Duration) -> bool {
        let epoch = epoch(now);
        let former = epoch.checked_sub(1);
        std::iter::once(epoch).chain(former).any(|epoch| self.of(of, epoch) == cookie)
    }

    fn of(&self, address: IpAddr, epoch: u64) -> u64 {
        // Zero is how none is written.
        self.0.hash_one((address, epoch)).max(1)
    }
}

fn epoch(now: Duration) -> u64 {
    now.as_secs() / EPOCH.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_address_alone_and_for_a_while() {
        let (cookies, other) = (Cookies::default(), Cookies::default());
        let [here, there] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().expect("an address"));
        let now = 10 * EPOCH + Duration::from_secs(5);
        let cookie = cookies.give(here, now);
        assert!(cookies.is_good(cookie, here, now));
        assert!(cookies.is_good(cookie, here, now + EPOCH), "a probe an hour later");
        assert!(!cookies.is_good(cookie, here, now + 2 * EPOCH));
        assert!(!cookies.is_good(cookie, there, now), "told on to somebody else");
        assert!(!other.is_good(cookie, here, now), "of a process that has ended");
        assert!(!cookies.is_good(0, here, now), "none");
        assert!(cookies.is_good(cookies.give(here, Duration::ZERO), here, Duration::ZERO));
    }
}
