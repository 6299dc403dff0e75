//! What a rule asks of a packet and does with it, as the small machine in the kernel wants it: load
//! something into a register, compare the register, act.

use std::net::IpAddr;

use flannel_netlink::AttributeWriter;
use ipnet::IpNet;

const LIST_ELEMENT: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;
const VALUE: u16 = 1;
const VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

const REGISTER_VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;

const META_MARK: u32 = 3;
const META_INPUT_LINK: u32 = 4;
const META_INPUT_NAME: u32 = 6;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const LINK_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const ADDRESS_TYPE: u32 = 3;
const OF_DESTINATION: u32 = 2;
const TYPE_LOCAL: u32 = 2;
/// In every namespace.
const LOOPBACK_LINK: u32 = 1;
const DNAT: u32 = 1;
const PORT_IS_GIVEN: u32 = 2;

#[derive(Clone, Copy)]
pub(crate) enum Field {
    Source,
    Destination,
}

#[derive(Clone, Copy)]
pub(crate) enum Verdict<'a> {
    Jump(&'a str),
    Goto(&'a str),
    Return,
    Drop,
}

/// A rule in the making; packets go through it from left to right.
#[derive(Default)]
pub(crate) struct Expressions {
    parts: Vec<(&'static str, AttributeWriter)>,
    target: Option<String>,
}

impl Expressions {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Only packets of this family: needed in tables of both.
    pub(crate) fn family_of(self, ip: IpAddr) -> Self {
        let number = super::TableFamily::of(ip) as u8;
        self.load_meta(META_NFPROTO).compare(EQUAL, &[number])
    }

    pub(crate) fn address(self, field: Field, ip: IpAddr) -> Self {
        self.load_address(field, ip).compare(EQUAL, &octets(ip))
    }

    pub(crate) fn network(self, field: Field, network: IpNet) -> Self {
        self.masked(field, network).compare(EQUAL, &octets(network.network()))
    }

    pub(crate) fn not_network(self, field: Field, network: IpNet) -> Self {
        self.masked(field, network).compare(NOT_EQUAL, &octets(network.network()))
    }

    /// Protocol (6 is TCP) and destination port.
    pub(crate) fn port(self, protocol: u8, port: u16) -> Self {
        self.load_meta(META_L4PROTO)
            .compare(EQUAL, &[protocol])
            .load(TRANSPORT_HEADER, 2, 2)
            .compare(EQUAL, &port.to_be_bytes())
    }

    /// The destination is one of the host's own addresses.
    pub(crate) fn destined_here(self) -> Self {
        let fib = AttributeWriter::default()
            .be32(1, REGISTER_1)
            .be32(2, ADDRESS_TYPE)
            .be32(3, OF_DESTINATION);
        self.push("fib", fib).compare(EQUAL, &TYPE_LOCAL.to_ne_bytes())
    }

    /// It came from another machine or namespace.
    pub(crate) fn arriving(self) -> Self {
        self.load_meta(META_INPUT_LINK).compare(NOT_EQUAL, &LOOPBACK_LINK.to_ne_bytes())
    }

    /// It came in by this interface.
    pub(crate) fn from(self, interface: &str) -> Self {
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from;
        }
        self.load_meta(META_INPUT_NAME).compare(EQUAL, &name)
    }

    /// The frame bears this MAC address as its sender's.
    pub(crate) fn sent_by(self, mac: &[u8]) -> Self {
        self.load(LINK_HEADER, 6, 6).compare(EQUAL, mac)
    }

    pub(crate) fn marked(self, bits: u32) -> Self {
        self.load_meta(META_MARK)
            .mask(&bits.to_ne_bytes(), &[0; 4])
            .compare(EQUAL, &bits.to_ne_bytes())
    }

    pub(crate) fn mark(self, bits: u32) -> Self {
        let set = AttributeWriter::default().be32(2, META_MARK).be32(3, REGISTER_1);
        self.load_meta(META_MARK)
            .mask(&(!bits).to_ne_bytes(), &bits.to_ne_bytes())
            .push("meta", set)
    }

    pub(crate) fn dnat(self, ip: IpAddr, port: u16) -> Self {
        let nat = AttributeWriter::default()
            .be32(1, DNAT)
            .be32(2, super::TableFamily::of(ip) as u32)
            .be32(3, REGISTER_1)
            .be32(5, REGISTER_2)
            .be32(7, PORT_IS_GIVEN);
        self.immediate(REGISTER_1, &octets(ip))
            .immediate(REGISTER_2, &port.to_be_bytes())
            .push("nat", nat)
    }

    pub(crate) fn masquerade(self) -> Self {
        self.push("masq", AttributeWriter::default())
    }

    pub(crate) fn verdict(mut self, verdict: Verdict<'_>) -> Self {
        let (code, chain) = match verdict {
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
            Verdict::Drop => (0, None),
        };
        let mut inner = AttributeWriter::default().be32(VERDICT_CODE, code as u32);
        if let Some(chain) = chain {
            inner = inner.text(VERDICT_CHAIN, chain);
            self.target = Some(chain.to_owned());
        }
        let data = AttributeWriter::default().nest(VERDICT, &inner);
        self.push("immediate", AttributeWriter::default().be32(1, REGISTER_VERDICT).nest(2, &data))
    }

    /// A number that other rules hardly have.
    pub(super) fn print(&self) -> u64 {
        super::batch::print(self.to_attributes().as_bytes())
    }

    /// The chain it leads to.
    pub(super) fn target(&self) -> Option<&str> {
        self.target.as_deref()
    }

    pub(super) fn shape(&self) -> impl Iterator<Item = &'static str> {
        self.parts.iter().map(|(name, _)| *name)
    }

    pub(super) fn to_attributes(&self) -> AttributeWriter {
        let mut list = AttributeWriter::default();
        for (name, data) in &self.parts {
            let expression = AttributeWriter::default().text(NAME, name).nest(DATA, data);
            list.append(&AttributeWriter::default().nest(LIST_ELEMENT, &expression));
        }
        list
    }

    fn push(mut self, name: &'static str, data: AttributeWriter) -> Self {
        self.parts.push((name, data));
        self
    }

    fn load_meta(self, key: u32) -> Self {
        self.push("meta", AttributeWriter::default().be32(1, REGISTER_1).be32(2, key))
    }

    fn load_address(self, field: Field, ip: IpAddr) -> Self {
        let (offset, len) = match (field, ip.is_ipv4()) {
            (Field::Source, true) => (12, 4),
            (Field::Destination, true) => (16, 4),
            (Field::Source, false) => (8, 16),
            (Field::Destination, false) => (24, 16),
        };
        self.load(NETWORK_HEADER, offset, len)
    }

    fn load(self, base: u32, offset: u32, len: u32) -> Self {
        let payload = AttributeWriter::default()
            .be32(1, REGISTER_1)
            .be32(2, base)
            .be32(3, offset)
            .be32(4, len);
        self.push("payload", payload)
    }

    fn masked(self, field: Field, network: IpNet) -> Self {
        let mask = octets(network.netmask());
        let zero = vec![0; mask.len()];
        self.load_address(field, network.addr()).mask(&mask, &zero)
    }

    fn mask(self, mask: &[u8], xor: &[u8]) -> Self {
        let bitwise = AttributeWriter::default()
            .be32(1, REGISTER_1)
            .be32(2, REGISTER_1)
            .be32(3, mask.len() as u32)
            .nest(4, &AttributeWriter::default().bytes(VALUE, mask))
            .nest(5, &AttributeWriter::default().bytes(VALUE, xor));
        self.push("bitwise", bitwise)
    }

    fn compare(self, how: u32, value: &[u8]) -> Self {
        let data = AttributeWriter::default().bytes(VALUE, value);
        self.push("cmp", AttributeWriter::default().be32(1, REGISTER_1).be32(2, how).nest(3, &data))
    }

    fn immediate(self, register: u32, value: &[u8]) -> Self {
        let data = AttributeWriter::default().bytes(VALUE, value);
        self.push("immediate", AttributeWriter::default().be32(1, register).nest(2, &data))
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
