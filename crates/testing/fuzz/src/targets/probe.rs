//! Datagrams on the probe port, from whoever can send there.

use std::net::IpAddr;
use std::time::Duration;

use flannel_probe::Way;
use flannel_probe::cookie::Cookies;
use flannel_probe::responder::{Directory, answer};
use flannel_probe::wire::{Ask, Reply, Standing};
use ipnet::IpNet;

struct Nobody;

impl Directory for Nobody {
    fn machine(&self) -> Option<std::num::NonZeroU64> {
        None
    }

    fn standing(&self, _: &IpNet) -> Standing {
        Standing::Unknown
    }

    fn heard(&self, _: &IpNet, _: bool) -> Option<Duration> {
        None
    }

    fn hear(&mut self, _: &IpNet, _: bool, _: IpAddr, _: Duration) {}

    fn note_fits(&mut self, _: &IpNet, _: IpAddr, _: bool, _: Option<std::num::NonZeroU16>) {}
}

pub(crate) fn run(bytes: &[u8]) {
    let (cookies, from) = (Cookies::default(), IpAddr::from([192, 0, 2, 1]));
    let sent = answer(bytes, from, Way::Overlay, Duration::ZERO, &cookies, &mut Nobody);
    if let Some(sent) = &sent {
        let reply = sent.reply.encode();
        assert!(reply.len() <= bytes.len(), "more than was sent");
        assert!(Ask::read(&reply).is_none(), "two nodes would answer each other for ever");
        assert!(Reply::read(&reply) == Some(sent.reply), "read as another");
    }
    if let Some(ask) = Ask::read(bytes) {
        assert!(sent.is_some(), "an ask is answered");
        assert!(Ask::read(&ask.encode(bytes.len())) == Some(ask), "read as another");
    }
    if let Some(reply) = Reply::read(bytes) {
        assert!(sent.is_none(), "a reply is answered");
        assert!(Reply::read(&reply.encode()).map(|read| read.nonce()) == Some(reply.nonce()));
    }
}
