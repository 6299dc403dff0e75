//! IPsec in the kernel: which packets are to travel in a tunnel (policies), and the tunnels that there are
//! (states). To bytes and back; pure.
//!
//! Everything is a structure of C in the machine's order, with addresses in network order and room for the
//! longer kind. Templates of policies follow as an attribute.

use std::net::IpAddr;

use flannel_common::xfrm::{Direction, EspTunnel, Policy};
use ipnet::IpNet;

use crate::{AttributeWriter, Attributes, Message, RawRequest, ne32_at};

/// The group that hears when a packet needs a tunnel that is not there.
pub const ACQUIRE_GROUP: u32 = 1;
/// The group that hears of changes of policies.
pub const POLICY_GROUP: u32 = 4;

const NEW_STATE: u16 = 0x10;
const DELETE_STATE: u16 = 0x11;
const GET_STATE: u16 = 0x12;
const NEW_POLICY: u16 = 0x13;
const DELETE_POLICY: u16 = 0x14;
const GET_POLICY: u16 = 0x15;
const ACQUIRE: u16 = 0x17;
/// Adds it, or takes the place of the one that is there.
const UPDATE_POLICY: u16 = 0x19;
const GET_DEFAULT: u16 = 0x28;

const TEMPLATES: u16 = 5;
const MARK: u16 = 21;
const INTERFACE_ID: u16 = 31;

pub const ESP: u8 = 50;
const MODE_TUNNEL: u8 = 1;

const SELECTOR_LEN: usize = 56;
const LIFETIME_LEN: usize = 64;
const CURRENT_LEN: usize = 32;
const POLICY_LEN: usize = 168;
const POLICY_ID_LEN: usize = 64;
/// One byte for each direction.
const DEFAULTS_LEN: usize = 3;
const TEMPLATE_LEN: usize = 64;
const STATE_LEN: usize = 224;
/// Where the fields of a policy begin that follow its lifetimes.
const POLICY_FIELDS: usize = SELECTOR_LEN + LIFETIME_LEN + CURRENT_LEN;
/// A number for "without end".
const FOREVER: u64 = u64::MAX;

/// In the order of their numbers.
const DIRECTIONS: [Direction; 3] = [Direction::In, Direction::Out, Direction::Forward];

/// A policy as the kernel has it. Packets that it is for are let through, in a tunnel or not, or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPolicy {
    pub direction: Direction,
    pub src: IpNet,
    pub dst: IpNet,
    /// Of IP; 0 for all.
    pub protocol: u8,
    /// Nothing else narrows it down: ports, a device, a mark.
    pub whole: bool,
    pub blocks: bool,
    /// Its tunnel, if it asks for exactly one, of ESP.
    pub tunnel: Option<EspTunnel>,
    /// Nothing narrows it down, no other goes before it, and nothing but its tunnel is asked for.
    pub plain: bool,
}

/// A tunnel's one direction, with its keys; these are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub spi: u32,
    pub reqid: u32,
    pub protocol: u8,
}

/// Adds a policy, or puts it in the place of the one between the same networks.
pub fn put_policy(policy: &Policy) -> RawRequest {
    let Policy { direction, src, dst, tunnel } = policy;
    let mut body = selector(*src, *dst);
    // Limits of bytes and packets, none of which it has; then those of time, where 0 is none.
    for _ in 0..4 {
        body.extend_from_slice(&FOREVER.to_ne_bytes());
    }
    body.resize(POLICY_FIELDS, 0);
    // Priority and index are the kernel's own: 0.
    body.extend_from_slice(&[0; 8]);
    // The packets it is for are let through; no flags; shared by all.
    body.extend_from_slice(&[*direction as u8, 0, 0, 0]);
    body.resize(POLICY_LEN, 0);

    let mut template = address(tunnel.dst).to_vec();
    template.extend_from_slice(&[0; 4]);
    template.extend_from_slice(&[ESP, 0, 0, 0]);
    template.extend_from_slice(&family(tunnel.src).to_ne_bytes());
    template.extend_from_slice(&[0; 2]);
    template.extend_from_slice(&address(tunnel.src));
    template.extend_from_slice(&tunnel.reqid.to_ne_bytes());
    template.extend_from_slice(&[MODE_TUNNEL, 0, 0, 0]);
    // Of algorithms, any.
    template.extend_from_slice(&[0xff; 12]);
    debug_assert_eq!(template.len(), TEMPLATE_LEN);
    let attributes = AttributeWriter::default().bytes(TEMPLATES, &template);
    RawRequest::new(UPDATE_POLICY, body, attributes)
}

pub fn delete_policy(direction: Direction, src: IpNet, dst: IpNet) -> RawRequest {
    let mut body = selector(src, dst);
    body.extend_from_slice(&[0; 4]);
    body.push(direction as u8);
    body.resize(POLICY_ID_LEN, 0);
    RawRequest::new(DELETE_POLICY, body, AttributeWriter::default())
}

pub fn list_policies() -> RawRequest {
    RawRequest::new(GET_POLICY, [], AttributeWriter::default())
}

pub fn list_states() -> RawRequest {
    RawRequest::new(GET_STATE, [], AttributeWriter::default())
}

pub fn delete_state(state: &State) -> RawRequest {
    let mut body = address(state.dst).to_vec();
    body.extend_from_slice(&state.spi.to_be_bytes());
    body.extend_from_slice(&family(state.dst).to_ne_bytes());
    body.extend_from_slice(&[state.protocol, 0]);
    let src = AttributeWriter::default().bytes(SOURCE_ADDRESS, &address(state.src));
    RawRequest::new(DELETE_STATE, body, src)
}

const SOURCE_ADDRESS: u16 = 13;

/// A policy between networks, as an answer or an announcement shows it. `None`: it is none, one of a single
/// socket, or cut short.
pub fn read_policy(message: Message<'_>) -> Option<ObservedPolicy> {
    if ![NEW_POLICY, UPDATE_POLICY].contains(&message.kind) {
        return None;
    }
    let body = message.payload.get(..POLICY_LEN)?;
    let (src, dst, anything) = read_selector(body)?;
    let fields = &body[POLICY_FIELDS..];
    let [direction, action, ..] = fields[8..] else { return None };
    let direction = *DIRECTIONS.get(usize::from(direction))?;
    let attributes = Attributes(message.payload.get(POLICY_LEN..)?);
    let templates = attributes.get(TEMPLATES).unwrap_or_default();
    let tunnel = (templates.len() == TEMPLATE_LEN).then(|| read_template(templates)).flatten();
    let priority = ne32_at(fields, 0)?;
    let marked = attributes.get(MARK).is_some_and(|mark| mark.iter().any(|byte| *byte != 0));
    let of_interface = attributes.get(INTERFACE_ID).is_some();
    let mut ports_and_device = body[32..40].iter().chain(&body[48..56]);
    Some(ObservedPolicy {
        direction,
        src,
        dst,
        protocol: body[44],
        whole: !marked && ports_and_device.all(|byte| *byte == 0),
        blocks: action == BLOCK,
        tunnel,
        plain: anything && action == 0 && priority == 0 && !marked && !of_interface,
    })
}

/// Asks what becomes of packets that no policy is for.
pub fn get_defaults() -> RawRequest {
    RawRequest::new(GET_DEFAULT, [0; DEFAULTS_LEN], AttributeWriter::default())
}

/// Directions in which a packet that no policy is for is dropped.
pub fn read_blocked_by_default(message: Message<'_>) -> Vec<Direction> {
    let defaults = message.payload.get(..DEFAULTS_LEN).filter(|_| message.kind == GET_DEFAULT);
    let ordered = [Direction::In, Direction::Forward, Direction::Out];
    let both = ordered.into_iter().zip(defaults.unwrap_or_default());
    both.filter(|(_, action)| **action == BLOCK).map(|(direction, _)| direction).collect()
}

const BLOCK: u8 = 1;

/// `None`: it is not a state, or it is cut short.
pub fn read_state(message: Message<'_>) -> Option<State> {
    let body = message.payload.get(..STATE_LEN).filter(|_| message.kind == NEW_STATE)?;
    let family = u16::from_ne_bytes([body[212], body[213]]);
    Some(State {
        dst: read_address(&body[56..72], family)?,
        spi: u32::from_be_bytes(*body[72..].first_chunk()?),
        protocol: body[76],
        src: read_address(&body[80..96], family)?,
        reqid: ne32_at(body, 208)?,
    })
}

/// Whether the kernel says that a packet needs a tunnel that is not there.
pub fn is_acquire(message: Message<'_>) -> bool {
    message.kind == ACQUIRE
}

fn read_template(template: &[u8]) -> Option<EspTunnel> {
    let (protocol, mode) = (*template.get(20)?, *template.get(48)?);
    let family = u16::from_ne_bytes(*template.get(24..)?.first_chunk()?);
    let tunnel = EspTunnel {
        dst: read_address(template.get(..16)?, family)?,
        src: read_address(template.get(28..44)?, family)?,
        reqid: ne32_at(template, 44)?,
    };
    (protocol == ESP && mode == MODE_TUNNEL).then_some(tunnel)
}

/// Packets between two networks, whatever they hold.
fn selector(src: IpNet, dst: IpNet) -> Vec<u8> {
    let mut bytes = address(dst.network()).to_vec();
    bytes.extend_from_slice(&address(src.network()));
    // Ports, and which bits of them count.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&family(dst.addr()).to_ne_bytes());
    bytes.extend_from_slice(&[dst.prefix_len(), src.prefix_len()]);
    // Protocol, device, user.
    bytes.resize(SELECTOR_LEN, 0);
    bytes
}

/// Source, destination, and whether nothing else is selected by.
fn read_selector(bytes: &[u8]) -> Option<(IpNet, IpNet, bool)> {
    let bytes = bytes.get(..SELECTOR_LEN)?;
    let family = u16::from_ne_bytes([bytes[40], bytes[41]]);
    let net = |at: usize, len: u8| {
        let address = read_address(&bytes[at..at + 16], family)?;
        IpNet::new(address, len).ok()
    };
    let anything = bytes[32..40].iter().chain(&bytes[44..56]).all(|byte| *byte == 0);
    Some((net(16, bytes[43])?, net(0, bytes[42])?, anything))
}

fn family(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u16,
        IpAddr::V6(_) => libc::AF_INET6 as u16,
    }
}

fn address(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    bytes
}

fn read_address(bytes: &[u8], family: u16) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        libc::AF_INET6 => bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Writable as _, messages};

    fn policy(direction: Direction) -> Policy {
        Policy {
            direction,
            src: "10.244.1.0/24".parse().expect("a network"),
            dst: "10.244.2.0/23".parse().expect("a network"),
            tunnel: EspTunnel {
                src: [192, 168, 100, 1].into(),
                dst: [192, 168, 100, 2].into(),
                reqid: 11,
            },
        }
    }

    fn bytes(request: &RawRequest) -> Vec<u8> {
        let mut bytes = Vec::new();
        crate::message::append(&mut bytes, request.kind(), 0, 1, |b| request.write(b));
        bytes
    }

    fn read(bytes: &[u8]) -> Option<ObservedPolicy> {
        read_policy(messages(bytes).next().expect("one").expect("whole"))
    }

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for direction in DIRECTIONS {
            let wanted = policy(direction);
            let written = bytes(&put_policy(&wanted));
            assert_eq!(written.len(), 16 + POLICY_LEN + 4 + TEMPLATE_LEN);
            let Policy { direction, src, dst, tunnel } = wanted;
            let tunnel = Some(tunnel);
            let (protocol, whole, blocks, plain) = (0, true, false, true);
            let found =
                ObservedPolicy { direction, src, dst, protocol, whole, blocks, tunnel, plain };
            assert_eq!(read(&written), Some(found));
        }
    }

    #[test]
    fn whatever_narrows_a_policy_down_or_makes_it_another_is_seen() {
        let written = bytes(&put_policy(&policy(Direction::Out)));
        let altered = |at: usize, value: u8| {
            let mut bytes = written.clone();
            bytes[16 + at] = value;
            read(&bytes).expect("a policy")
        };
        for (what, at) in [
            ("a port", 33),
            ("a protocol", 44),
            ("a device", 48),
            ("a user", 52),
            ("a priority", POLICY_FIELDS),
            ("to block", POLICY_FIELDS + 9),
        ] {
            assert!(!altered(at, 1).plain, "{what}");
        }
        let template = POLICY_LEN + 4;
        assert_eq!(altered(template + 20, 51).tunnel, None, "another protocol");
        assert_eq!(altered(template + 48, 0).tunnel, None, "another mode");
        let other = altered(template + 44, 12).tunnel.expect("a tunnel");
        assert_ne!(other.reqid, policy(Direction::Out).tunnel.reqid);
    }

    #[test]
    fn what_deletes_names_the_same_networks() {
        let Policy { direction, src, dst, .. } = policy(Direction::Forward);
        let deletion = delete_policy(direction, src, dst);
        assert_eq!(deletion.fixed.len(), POLICY_ID_LEN);
        assert_eq!(deletion.fixed[..SELECTOR_LEN], selector(src, dst)[..]);
        assert_eq!(deletion.fixed[60], 2);
        let state = State {
            src: [192, 168, 100, 1].into(),
            dst: [192, 168, 100, 2].into(),
            spi: 0xc2ca_a409,
            reqid: 11,
            protocol: ESP,
        };
        let deletion = delete_state(&state);
        assert_eq!(deletion.fixed.len(), 24);
        assert_eq!(deletion.fixed[16..20], [0xc2, 0xca, 0xa4, 0x09]);
        assert_eq!(deletion.fixed[22], ESP);
    }

    proptest! {
        #[test]
        fn nonsense_is_read_without_a_panic(kind in 0x10u16..0x20, payload: Vec<u8>) {
            let message = Message { kind, flags: 0, sequence: 0, port: 0, payload: &payload };
            let _ = (read_policy(message), read_state(message));
        }

        #[test]
        fn a_policy_of_nonsense_is_read_without_a_panic(tail: Vec<u8>, len in 0usize..300) {
            let mut written = bytes(&put_policy(&policy(Direction::In)))[16..].to_vec();
            written.truncate(len);
            written.extend(tail);
            for kind in [NEW_POLICY, NEW_STATE] {
                let message = Message { kind, flags: 0, sequence: 0, port: 0, payload: &written };
                let _ = (read_policy(message), read_state(message));
            }
        }
    }
}
