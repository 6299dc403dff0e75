//! What nodes say to each other on the probe port: one datagram each way.
//!
//! ```text
//! every message     0  "FLNP"       4  version (1)   5  kind   6  flags (2)   8  nonce (8)
//! ask      kind 1  16  cookie (8), 0 for none   24  address of the asker's subnet (16; IPv4 mapped)
//!                  40  prefix length   41  zero   42  largest packet that passes, if larger ones vanish (2)
//!                  44..48 zero   then zeroes up to the size that is tried
//! challenge kind 2 16  cookie (8)   24..32 zero
//! answer   kind 3  16  standing   17  zero   18  heard (2, ms)   20  bytes received (2)
//!                  22  hash of the machine id as in its lease (8), 0 for none   30..32 zero
//! ```
//!
//! Numbers are big-endian. A later version may give a meaning to what is zero here and keeps the rest, so
//! whoever knows an earlier one understands what it knows of it.
//!
//! An ask is never shorter than an answer, so nobody gets more out of a node than was sent to it.

use std::net::{IpAddr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use ipnet::IpNet;

/// Port at which nodes answer unless they are told another: in no list of well-known ports, beside vxlan's.
pub const PORT: u16 = 8475;
pub const VERSION: u8 = 1;
/// The shortest ask.
pub const ASK: usize = 48;
/// Every challenge and every answer.
pub const REPLY: usize = 32;

const MAGIC: [u8; 4] = *b"FLNP";
const KIND_ASK: u8 = 1;
const KIND_CHALLENGE: u8 = 2;
const KIND_ANSWER: u8 = 3;
/// The ask bears no UDP checksum, and neither is its answer to.
const PLAIN: u16 = 1;
const ABOUT_V6: u16 = 2;
const NEVER_HEARD: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Told back by who answers: nobody who does not see the ask can guess it.
    pub nonce: u64,
    /// The cookie that the asked node gave out; 0 if there is none yet.
    pub cookie: u64,
    /// From the asking node's lease: how the other node knows it.
    pub subnet: IpNet,
    /// About which family in the tunnel, whichever it is asked in.
    pub about_v6: bool,
    pub plain: bool,
    /// The largest packet that comes from the asker to the asked node, where larger ones are known to vanish.
    pub fits: Option<NonZeroU16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Ask again with this cookie, which only he can do who receives at the address that he sends from.
    Challenge {
        nonce: u64,
        cookie: u64,
    },
    Answer(Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub nonce: u64,
    pub standing: Standing,
    /// Time since an ask of this asker came through the overlay, in the family asked about and with a checksum.
    pub heard: Option<Duration>,
    /// How many bytes of the ask have arrived.
    pub size: u16,
    /// Who answers: the hash of its machine id, as its lease has it.
    pub machine: Option<NonZeroU64>,
}

/// What the node that answers has done about the lease of the one that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does not know of it.
    Unknown = 0,
    /// It knows of it, and nothing leads there.
    Unusable = 1,
    /// Something that leads there is missing.
    Incomplete = 2,
    Programmed = 3,
}

impl Standing {
    /// What the node that answers does, in the words of the one that asks.
    pub fn words(self) -> &'static str {
        match self {
            Self::Unknown => "does not know this node's lease",
            Self::Unusable => "cannot use this node's lease",
            Self::Incomplete => "lacks entries that lead to this node",
            Self::Programmed => "has all entries that lead to this node",
        }
    }
}

impl Ask {
    /// A datagram of this many bytes, or as short as it can be.
    pub fn encode(&self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size.max(ASK)];
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.plain, PLAIN) | flag(self.about_v6, ABOUT_V6);
        head(&mut bytes, KIND_ASK, flags, self.nonce);
        bytes[16..24].copy_from_slice(&self.cookie.to_be_bytes());
        let address = match self.subnet.addr() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        bytes[24..40].copy_from_slice(&address.octets());
        bytes[40] = self.subnet.prefix_len();
        let fits = self.fits.map_or(0, NonZeroU16::get);
        bytes[42..44].copy_from_slice(&fits.to_be_bytes());
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, flags, nonce) = read_head(bytes)?;
        if kind != KIND_ASK || bytes.len() < ASK {
            return None;
        }
        let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(24..40)?).ok()?);
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        let subnet = IpNet::new(address, *bytes.get(40)?).ok()?.trunc();
        let (plain, about_v6) = (flags & PLAIN != 0, flags & ABOUT_V6 != 0);
        let fits = NonZeroU16::new(short(bytes, 42)?);
        Some(Self { nonce, cookie: number(bytes, 16)?, subnet, about_v6, plain, fits })
    }
}

impl Reply {
    pub fn encode(&self) -> [u8; REPLY] {
        let mut bytes = [0; REPLY];
        match self {
            Self::Challenge { nonce, cookie } => {
                head(&mut bytes, KIND_CHALLENGE, 0, *nonce);
                bytes[16..24].copy_from_slice(&cookie.to_be_bytes());
            }
            Self::Answer(answer) => {
                head(&mut bytes, KIND_ANSWER, 0, answer.nonce);
                bytes[16] = answer.standing as u8;
                let heard = answer.heard.map_or(NEVER_HEARD, |heard| {
                    u16::try_from(heard.as_millis()).unwrap_or(NEVER_HEARD - 1).min(NEVER_HEARD - 1)
                });
                bytes[18..20].copy_from_slice(&heard.to_be_bytes());
                bytes[20..22].copy_from_slice(&answer.size.to_be_bytes());
                let machine = answer.machine.map_or(0, NonZeroU64::get);
                bytes[22..30].copy_from_slice(&machine.to_be_bytes());
            }
        }
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, _, nonce) = read_head(bytes)?;
        if bytes.len() < REPLY {
            return None;
        }
        match kind {
            KIND_CHALLENGE => Some(Self::Challenge { nonce, cookie: number(bytes, 16)? }),
            KIND_ANSWER => {
                let lacking = [Standing::Unknown, Standing::Unusable, Standing::Incomplete];
                let standing = lacking.get(usize::from(*bytes.get(16)?));
                let standing = standing.copied().unwrap_or(Standing::Programmed);
                let heard = short(bytes, 18)?;
                let heard = (heard != NEVER_HEARD).then(|| Duration::from_millis(u64::from(heard)));
                let machine = NonZeroU64::new(number(bytes, 22)?);
                let size = short(bytes, 20)?;
                Some(Self::Answer(Answer { nonce, standing, heard, size, machine }))
            }
            _ => None,
        }
    }

    pub fn nonce(&self) -> u64 {
        match self {
            Self::Challenge { nonce, .. } | Self::Answer(Answer { nonce, .. }) => *nonce,
        }
    }
}

fn head(bytes: &mut [u8], kind: u8, flags: u16, nonce: u64) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = kind;
    bytes[6..8].copy_from_slice(&flags.to_be_bytes());
    bytes[8..16].copy_from_slice(&nonce.to_be_bytes());
}

fn read_head(bytes: &[u8]) -> Option<(u8, u16, u64)> {
    let (magic, version) = (bytes.get(..4)?, *bytes.get(4)?);
    let known = magic == MAGIC && version >= VERSION;
    known.then_some((*bytes.get(5)?, short(bytes, 6)?, number(bytes, 8)?))
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subnets() -> impl Strategy<Value = IpNet> {
        let v4 =
            (any::<[u8; 4]>(), 0..=32u8).prop_map(|(ip, len)| IpNet::new(IpAddr::from(ip), len));
        let v6 =
            (any::<[u8; 16]>(), 0..=128u8).prop_map(|(ip, len)| IpNet::new(IpAddr::from(ip), len));
        prop_oneof![v4, v6].prop_filter_map("a mapped IPv4 address is one", |net| {
            let net = net.ok()?.trunc();
            let IpNet::V6(v6) = net else { return Some(net) };
            v6.addr().to_ipv4_mapped().is_none().then_some(net)
        })
    }

    proptest! {
        #[test]
        fn what_is_asked_is_read_as_it_was_written(
            nonce: u64, cookie: u64, subnet in subnets(), about_v6: bool, plain: bool,
            fits: u16, size in 0..2_000usize,
        ) {
            let fits = NonZeroU16::new(fits);
            let ask = Ask { nonce, cookie, subnet, about_v6, plain, fits };
            let bytes = ask.encode(size);
            prop_assert_eq!(bytes.len(), size.max(ASK));
            prop_assert_eq!(Ask::read(&bytes), Some(ask));
            prop_assert_eq!(Reply::read(&bytes), None);
        }

        #[test]
        fn what_is_answered_is_read_as_it_was_written(
            nonce: u64, cookie: u64, heard in proptest::option::of(0..65_534u64), size: u16,
        ) {
            let heard = heard.map(Duration::from_millis);
            for standing in
                [Standing::Unknown, Standing::Unusable, Standing::Incomplete, Standing::Programmed]
            {
                let machine = NonZeroU64::new(u64::from(size));
                let answer = Reply::Answer(Answer { nonce, standing, heard, size, machine });
                prop_assert_eq!(Reply::read(&answer.encode()), Some(answer));
            }
            let challenge = Reply::Challenge { nonce, cookie };
            prop_assert_eq!(Reply::read(&challenge.encode()), Some(challenge));
            prop_assert_eq!(Ask::read(&challenge.encode()), None);
        }

        #[test]
        fn nothing_that_comes_makes_a_reader_fall(bytes: Vec<u8>) {
            let _ = (Ask::read(&bytes), Reply::read(&bytes));
        }
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over_and_what_is_cut_short_is_nothing() {
        let ask = Ask {
            nonce: 1,
            cookie: 2,
            subnet: "10.244.1.0/24".parse().expect("a net"),
            about_v6: true,
            plain: true,
            fits: None,
        };
        let mut bytes = ask.encode(ASK);
        bytes[4] = VERSION + 1;
        bytes[47] = 7;
        assert_eq!(Ask::read(&bytes), Some(ask));
        for length in 0..ASK {
            assert_eq!(Ask::read(&bytes[..length]), None, "{length}");
        }
        bytes[4] = 0;
        assert_eq!(Ask::read(&bytes), None, "there was no version 0");
    }

    #[test]
    fn what_was_heard_long_ago_is_not_taken_for_never() {
        let answer = |heard| {
            let (standing, machine) = (Standing::Programmed, None);
            Reply::Answer(Answer { nonce: 0, standing, heard, size: 0, machine })
        };
        let Some(Reply::Answer(read)) =
            Reply::read(&answer(Some(Duration::from_secs(86_400))).encode())
        else {
            panic!("an answer")
        };
        assert!(read.heard > Some(Duration::from_secs(60)));
    }

    #[test]
    fn nobody_is_sent_more_than_he_has_sent() {
        const { assert!(REPLY <= ASK) };
    }
}
