//! The places that a packet and its answer pass, in order, and at which of them they were last seen. Pure.

use flannel_probe::marked::{Direction, Packet, PacketSize, Place, Sighting};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum At {
    Sender,
    Receiver,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Passage {
    pub(crate) at: At,
    pub(crate) place: Place,
    pub(crate) packet: Packet,
    pub(crate) direction: Direction,
    /// What was seen there; `None` where nobody looked.
    pub(crate) seen: Option<Seen>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Seen {
    pub(crate) count: u32,
    pub(crate) device: Option<String>,
    /// From where to where a tunnel carries it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carried: Option<(std::net::IpAddr, std::net::IpAddr)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Far {
    SameNode,
    /// Of another node; whether flannel has a device of its own, and whether the wire shows what is in the tunnel.
    Peer {
        has_tunnel: bool,
        in_the_clear: bool,
    },
    World,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Pod,
    Host,
}

pub(crate) fn expected(sender: Sender, far: Far) -> Vec<(At, Place, Packet, Direction)> {
    use Direction::{In, Out};
    let leaves: &[(Place, Direction)] = match (sender, far) {
        (Sender::Host, Far::SameNode) => &[(Place::Bridge, Out), (Place::Veth, Out)],
        (Sender::Pod, Far::SameNode) => &[(Place::Veth, In), (Place::Veth, Out)],
        (Sender::Host, _) => &[],
        (Sender::Pod, _) => &[(Place::Veth, In), (Place::Bridge, In)],
    };
    let carried: Vec<Place> = match far {
        Far::SameNode => Vec::new(),
        Far::World => vec![Place::Underlay],
        Far::Peer { has_tunnel, in_the_clear } => {
            let tunnel = has_tunnel.then_some(Place::Tunnel);
            tunnel.into_iter().chain(in_the_clear.then_some(Place::Underlay)).collect()
        }
    };
    let mut there: Vec<(At, Place, Direction)> = Vec::new();
    there.extend(leaves.iter().map(|(place, direction)| (At::Sender, *place, *direction)));
    there.extend(carried.iter().map(|place| (At::Sender, *place, Out)));
    if matches!(far, Far::Peer { .. }) {
        there.extend(carried.iter().rev().map(|place| (At::Receiver, *place, In)));
        there.extend([(At::Receiver, Place::Bridge, Out), (At::Receiver, Place::Veth, Out)]);
    }
    let turned = |direction| match direction {
        In => Out,
        Out => In,
    };
    let request =
        there.iter().map(|(at, place, direction)| (*at, *place, Packet::Request, *direction));
    let answer = there
        .iter()
        .rev()
        .map(|(at, place, direction)| (*at, *place, Packet::Answer, turned(*direction)));
    request.chain(answer).collect()
}

/// What was seen at each of them, on either node; `None` if nobody has looked there.
pub(crate) fn passages(
    expected: &[(At, Place, Packet, Direction)],
    sender: Option<&[Sighting]>,
    receiver: Option<&[Sighting]>,
    size: PacketSize,
) -> Vec<Passage> {
    let seen = |at: At, place: Place, packet: Packet, direction: Direction| {
        let sightings = match at {
            At::Sender => sender?,
            At::Receiver => receiver?,
        };
        let of = |one: &&Sighting| {
            (one.place, one.packet, one.direction, one.size) == (place, packet, direction, size)
        };
        let mut all = sightings.iter().filter(of);
        let count = all.clone().map(|one| one.count).sum();
        let first = all.next();
        let device = first.map(|one| one.device.clone());
        Some(Seen { count, device, carried: first.and_then(|one| one.carried) })
    };
    let passage = |&(at, place, packet, direction): &(At, Place, Packet, Direction)| Passage {
        at,
        place,
        packet,
        direction,
        seen: seen(at, place, packet, direction),
    };
    expected.iter().map(passage).collect()
}

/// Where it was last seen, and where it should have been seen next: nowhere if it came back.
pub(crate) fn lost(passages: &[Passage]) -> (Option<&Passage>, Option<&Passage>) {
    let is_seen = |one: &Passage| one.seen.as_ref().is_some_and(|seen| seen.count > 0);
    // What was seen later has passed all before it, whether somebody has looked there or not.
    let last = passages.iter().rposition(is_seen);
    let next = match last {
        Some(last) => passages.get(last + 1),
        None => passages.iter().find(|one| one.seen.is_some()),
    };
    (last.and_then(|last| passages.get(last)), next)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Loss {
    /// Number of the passage that they did not come to.
    pub(crate) passage: usize,
    pub(crate) lost: u32,
    pub(crate) is_total: bool,
}

/// One that is lost may be chance.
const BEYOND_CHANCE: u32 = 2;

pub(crate) fn loss(passages: &[Passage], sent: u32) -> Option<Loss> {
    let count = |one: &Passage| one.seen.as_ref().map(|seen| seen.count);
    let mut before = sent;
    let mut most: Option<Loss> = None;
    for (number, passage) in passages.iter().enumerate() {
        if count(passage).is_none() {
            continue;
        }
        // What was seen later has passed here, whether it was noticed or not.
        let came =
            passages[number..].iter().filter_map(count).max().unwrap_or_default().min(before);
        let lost = before - came;
        if lost >= BEYOND_CHANCE && most.is_none_or(|most| lost > most.lost) {
            most = Some(Loss { passage: number, lost, is_total: came == 0 });
        }
        before = came;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Far = Far::Peer { has_tunnel: true, in_the_clear: true };

    fn sighting(place: Place, packet: Packet, direction: Direction) -> Sighting {
        let (device, size) = ("dev".to_owned(), PacketSize::Small);
        Sighting { device, place, packet, direction, count: 3, size, carried: None }
    }

    #[test]
    fn a_packet_passes_eight_devices_there_and_eight_back() {
        let all = expected(Sender::Pod, PEER);
        assert_eq!(all.len(), 16);
        assert_eq!(all[7], (At::Receiver, Place::Veth, Packet::Request, Direction::Out));
        assert_eq!(all[8], (At::Receiver, Place::Veth, Packet::Answer, Direction::In));
        assert_eq!(all[15], (At::Sender, Place::Veth, Packet::Answer, Direction::Out));
        assert_eq!(expected(Sender::Pod, Far::SameNode).len(), 4);
        let encrypted = Far::Peer { has_tunnel: true, in_the_clear: false };
        assert!(
            expected(Sender::Pod, encrypted).iter().all(|(_, place, ..)| *place != Place::Underlay)
        );
        assert_eq!(
            expected(Sender::Host, PEER)[0],
            (At::Sender, Place::Tunnel, Packet::Request, Direction::Out)
        );
    }

    #[test]
    fn it_was_lost_behind_the_last_device_that_has_seen_it() {
        let all = expected(Sender::Pod, PEER);
        let here = [
            sighting(Place::Veth, Packet::Request, Direction::In),
            sighting(Place::Bridge, Packet::Request, Direction::In),
        ];
        let seen = passages(&all, Some(&here), Some(&[]), PacketSize::Small);
        let (last, next) = lost(&seen);
        assert_eq!(last.map(|one| one.place), Some(Place::Bridge));
        assert_eq!(next.map(|one| (one.at, one.place)), Some((At::Sender, Place::Tunnel)));
        // An answer has passed all that comes before it.
        let back = [sighting(Place::Underlay, Packet::Answer, Direction::In)];
        let seen = passages(&all, Some(&back), None, PacketSize::Small);
        let (_, next) = lost(&seen);
        assert_eq!(
            next.map(|one| (one.at, one.place, one.packet)),
            Some((At::Sender, Place::Tunnel, Packet::Answer))
        );
        assert_eq!(lost(&passages(&all, Some(&[]), Some(&[]), PacketSize::Small)).0, None);
        let home = [sighting(Place::Veth, Packet::Answer, Direction::Out)];
        assert_eq!(
            lost(&passages(&all, Some(&home), None, PacketSize::Small)).1,
            None,
            "it came back"
        );
        // Who looks at the receiver's devices alone says nothing of the sender's.
        let seen = passages(&all, None, Some(&[]), PacketSize::Small);
        assert_eq!(
            lost(&seen).1.map(|one| (one.at, one.place)),
            Some((At::Receiver, Place::Underlay))
        );
    }

    #[test]
    fn packets_of_a_burst_are_lost_where_most_of_them_are_seen_no_more() {
        let counts = |counts: &[Option<u32>]| -> Vec<Passage> {
            let passage = |count: &Option<u32>| Passage {
                at: At::Sender,
                place: Place::Veth,
                packet: Packet::Request,
                direction: Direction::In,
                seen: count.map(|count| Seen { count, ..Seen::default() }),
            };
            counts.iter().map(passage).collect()
        };
        let of = |all: &[Option<u32>]| {
            loss(&counts(all), 100).map(|loss| (loss.passage, loss.lost, loss.is_total))
        };
        assert_eq!(of(&[Some(100), Some(100)]), None);
        assert_eq!(of(&[Some(100), Some(99)]), None, "chance");
        assert_eq!(of(&[Some(100), None, Some(90)]), Some((2, 10, false)));
        assert_eq!(of(&[Some(40), Some(100)]), None, "they were there later");
        assert_eq!(of(&[Some(97), Some(60), Some(0)]), Some((2, 60, true)));
        assert_eq!(of(&[Some(0)]), Some((0, 100, true)));
    }
}
