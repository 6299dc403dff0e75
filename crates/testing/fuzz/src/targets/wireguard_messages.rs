//! Messages on a WireGuard port: of strangers, altered or repeated on their way, and what a process hands over to the
//! next. Nothing that is not a peer's own gets in, and nothing keeps the peer out.

use flannel_tunnel::testing::WireguardNode;

/// Enough for everything to follow everything else.
const PARTS: usize = 8;

pub(crate) fn run(bytes: &[u8]) {
    let [one, two] = WireguardNode::pair().expect("two sockets");
    let from = one.address().expect("an address");
    one.send(b"first");
    // After a thousand handshakes in one process cookies are asked for first, and a second try comes too late here.
    if !came(&exchange(&one, &two), b"first") {
        return;
    }
    let mut rest = bytes;
    for _ in 0..PARTS {
        let [kind, length, following @ ..] = rest else { break };
        let (part, next) = following.split_at(usize::from(*length).min(following.len()));
        rest = next;
        match kind % 5 {
            0 => assert!(two.hear(from, part).is_empty(), "of a stranger"),
            1 | 2 => {
                if kind % 5 == 1 { one.send(b"altered") } else { one.initiate() }
                for message in two.mail() {
                    let altered = altered(&message, part);
                    let opened = two.hear(from, &altered);
                    assert!(altered == message || opened.is_empty(), "altered on its way");
                }
            }
            3 => {
                one.send(b"twice");
                for message in two.mail() {
                    two.hear(from, &message);
                    assert!(two.hear(from, &message).is_empty(), "repeated");
                }
            }
            _ => {
                let handed = two.hand_over();
                let strange = String::from_utf8_lossy(&altered(handed.as_bytes(), part)).into_owned();
                let other = WireguardNode::new([3; 32]).expect("a socket");
                if other.adopt(&strange) {
                    assert!(other.adopt(&other.hand_over()), "what is handed over can be read");
                }
                assert!(two.adopt(&handed));
            }
        }
        exchange(&one, &two);
    }
    one.send(b"last");
    let packets = exchange(&one, &two);
    assert!(came(&packets, b"last"), "the peer is kept out: {packets:?}");
}

/// Carries messages until nobody has anything to say. Returns the packets that the second got.
fn exchange(one: &WireguardNode, two: &WireguardNode) -> Vec<Vec<u8>> {
    let [from_one, from_two] = [one, two].map(|node| node.address().expect("an address"));
    let mut packets = Vec::new();
    loop {
        let (to_one, to_two) = (one.mail(), two.mail());
        if to_one.is_empty() && to_two.is_empty() {
            return packets;
        }
        to_one.iter().for_each(|message| drop(one.hear(from_two, message)));
        packets.extend(to_two.iter().flat_map(|message| two.hear(from_one, message)));
    }
}

fn came(packets: &[Vec<u8>], packet: &[u8]) -> bool {
    packets.iter().any(|came| came.starts_with(packet))
}

fn altered(message: &[u8], by: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    for (byte, change) in message.iter_mut().zip(by) {
        *byte ^= change;
    }
    message
}
