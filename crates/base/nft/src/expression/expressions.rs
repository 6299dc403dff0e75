//! A rule's expressions, put together by what they mean.

use std::net::IpAddr;

use flannel_netlink::ip;
use ipnet::IpNet;

use super::{
    Comparison, ConnectionKey, Direction, Expression, Field, Header, MetaKey, REGISTER_1,
    REGISTER_2, Verdict,
};
use crate::{TableFamily, octets};

/// The first of the registers of four bytes, which concatenated keys are built in.
const REGISTER_4_BYTES: u32 = 8;
const TYPE_LOCAL: u32 = 2;
/// Index of the loopback interface in every namespace.
const LOOPBACK_LINK: u32 = 1;
const UDP: u8 = 17;

/// The expressions of a rule; packets go through them from left to right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expressions(pub Vec<Expression>);

impl Expressions {
    pub fn new() -> Self {
        Self::default()
    }

    /// Matches packets of this family: needed in tables of both.
    pub fn family_of(self, ip: IpAddr) -> Self {
        self.meta(MetaKey::NetworkProtocol).equals(&[TableFamily::of(ip) as u8])
    }

    pub fn address(self, field: Field, ip: IpAddr) -> Self {
        self.network(field, ip.into())
    }

    pub fn network(self, field: Field, network: IpNet) -> Self {
        self.masked(field, network, Comparison::Equal)
    }

    pub fn not_network(self, field: Field, network: IpNet) -> Self {
        self.masked(field, network, Comparison::NotEqual)
    }

    /// Matches a transport protocol: 6 is TCP.
    pub fn protocol(self, protocol: u8) -> Self {
        self.meta(MetaKey::TransportProtocol).equals(&[protocol])
    }

    /// Matches a transport protocol and a destination port.
    pub fn port(self, protocol: u8, port: u16) -> Self {
        self.protocol(protocol).payload(Header::Transport, 2, 2).equals(&port.to_be_bytes())
    }

    pub fn udp_port(self, port: u16) -> Self {
        self.port(UDP, port)
    }

    /// Matches packets whose destination is one of the host's own addresses.
    pub fn destined_here(self) -> Self {
        self.then(Expression::DestinationType { register: REGISTER_1 })
            .equals(&TYPE_LOCAL.to_ne_bytes())
    }

    /// Matches packets that came from another machine or namespace.
    pub fn arriving(self) -> Self {
        self.meta(MetaKey::InputLink)
            .compare(Comparison::NotEqual, LOOPBACK_LINK.to_ne_bytes().to_vec())
    }

    /// Matches packets that came in by this interface.
    pub fn from(self, interface: &str) -> Self {
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from;
        }
        self.meta(MetaKey::InputName).equals(&name)
    }

    /// Matches frames with this MAC address as their sender's.
    pub fn sent_by(self, mac: &[u8]) -> Self {
        self.payload(Header::Link, 6, 6).equals(mac)
    }

    pub fn marked(self, bits: u32) -> Self {
        let bits = bits.to_ne_bytes();
        self.meta(MetaKey::Mark).bitwise(bits.to_vec(), vec![0; 4]).equals(&bits)
    }

    /// Sets these bits of the packet's mark.
    pub fn mark(self, bits: u32) -> Self {
        self.meta(MetaKey::Mark)
            .bitwise((!bits).to_ne_bytes().to_vec(), bits.to_ne_bytes().to_vec())
            .then(Expression::SetMark { register: REGISTER_1 })
    }

    /// Matches packets one of whose addresses is in a set.
    pub fn address_in(self, field: Field, family: TableFamily, set: &str) -> Self {
        self.load_address(field, family == TableFamily::Ipv4).lookup(set, false)
    }

    /// Gives the packet the verdict that a map has for one of its addresses.
    pub fn address_verdict(self, field: Field, family: TableFamily, map: &str) -> Self {
        self.load_address(field, family == TableFamily::Ipv4).lookup(map, true)
    }

    /// Matches packets whose two addresses, one after the other, are in a set.
    pub fn address_pair_in(self, family: TableFamily, set: &str) -> Self {
        let is_ipv4 = family == TableFamily::Ipv4;
        let (offset, len) = address_place(Field::Destination, is_ipv4);
        // Registers of four bytes are counted from the first one, whose four bytes are those of register 1.
        let register = if is_ipv4 { REGISTER_4_BYTES + 1 } else { REGISTER_2 };
        self.load_address(Field::Source, is_ipv4)
            .then(Expression::Payload { header: Header::Network, offset, len, register })
            .lookup(set, false)
    }

    /// Matches packets of connections: a key of one direction, or of the connection as a whole.
    pub fn connection(
        self,
        key: ConnectionKey,
        direction: Option<Direction>,
        how: Comparison,
        value: &[u8],
    ) -> Self {
        self.then(Expression::Connection { key, direction, register: REGISTER_1 })
            .compare(how, value.to_vec())
    }

    pub fn counter(self) -> Self {
        self.then(Expression::Counter { packets: 0, bytes: 0 })
    }

    pub fn named_counter(self, name: &str) -> Self {
        self.then(Expression::NamedCounter(name.to_owned()))
    }

    pub fn flow_offload(self, flowtable: &str) -> Self {
        self.then(Expression::FlowOffload(flowtable.to_owned()))
    }

    pub fn dnat(self, ip: IpAddr, port: u16) -> Self {
        let port = port.to_be_bytes().to_vec();
        self.then(Expression::Immediate { register: REGISTER_1, value: octets(ip) })
            .then(Expression::Immediate { register: REGISTER_2, value: port })
            .then(Expression::Dnat { family: TableFamily::of(ip) as u32 })
    }

    /// `fully_random`: ports are drawn at random, not by a hash.
    pub fn masquerade(self, fully_random: bool) -> Self {
        self.then(Expression::Masquerade { fully_random })
    }

    pub fn verdict(self, verdict: Verdict) -> Self {
        self.then(Expression::Verdict(verdict))
    }

    /// The chain that the last verdict leads to.
    pub fn target(&self) -> Option<&str> {
        self.0.iter().rev().find_map(|expression| match expression {
            Expression::Verdict(verdict) => verdict.target(),
            _ => None,
        })
    }

    /// The comment of a rule of iptables, which keeps it as a match that always succeeds.
    pub(crate) fn comment_of_iptables(&self) -> Option<&str> {
        self.0.iter().find_map(|expression| match expression {
            Expression::Extension { name, info } if name == "comment" => {
                flannel_netlink::text(info)
            }
            _ => None,
        })
    }

    fn then(mut self, expression: Expression) -> Self {
        self.0.push(expression);
        self
    }

    fn meta(self, key: MetaKey) -> Self {
        self.then(Expression::Meta { key, register: REGISTER_1 })
    }

    fn load_address(self, field: Field, is_ipv4: bool) -> Self {
        let (offset, len) = address_place(field, is_ipv4);
        self.payload(Header::Network, offset, len)
    }

    fn payload(self, header: Header, offset: u32, len: u32) -> Self {
        self.then(Expression::Payload { header, offset, len, register: REGISTER_1 })
    }

    fn masked(self, field: Field, network: IpNet, how: Comparison) -> Self {
        let (offset, len) = address_place(field, network.addr().is_ipv4());
        let mut value = octets(network.network());
        if network.prefix_len() > 0 && network.prefix_len().is_multiple_of(8) {
            value.truncate(usize::from(network.prefix_len() / 8));
            return self.payload(Header::Network, offset, value.len() as u32).compare(how, value);
        }
        let zero = vec![0; value.len()];
        self.payload(Header::Network, offset, len)
            .bitwise(octets(network.netmask()), zero)
            .compare(how, value)
    }

    fn bitwise(self, mask: Vec<u8>, xor: Vec<u8>) -> Self {
        self.then(Expression::Bitwise { register: REGISTER_1, mask, xor })
    }

    fn equals(self, value: &[u8]) -> Self {
        self.compare(Comparison::Equal, value.to_vec())
    }

    fn compare(self, how: Comparison, value: Vec<u8>) -> Self {
        self.then(Expression::Compare { register: REGISTER_1, how, value })
    }

    fn lookup(self, set: &str, verdict: bool) -> Self {
        let set = set.to_owned();
        self.then(Expression::Lookup { set, register: REGISTER_1, inverted: false, verdict })
    }
}

/// Offset and length of an address in the header of IPv4 or IPv6.
fn address_place(field: Field, is_ipv4: bool) -> (u32, u32) {
    match (field, is_ipv4) {
        (Field::Source, true) => (12, 4),
        (Field::Destination, true) => (16, 4),
        (Field::Source, false) => (8, 16),
        (Field::Destination, false) => (24, 16),
    }
}

/// Address and prefix length that a load of the network header and its mask compare with; `None`: it is not an address.
pub fn loaded_network(
    offset: u32,
    value: &[u8],
    mask: Option<&[u8]>,
    family: TableFamily,
) -> Option<(Field, IpNet)> {
    let is_ipv4 = family == TableFamily::Ipv4;
    let field = [Field::Source, Field::Destination]
        .into_iter()
        .find(|field| address_place(*field, is_ipv4).0 == offset)?;
    let prefix = match mask {
        Some(mask) => mask.iter().map(|byte| byte.leading_ones()).sum::<u32>(),
        None => value.len() as u32 * 8,
    };
    let mut bytes = value.to_vec();
    bytes.resize(if is_ipv4 { 4 } else { 16 }, 0);
    Some((field, IpNet::new(ip(&bytes)?, u8::try_from(prefix).ok()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(rule: &Expressions) -> Expressions {
        Expressions::decode(rule.encode().read())
    }

    #[test]
    fn every_expression_is_decoded_as_it_was_encoded() {
        let ip: IpAddr = [10, 1, 2, 3].into();
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let rules = [
            Expressions::new().family_of(ip).address(Field::Source, ip).dnat(ip, 80),
            Expressions::new().not_network(Field::Destination, net("fd00::/9")).masquerade(true),
            Expressions::new().network(Field::Source, net("10.0.0.0/8")).masquerade(false),
            Expressions::new().destined_here().verdict(Verdict::jump("there")),
            Expressions::new().from("cni0").udp_port(8472).verdict(Verdict::Drop),
            Expressions::new().marked(0x4000).mark(0x2000).verdict(Verdict::Return),
            Expressions::new().arriving().sent_by(&[2, 0, 0, 0, 0, 1]).verdict(Verdict::goto("c")),
            Expressions::new().address_in(Field::Source, TableFamily::Ipv4, "s").counter(),
            Expressions::new().address_verdict(Field::Destination, TableFamily::Ipv6, "m"),
            Expressions::new().address_pair_in(TableFamily::Ipv6, "p").named_counter("n"),
            Expressions::new().protocol(6).flow_offload("f").verdict(Verdict::Accept),
            Expressions::new().connection(
                ConnectionKey::SourceIpv4,
                Some(Direction::Reply),
                Comparison::Equal,
                &[10, 1, 2, 3],
            ),
        ];
        for rule in rules {
            assert_eq!(read_back(&rule), rule);
        }
    }

    #[test]
    fn mask_of_whole_bytes_is_decoded_as_shorter_load() {
        let long = Expressions(vec![
            Expression::Payload { header: Header::Network, offset: 16, len: 4, register: 1 },
            Expression::Bitwise { register: 1, mask: vec![255, 255, 0, 0], xor: vec![0; 4] },
            Expression::Compare {
                register: 1,
                how: Comparison::NotEqual,
                value: vec![10, 244, 0, 0],
            },
        ]);
        let short =
            Expressions::new().not_network(Field::Destination, "10.244.0.0/16".parse().unwrap());
        assert_eq!(read_back(&long), short);
        // What no packet has, or what is compared elsewhere, is not made shorter.
        for (register, value) in [(1, vec![10, 244, 0, 1]), (2, vec![10, 244, 0, 0])] {
            let mut other = long.clone();
            let how = Comparison::NotEqual;
            other.0[2] = Expression::Compare { register, how, value };
            assert_eq!(read_back(&other), other);
        }
    }

    #[test]
    fn networks_are_found_in_what_is_compared() {
        for text in ["10.244.0.0/16", "224.0.0.0/4", "10.1.2.3/32", "fd00:244::/56", "fe80::/10"] {
            let net: IpNet = text.parse().unwrap();
            let rule = Expressions::new().network(Field::Destination, net);
            let (offset, mask, value) = match rule.0.as_slice() {
                [Expression::Payload { offset, .. }, Expression::Compare { value, .. }] => {
                    (*offset, None, value)
                }
                [
                    Expression::Payload { offset, .. },
                    Expression::Bitwise { mask, .. },
                    Expression::Compare { value, .. },
                ] => (*offset, Some(mask.as_slice()), value),
                other => panic!("{other:?}"),
            };
            let found = loaded_network(offset, value, mask, TableFamily::of(net.addr()));
            assert_eq!(found, Some((Field::Destination, net)));
        }
    }
}
