//! Expressions in netlink attributes.

use flannel_netlink::{AttributeWriter, Attributes};

use super::{
    Comparison, ConnectionKey, Direction, Expression, Expressions, Header, MetaKey, REGISTER_1,
    REGISTER_2, REGISTER_VERDICT, Verdict,
};
use crate::wire::{
    COUNTER_BYTES, COUNTER_PACKETS, DATA_VALUE, DATA_VERDICT, EXPRESSION_DATA, EXPRESSION_NAME,
    LIST_ELEMENT, OBJECT_COUNTER, VERDICT_CHAIN, VERDICT_CODE,
};

const ADDRESS_TYPE: u32 = 3;
const OF_DESTINATION: u32 = 2;
const DNAT: u32 = 1;
const PORT_IS_GIVEN: u32 = 2;
const FULLY_RANDOM: u32 = 0x10;

impl Verdict {
    pub(crate) fn encode(&self) -> AttributeWriter {
        let code = match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Continue => -1,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        };
        let verdict = AttributeWriter::default().be32(VERDICT_CODE, code as u32);
        let verdict = match self.target() {
            Some(chain) => verdict.text(VERDICT_CHAIN, chain),
            None => verdict,
        };
        AttributeWriter::default().nest(DATA_VERDICT, &verdict)
    }

    pub(crate) fn decode(data: Attributes<'_>) -> Option<Self> {
        let verdict = data.nested(DATA_VERDICT)?;
        let chain = || verdict.text(VERDICT_CHAIN).map(str::to_owned);
        match verdict.be32(VERDICT_CODE)? as i32 {
            0 => Some(Self::Drop),
            1 => Some(Self::Accept),
            -1 => Some(Self::Continue),
            -3 => chain().map(Self::Jump),
            -4 => chain().map(Self::Goto),
            -5 => Some(Self::Return),
            _ => None,
        }
    }
}

impl Expression {
    fn encode(&self) -> AttributeWriter {
        let new = AttributeWriter::default;
        let value = |bytes: &[u8]| new().bytes(DATA_VALUE, bytes);
        let (name, data) = match self {
            Self::Meta { key, register } => ("meta", new().be32(1, *register).be32(2, *key as u32)),
            Self::SetMark { register } => {
                ("meta", new().be32(2, MetaKey::Mark as u32).be32(3, *register))
            }
            Self::Payload { header, offset, len, register } => {
                let place = new().be32(1, *register).be32(2, *header as u32);
                ("payload", place.be32(3, *offset).be32(4, *len))
            }
            Self::Connection { key, direction, register } => {
                let data = new().be32(1, *register).be32(2, *key as u32);
                match direction {
                    Some(direction) => ("ct", data.bytes(3, &[*direction as u8])),
                    None => ("ct", data),
                }
            }
            Self::DestinationType { register } => {
                ("fib", new().be32(1, *register).be32(2, ADDRESS_TYPE).be32(3, OF_DESTINATION))
            }
            Self::Bitwise { register, mask, xor } => {
                let data = new().be32(1, *register).be32(2, *register).be32(3, mask.len() as u32);
                ("bitwise", data.nest(4, &value(mask)).nest(5, &value(xor)))
            }
            Self::Compare { register, how, value: bytes } => {
                ("cmp", new().be32(1, *register).be32(2, *how as u32).nest(3, &value(bytes)))
            }
            Self::Lookup { set, register, inverted, verdict } => {
                let mut data = new().text(1, set).be32(2, *register);
                if *verdict {
                    data = data.be32(3, REGISTER_VERDICT);
                }
                ("lookup", if *inverted { data.be32(5, 1) } else { data })
            }
            Self::Immediate { register, value: bytes } => {
                ("immediate", new().be32(1, *register).nest(2, &value(bytes)))
            }
            Self::Verdict(verdict) => {
                ("immediate", new().be32(1, REGISTER_VERDICT).nest(2, &verdict.encode()))
            }
            Self::Dnat { family } => {
                let data = new().be32(1, DNAT).be32(2, *family).be32(3, REGISTER_1);
                ("nat", data.be32(5, REGISTER_2).be32(7, PORT_IS_GIVEN))
            }
            Self::Masquerade { fully_random: true } => ("masq", new().be32(1, FULLY_RANDOM)),
            Self::Masquerade { fully_random: false } => ("masq", new()),
            Self::Counter { packets, bytes } => {
                ("counter", new().be64(COUNTER_BYTES, *bytes).be64(COUNTER_PACKETS, *packets))
            }
            Self::NamedCounter(name) => ("objref", new().be32(1, OBJECT_COUNTER).text(2, name)),
            Self::FlowOffload(name) => ("flow_offload", new().text(1, name)),
            Self::Extension { name, info } => {
                ("match", new().text(1, name).be32(2, 0).bytes(3, info))
            }
            Self::NoTrack => ("notrack", new()),
            // They are read, and never written here.
            Self::ByteOrder { .. } => ("byteorder", new()),
            Self::Range { .. } => ("range", new()),
            Self::PayloadWrite { .. } => ("payload", new()),
            Self::SourceNat { .. } => ("nat", new()),
            Self::Redirect => ("redir", new()),
            Self::Reject => ("reject", new()),
            Self::Queue => ("queue", new()),
            Self::ForwardTo => ("fwd", new()),
            Self::Log => ("log", new()),
            Self::Other(name) => (name.as_str(), new()),
        };
        new().text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, &data)
    }

    fn decode(expression: Attributes<'_>) -> Self {
        let name = expression.text(EXPRESSION_NAME).unwrap_or_default();
        let data = expression.nested(EXPRESSION_DATA).unwrap_or_default();
        Self::decode_data(name, data).unwrap_or_else(|| Self::Other(name.to_owned()))
    }

    fn decode_data(name: &str, data: Attributes<'_>) -> Option<Self> {
        let register = || data.be32(1);
        let value = |kind| Some(data.nested(kind)?.get(DATA_VALUE)?.to_vec());
        Some(match name {
            "meta" if data.be32(3).is_some() => {
                (data.be32(2)? == MetaKey::Mark as u32).then_some(())?;
                Self::SetMark { register: data.be32(3)? }
            }
            "meta" => Self::Meta { key: meta_key(data.be32(2)?)?, register: register()? },
            "payload" if data.be32(5).is_some() => Self::PayloadWrite {
                header: header(data.be32(2)?)?,
                offset: data.be32(3)?,
                len: data.be32(4)?,
                register: data.be32(5)?,
            },
            "payload" => Self::Payload {
                header: header(data.be32(2)?)?,
                offset: data.be32(3)?,
                len: data.be32(4)?,
                register: register()?,
            },
            "ct" => Self::Connection {
                key: connection_key(data.be32(2)?)?,
                direction: match data.get(3) {
                    None => None,
                    Some([0]) => Some(Direction::Original),
                    Some(_) => Some(Direction::Reply),
                },
                register: register()?,
            },
            "fib" => {
                let is_it =
                    data.be32(2) == Some(ADDRESS_TYPE) && data.be32(3) == Some(OF_DESTINATION);
                Self::DestinationType { register: register().filter(|_| is_it)? }
            }
            "bitwise" => {
                let in_place = register() == data.be32(2) && data.be32(6).unwrap_or(0) == 0;
                let register = register().filter(|_| in_place)?;
                Self::Bitwise { register, mask: value(4)?, xor: value(5)? }
            }
            "cmp" => {
                let how = match data.be32(2)? {
                    0 => Comparison::Equal,
                    1 => Comparison::NotEqual,
                    2 => Comparison::Less,
                    3 => Comparison::LessOrEqual,
                    4 => Comparison::Greater,
                    5 => Comparison::GreaterOrEqual,
                    _ => return None,
                };
                Self::Compare { register: register()?, how, value: value(3)? }
            }
            "lookup" => Self::Lookup {
                set: data.text(1)?.to_owned(),
                register: data.be32(2)?,
                inverted: data.be32(5) == Some(1),
                verdict: data.be32(3) == Some(REGISTER_VERDICT),
            },
            "immediate" => match data.nested(2).and_then(Verdict::decode) {
                Some(verdict) => Self::Verdict(verdict),
                None => Self::Immediate { register: register()?, value: value(2)? },
            },
            "nat" if data.be32(1) == Some(DNAT) => Self::Dnat { family: data.be32(2)? },
            "nat" => Self::SourceNat { address: data.be32(3) },
            "byteorder" => Self::ByteOrder {
                from: register()?,
                to: data.be32(2)?,
                len: data.be32(4)?,
                size: data.be32(5)?,
            },
            "range" => Self::Range {
                register: register()?,
                inverted: data.be32(2) == Some(1),
                first: value(3)?,
                last: value(4)?,
            },
            "redir" => Self::Redirect,
            "reject" => Self::Reject,
            "queue" => Self::Queue,
            "fwd" => Self::ForwardTo,
            "notrack" => Self::NoTrack,
            "log" => Self::Log,
            "masq" => {
                let flags = data.be32(1).unwrap_or(0);
                (flags & !FULLY_RANDOM == 0 && data.get(2).is_none()).then_some(())?;
                Self::Masquerade { fully_random: flags != 0 }
            }
            "counter" => Self::Counter {
                packets: data.be64(COUNTER_PACKETS)?,
                bytes: data.be64(COUNTER_BYTES)?,
            },
            "objref" if data.be32(1) == Some(OBJECT_COUNTER) => {
                Self::NamedCounter(data.text(2)?.to_owned())
            }
            "flow_offload" => Self::FlowOffload(data.text(1)?.to_owned()),
            "match" | "target" => {
                Self::Extension { name: data.text(1)?.to_owned(), info: data.get(3)?.to_vec() }
            }
            _ => return None,
        })
    }
}

fn meta_key(number: u32) -> Option<MetaKey> {
    use MetaKey::*;
    let all = [Length, EtherType, Mark, InputLink, OutputLink, InputName, OutputName];
    all.into_iter()
        .chain([NetworkProtocol, TransportProtocol, InputBridge, OutputBridge])
        .find(|key| *key as u32 == number)
}

fn header(number: u32) -> Option<Header> {
    [Header::Link, Header::Network, Header::Transport]
        .into_iter()
        .find(|header| *header as u32 == number)
}

fn connection_key(number: u32) -> Option<ConnectionKey> {
    use ConnectionKey::{
        DestinationIpv4, DestinationIpv6, Mark, ProtocolSource, SourceIpv4, SourceIpv6, State,
    };
    [State, Mark, ProtocolSource, SourceIpv4, DestinationIpv4, SourceIpv6, DestinationIpv6]
        .into_iter()
        .find(|key| *key as u32 == number)
}

impl Expressions {
    pub(crate) fn encode(&self) -> AttributeWriter {
        let mut list = AttributeWriter::default();
        for expression in &self.0 {
            list.append(&AttributeWriter::default().nest(LIST_ELEMENT, &expression.encode()));
        }
        list
    }

    pub(crate) fn decode(list: Attributes<'_>) -> Self {
        let mut decoded = Self::default();
        for (_, expression) in list.iter() {
            decoded.0.push(Expression::decode(Attributes(expression)));
            decoded.shorten();
        }
        decoded
    }

    /// Replaces a load, a mask of whole bytes and a comparison by a shorter load, as `nft` writes it.
    fn shorten(&mut self) {
        let [
            ..,
            Expression::Payload { len, register: loaded, .. },
            Expression::Bitwise { mask, xor, register: masked },
            Expression::Compare { value, register: compared, .. },
        ] = self.0.as_mut_slice()
        else {
            return;
        };
        let kept = mask.iter().take_while(|byte| **byte == 0xff).count();
        let is_one_register = loaded == masked && masked == compared;
        if kept == 0 || value.len() < kept || !is_one_register {
            return;
        }
        // With anything else behind the bytes that are kept, the short form would match other packets.
        if !mask[kept..].iter().chain(&*xor).chain(&value[kept..]).all(|byte| *byte == 0) {
            return;
        }
        value.truncate(kept);
        *len = kept as u32;
        let at = self.0.len() - 2;
        self.0.remove(at);
    }
}
