//! What comes to a test pod, from whoever can send there.

use flannel_connectivity::PORT;
use flannel_connectivity::testing::AskingPod;

use super::parts;

/// More packets than follow from one, ever.
const MOST_ANSWERS: usize = 8;

pub(crate) fn run(bytes: &[u8]) {
    let (mut one, mut two) = AskingPod::pair();
    let asked = one.tick();
    for (kind, part) in parts(bytes) {
        let packet = match kind % 4 {
            0 => part.to_vec(),
            1 => one.datagram((PORT, PORT), part),
            2 => {
                let (numbers, data) = part.split_at(part.len().min(8));
                let [seq, ack] = [numbers.get(..4), numbers.get(4..8)].map(|bytes| {
                    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
                    bytes.map_or(0, u32::from_be_bytes)
                });
                one.segment((PORT, PORT), (seq, ack), kind & 0x80 != 0, data)
            }
            // An answer to what it has asked, damaged.
            _ => {
                let question = asked.get(usize::from(kind >> 2) % asked.len().max(1));
                let answer = question.and_then(|question| two.receive(question));
                let mut answer = answer.unwrap_or_default();
                for (at, byte) in part.iter().enumerate() {
                    let len = answer.len().max(1);
                    answer.get_mut(at * 7 % len).into_iter().for_each(|it| *it ^= byte);
                }
                answer
            }
        };
        exchange(packet, &mut one, &mut two);
        let _ = one.tick();
    }
}

/// Hands a packet to the first, its answer to the second, and so on: that has an end, and nothing grows.
fn exchange(packet: Vec<u8>, one: &mut AskingPod, two: &mut AskingPod) {
    let mut packet = packet;
    for turn in 0..MOST_ANSWERS {
        let pod = if turn % 2 == 0 { &mut *one } else { &mut *two };
        let Some(answer) = pod.receive(&packet) else { return };
        assert!(answer.len() <= packet.len(), "more is answered than was sent");
        packet = answer;
    }
    panic!("two pods answer each other for ever");
}
