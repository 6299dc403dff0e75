//! What a node answers, if anything.

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use ipnet::IpNet;

use crate::cookie::Cookies;
use crate::wire::{Answer, Ask, Reply, Standing};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Underlay,
    Overlay,
}

/// What a node knows of those who ask, and says of itself.
pub trait Directory {
    /// The hash of its machine id, as its lease has it.
    fn machine(&self) -> Option<NonZeroU64>;

    fn standing(&self, subnet: &IpNet) -> Standing;

    /// When something of this peer last came through the overlay, in this family and with a checksum.
    fn heard(&self, subnet: &IpNet, is_v6: bool) -> Option<Duration>;

    /// Takes note that a packet of this peer came through the overlay, if `from` is the peer's end of it.
    fn hear(&mut self, subnet: &IpNet, is_v6: bool, from: IpAddr, now: Duration);

    /// Notes what a peer says of its packets to this node: larger ones vanish, or none do.
    fn note_fits(&mut self, subnet: &IpNet, from: IpAddr, is_v6: bool, fits: Option<NonZeroU16>);
}

/// A reply, and whether it is to be sent without a checksum.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub reply: Reply,
    pub plain: bool,
}

/// Whether whoever sends this has shown that he receives at the address that he sends from.
pub fn has_good_cookie(bytes: &[u8], from: IpAddr, now: Duration, cookies: &Cookies) -> bool {
    Ask::read(bytes).is_some_and(|ask| cookies.is_good(ask.cookie, from, now))
}

/// `now`: since any moment that stays the same.
pub fn answer(
    bytes: &[u8],
    from: IpAddr,
    way: Way,
    now: Duration,
    cookies: &Cookies,
    directory: &mut impl Directory,
) -> Option<Response> {
    let Ask { nonce, cookie, subnet, about_v6, plain, fits } = Ask::read(bytes)?;
    if way == Way::Overlay && !plain {
        // Without a cookie too: where answers do not arrive, none is ever told back. The address that it comes from
        // tells a node from a pod that pretends to be one.
        directory.hear(&subnet, about_v6, from, now);
    }
    if !cookies.is_good(cookie, from, now) {
        let reply = Reply::Challenge { nonce, cookie: cookies.give(from, now) };
        return Some(Response { reply, plain });
    }
    if way == Way::Overlay && !plain {
        directory.note_fits(&subnet, from, about_v6, fits);
    }
    let (standing, machine) = (directory.standing(&subnet), directory.machine());
    let heard = directory.heard(&subnet, about_v6).map(|heard| now.saturating_sub(heard));
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let answer = Answer { nonce, standing, heard, size, machine };
    Some(Response { reply: Reply::Answer(answer), plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct One(Option<Duration>);

    impl Directory for One {
        fn machine(&self) -> Option<NonZeroU64> {
            None
        }

        fn standing(&self, subnet: &IpNet) -> Standing {
            if *subnet == net() { Standing::Programmed } else { Standing::Unknown }
        }

        fn heard(&self, _: &IpNet, is_v6: bool) -> Option<Duration> {
            self.0.filter(|_| !is_v6)
        }

        fn hear(&mut self, _: &IpNet, _: bool, from: IpAddr, now: Duration) {
            if from == peer() {
                self.0 = Some(now);
            }
        }

        fn note_fits(&mut self, _: &IpNet, _: IpAddr, _: bool, _: Option<NonZeroU16>) {}
    }

    fn peer() -> IpAddr {
        "192.0.2.7".parse().expect("an address")
    }

    fn net() -> IpNet {
        "10.244.3.0/24".parse().expect("a net")
    }

    #[test]
    fn nothing_is_told_before_the_asker_has_shown_that_he_receives_what_is_sent_to_him() {
        let (cookies, mut directory) = (Cookies::default(), One::default());
        let from: IpAddr = "192.0.2.7".parse().expect("an address");
        let now = Duration::from_secs(100);
        let mut ask =
            Ask { nonce: 5, cookie: 0, subnet: net(), about_v6: false, plain: false, fits: None };
        let mut tell = |ask: &Ask, way, now| {
            answer(&ask.encode(0), from, way, now, &cookies, &mut directory).expect("a reply").reply
        };
        let Reply::Challenge { nonce: 5, cookie } = tell(&ask, Way::Overlay, now) else {
            panic!("a challenge")
        };
        ask.cookie = cookie;
        let later = now + Duration::from_millis(20);
        let expected = Answer {
            nonce: 5,
            standing: Standing::Programmed,
            heard: Some(Duration::from_millis(20)),
            size: 48,
            machine: None,
        };
        assert_eq!(tell(&ask, Way::Underlay, later), Reply::Answer(expected));
        let plain = Ask { plain: true, ..ask };
        let much_later = now + Duration::from_secs(1);
        let Reply::Answer(told) = tell(&plain, Way::Overlay, much_later) else {
            panic!("an answer")
        };
        assert_eq!(
            told.heard,
            Some(Duration::from_secs(1)),
            "without a checksum it does not count"
        );
    }

    #[test]
    fn what_is_no_ask_is_not_answered() {
        let (cookies, mut directory) = (Cookies::default(), One::default());
        let from: IpAddr = "192.0.2.7".parse().expect("an address");
        let reply = Reply::Challenge { nonce: 1, cookie: 2 }.encode();
        for bytes in [&b"hello"[..], &[], &reply, &[0; 1500]] {
            let sent = answer(bytes, from, Way::Overlay, Duration::ZERO, &cookies, &mut directory);
            assert_eq!(sent, None, "two nodes could answer each other for ever");
        }
        assert_eq!(directory.0, None);
    }
}
