//! Hears of every change that anybody makes to nftables or, by its nft variant, to iptables.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::socket::Socket;
use super::wire::{self, Attributes, Message};

const NFTABLES_GROUP: i32 = 7;
/// What one transaction of kube-proxy's may announce before we read.
const MEMORY: i32 = 4 << 20;

pub(crate) struct Monitor {
    socket: Socket,
}

/// What was heard since the last time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) changes: Vec<Change>,
    /// There was more than could be remembered.
    pub(crate) missed: bool,
}

/// A part of a transaction that was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) family: u8,
    /// Who made it.
    pub(crate) by: Option<String>,
}

/// One announced change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) family: u8,
    pub(crate) table: &'a str,
    pub(crate) object: Object<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    /// A table came, went or fell asleep.
    Table,
    /// A set, an element of one, and the like.
    Other,
    Chain(&'a str),
    /// A rule of this chain.
    Rule(&'a str, RuleBody<'a>),
}

/// What is told of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleBody<'a>(Attributes<'a>);

impl RuleBody<'_> {
    /// Whether it may be a jump to this chain: older kernels do not say what a deleted rule did.
    pub(crate) fn may_jump_to(self, chain: &str) -> bool {
        self.0.jumps_to(chain).unwrap_or(true)
    }
}

impl Monitor {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::open()?;
        socket.join(NFTABLES_GROUP, MEMORY)?;
        Ok(Self { socket })
    }

    /// All that has been announced and concerns us. Does not wait.
    pub(crate) fn heard(&mut self, concerns: impl Fn(&Event<'_>) -> bool) -> io::Result<Heard> {
        let mut heard = Heard::default();
        loop {
            match self.socket.receive(false) {
                Ok(datagram) => hear(datagram, &concerns, &mut heard),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => heard.missed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn hear(datagram: &[u8], concerns: &impl Fn(&Event<'_>) -> bool, heard: &mut Heard) {
    for message in wire::messages(datagram) {
        let Message::Object { kind, family, attributes } = message else { continue };
        if kind == wire::NEW_GENERATION {
            // It ends a transaction and says whose it was.
            let by = culprit(attributes);
            for change in heard.changes.iter_mut().rev().take_while(|change| change.by.is_none()) {
                change.by = by.clone();
            }
        } else if let Some(event) = event(kind, family, attributes).filter(concerns) {
            let family = event.family;
            if !heard.changes.iter().any(|c| c.by.is_none() && c.family == family) {
                heard.changes.push(Change { family, by: None });
            }
        }
    }
}

fn event(kind: u16, family: u8, attributes: Attributes<'_>) -> Option<Event<'_>> {
    let table = attributes.text(wire::TABLE)?;
    let object = match kind {
        wire::NEW_RULE | wire::DELETE_RULE => {
            Object::Rule(attributes.text(wire::RULE_CHAIN)?, RuleBody(attributes))
        }
        wire::NEW_CHAIN | wire::DELETE_CHAIN => Object::Chain(attributes.text(wire::CHAIN_NAME)?),
        wire::NEW_TABLE | wire::DELETE_TABLE => Object::Table,
        _ => Object::Other,
    };
    Some(Event { family, table, object })
}

fn culprit(attributes: Attributes<'_>) -> Option<String> {
    let name = attributes.text(wire::GENERATION_PROCESS_NAME)?;
    let process = attributes.number(wire::GENERATION_PROCESS)?;
    Some(format!("{name}, process {process}"))
}

#[cfg(test)]
mod tests {
    use super::super::wire::tests::{datagram, jump_rule, nest};
    use super::*;

    fn generation(by: &str) -> Vec<u8> {
        let attributes = nest(&[(2, &77u32.to_be_bytes()), (3, &wire::name(by))]);
        datagram(wire::NEW_GENERATION, 0, &attributes)
    }

    fn rule(family: u8, chain: &str) -> Vec<u8> {
        datagram(wire::DELETE_RULE, family, &jump_rule("nat", chain, "FLANNEL-POSTRTG"))
    }

    fn heard(datagrams: &[Vec<u8>]) -> Vec<Change> {
        let mut heard = Heard::default();
        let ours = |event: &Event<'_>| matches!(event.object, Object::Rule("POSTROUTING", _));
        for datagram in datagrams {
            hear(datagram, &ours, &mut heard);
        }
        heard.changes
    }

    #[test]
    fn a_transaction_is_one_change_and_says_whose_it_was() {
        let changes = heard(&[
            [rule(2, "POSTROUTING"), rule(2, "POSTROUTING")].concat(),
            generation("firewalld"),
            rule(10, "POSTROUTING"),
            generation("nft"),
        ]);
        let by = |family, name: &str| Change { family, by: Some(format!("{name}, process 77")) };
        assert_eq!(changes, [by(2, "firewalld"), by(10, "nft")]);
    }

    #[test]
    fn what_concerns_nobody_is_not_kept() {
        assert_eq!(heard(&[rule(2, "KUBE-SERVICES"), generation("iptables-restor")]), []);
    }

    #[test]
    fn a_rule_that_does_not_say_what_it_did_may_have_been_the_jump() {
        let told = jump_rule("nat", "POSTROUTING", "DOCKER");
        let bare = nest(&[(1, &wire::name("nat")), (2, &wire::name("POSTROUTING"))]);
        for (attributes, may) in [(told, false), (bare, true)] {
            let bytes = datagram(wire::DELETE_RULE, 2, &attributes);
            let message = wire::messages(&bytes).next().unwrap();
            let Message::Object { kind, family, attributes } = message else { panic!() };
            let Object::Rule(_, body) = event(kind, family, attributes).unwrap().object else {
                panic!()
            };
            assert_eq!(body.may_jump_to("FLANNEL-POSTRTG"), may);
        }
    }
}
