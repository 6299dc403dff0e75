//! What a rule asks of a packet and does with it, as the small machine in the kernel wants it: load
//! something into a register, compare the register, act.
//!
//! `codec` encodes every expression as the program `nft` does it, and decodes it into the same value, so rules are compared
//! by `==`, whoever has written them. `expressions` puts them together by what they mean.

mod codec;
mod expressions;

pub use expressions::{Expressions, loaded_network};

const REGISTER_VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;

/// Property of a packet that is not in its bytes (`NFT_META_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MetaKey {
    Length = 0,
    EtherType = 1,
    Mark = 3,
    InputLink = 4,
    OutputLink = 5,
    InputName = 6,
    OutputName = 7,
    NetworkProtocol = 15,
    TransportProtocol = 16,
    InputBridge = 17,
    OutputBridge = 18,
}

/// Header that a payload's offset counts from (`NFT_PAYLOAD_*_HEADER`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Header {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// Property of a packet's connection (`NFT_CT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ConnectionKey {
    State = 0,
    Mark = 3,
    ProtocolSource = 11,
    SourceIpv4 = 19,
    DestinationIpv4 = 20,
    SourceIpv6 = 21,
    DestinationIpv6 = 22,
}

/// Direction of a connection that a key is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    Original = 0,
    Reply = 1,
}

/// How a register is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Comparison {
    Equal = 0,
    NotEqual = 1,
    Less = 2,
    LessOrEqual = 3,
    Greater = 4,
    GreaterOrEqual = 5,
}

/// Address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Source,
    Destination,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    /// The next rule decides.
    Continue,
    Jump(String),
    Goto(String),
}

impl Verdict {
    pub fn jump(chain: &str) -> Self {
        Self::Jump(chain.to_owned())
    }

    pub fn goto(chain: &str) -> Self {
        Self::Goto(chain.to_owned())
    }

    /// The chain that packets go on to.
    pub fn target(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept | Self::Drop | Self::Return | Self::Continue => None,
        }
    }
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Meta {
        key: MetaKey,
        register: u32,
    },
    /// Makes the register the packet's mark.
    SetMark {
        register: u32,
    },
    Payload {
        header: Header,
        offset: u32,
        len: u32,
        register: u32,
    },
    Connection {
        key: ConnectionKey,
        direction: Option<Direction>,
        register: u32,
    },
    /// Loads the type of the destination address: 2 is one of the host's own.
    DestinationType {
        register: u32,
    },
    Bitwise {
        register: u32,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    Compare {
        register: u32,
        how: Comparison,
        value: Vec<u8>,
    },
    /// Goes on if the register is an element of the set or, inverted, if it is not. In a verdict map, the
    /// element's verdict is the rule's.
    Lookup {
        set: String,
        register: u32,
        inverted: bool,
        verdict: bool,
    },
    Immediate {
        register: u32,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    Dnat {
        family: u32,
    },
    Masquerade {
        fully_random: bool,
    },
    Counter {
        packets: u64,
        bytes: u64,
    },
    NamedCounter(String),
    /// Hands the packet's connection to a flowtable.
    FlowOffload(String),
    /// A match or a target of iptables.
    Extension {
        name: String,
        info: Vec<u8>,
    },
    // Those that follow are read, and never written here.
    /// Turns the bytes of each number of `size` bytes around.
    ByteOrder {
        from: u32,
        to: u32,
        len: u32,
        size: u32,
    },
    Range {
        register: u32,
        inverted: bool,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// Writes the register into the packet.
    PayloadWrite {
        header: Header,
        offset: u32,
        len: u32,
        register: u32,
    },
    /// `address`: the register that holds the new sender.
    SourceNat {
        address: Option<u32>,
    },
    Redirect,
    Reject,
    /// Hands the packet to a program.
    Queue,
    /// Sends the packet out by another device.
    ForwardTo,
    /// Keeps the kernel from tracking the packet's connection.
    NoTrack,
    Log,
    /// An expression that is not decoded: its name.
    Other(String),
}
