//! Hears of every change that anybody makes to nftables or, by its nft variant, to iptables.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use flannel_netlink::nfnetlink::{self, NFTABLES};
use flannel_netlink::{Attributes, Protocol, Socket, messages};

use crate::{Rule, wire};

const NFTABLES_GROUP: u32 = 7;
/// What one transaction of kube-proxy may announce before it is read.
const RECEIVE_MEMORY: i32 = 4 << 20;

/// A listener to the kernel's announcements, in the network namespace of the thread that opened it.
pub struct Monitor {
    socket: Socket,
}

/// What was heard since the last time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub changes: Vec<Change>,
    /// There was more than could be remembered.
    pub missed: bool,
}

/// A part of a transaction that was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub family: u8,
    /// Who made it.
    pub by: Option<String>,
}

/// One announced change.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub family: u8,
    pub table: &'a str,
    pub object: EventObject<'a>,
}

/// What an event is about.
#[derive(Clone, Copy, Debug)]
pub enum EventObject<'a> {
    /// A table came, went or fell asleep.
    Table,
    /// A set, an element of one, and the like.
    Other,
    Chain(&'a str),
    /// A rule of this chain.
    Rule(&'a str, RuleEvent<'a>),
}

/// What is told of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleEvent<'a>(Attributes<'a>);

impl RuleEvent<'_> {
    /// Whether it may be a jump to this chain: older kernels do not say what a deleted rule did.
    pub fn may_jump_to(self, chain: &str) -> bool {
        let says_what_it_does = self.0.get(wire::RULE_EXPRESSIONS).is_some();
        let rule = Rule::read(self.0).filter(|_| says_what_it_does);
        rule.is_none_or(|rule| rule.target() == Some(chain))
    }
}

impl Monitor {
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.set_receive_memory(RECEIVE_MEMORY)?;
        socket.join(NFTABLES_GROUP)?;
        Ok(Self { socket })
    }

    /// All that has been announced and concerns us. Does not wait.
    pub fn heard(&mut self, concerns: impl Fn(&Event<'_>) -> bool) -> io::Result<Heard> {
        let mut heard = Heard::default();
        loop {
            match self.socket.receive_now() {
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
    let objects = messages(datagram).filter_map(|m| nfnetlink::read(m.ok()?, NFTABLES));
    for object in objects {
        if object.kind == wire::NEW_GENERATION {
            // It ends a transaction and says whose it was.
            let by = process_of(object.attributes);
            for change in heard.changes.iter_mut().rev().take_while(|change| change.by.is_none()) {
                change.by = by.clone();
            }
        } else if let Some(event) = event(object).filter(concerns) {
            let family = event.family;
            if !heard.changes.iter().any(|c| c.by.is_none() && c.family == family) {
                heard.changes.push(Change { family, by: None });
            }
        }
    }
}

fn event(object: nfnetlink::Object<'_>) -> Option<Event<'_>> {
    let nfnetlink::Object { kind, family, attributes } = object;
    let table = attributes.text(wire::TABLE)?;
    let object = match kind {
        wire::NEW_RULE | wire::DELETE_RULE => {
            EventObject::Rule(attributes.text(wire::RULE_CHAIN)?, RuleEvent(attributes))
        }
        wire::NEW_CHAIN | wire::DELETE_CHAIN => {
            EventObject::Chain(attributes.text(wire::CHAIN_NAME)?)
        }
        wire::NEW_TABLE | wire::DELETE_TABLE => EventObject::Table,
        _ => EventObject::Other,
    };
    Some(Event { family, table, object })
}

fn process_of(attributes: Attributes<'_>) -> Option<String> {
    let name = attributes.text(wire::GENERATION_PROCESS_NAME)?;
    let process = attributes.be32(wire::GENERATION_PROCESS)?;
    Some(format!("{name}, process {process}"))
}

#[cfg(test)]
mod tests {
    use flannel_netlink::AttributeWriter;

    use super::*;
    use crate::{Expressions, Verdict};

    fn jump_rule(table: &str, chain: &str, target: &str) -> AttributeWriter {
        let jump = Expressions::new().counter().verdict(Verdict::jump(target));
        AttributeWriter::default()
            .text(wire::TABLE, table)
            .text(wire::RULE_CHAIN, chain)
            .be64(wire::RULE_HANDLE, 7)
            .nest(wire::RULE_EXPRESSIONS, &jump.encode())
    }

    /// What the kernel would announce: the two headers, then attributes.
    fn datagram(kind: u16, family: u8, attributes: &AttributeWriter) -> Vec<u8> {
        let attributes = attributes.as_bytes();
        let mut bytes = (20 + attributes.len() as u32).to_ne_bytes().to_vec();
        bytes.extend((NFTABLES << 8 | kind).to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([family, 0, 0, 0]);
        bytes.extend(attributes);
        bytes
    }

    fn generation(by: &str) -> Vec<u8> {
        datagram(wire::NEW_GENERATION, 0, &AttributeWriter::default().be32(2, 77).text(3, by))
    }

    fn rule(family: u8, chain: &str) -> Vec<u8> {
        datagram(wire::DELETE_RULE, family, &jump_rule("nat", chain, "FLANNEL-POSTRTG"))
    }

    fn heard(datagrams: &[Vec<u8>]) -> Vec<Change> {
        let mut heard = Heard::default();
        let ours = |event: &Event<'_>| matches!(event.object, EventObject::Rule("POSTROUTING", _));
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
        let bare = AttributeWriter::default().text(1, "nat").text(2, "POSTROUTING");
        for (attributes, may) in [(told, false), (bare, true)] {
            let bytes = datagram(wire::DELETE_RULE, 2, &attributes);
            let message = messages(&bytes).next().unwrap().unwrap();
            let object = nfnetlink::read(message, NFTABLES).unwrap();
            let EventObject::Rule(_, body) = event(object).unwrap().object else { panic!() };
            assert_eq!(body.may_jump_to("FLANNEL-POSTRTG"), may);
        }
    }
}
