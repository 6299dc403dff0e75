//! What test pods say to each other, in a datagram or in a segment: a question with a number and bytes that follow
//! from it, and an answer of the same size that says from which address the question seemed to come.

use std::net::{IpAddr, Ipv6Addr};

const ASK: &[u8; 4] = b"FLT?";
const ANSWER: &[u8; 4] = b"FLT!";
/// Word, number, address.
pub(crate) const SMALLEST: usize = 4 + 8 + 16;

pub(crate) fn question(number: u64, size: usize) -> Vec<u8> {
    message(ASK, number, [0; 16], size)
}

/// What there is to say to a question that seems to come from there; `None` if it is not a question.
pub(crate) fn answer(question: &[u8], from: IpAddr) -> Option<Vec<u8>> {
    let number = read(question, ASK)?;
    let from = match from {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Some(message(ANSWER, number, from.octets(), question.len()))
}

/// From which address the question seemed to come, if this is its answer, whole and unchanged.
pub(crate) fn seen(answer: &[u8], number: u64, size: usize) -> Option<IpAddr> {
    let is_it = read(answer, ANSWER) == Some(number) && answer.len() == size;
    let octets: [u8; 16] = answer.get(12..SMALLEST)?.try_into().ok()?;
    is_it.then(|| Ipv6Addr::from(octets).to_canonical())
}

/// The number, if the bytes are those that follow from it.
fn read(bytes: &[u8], word: &[u8; 4]) -> Option<u64> {
    let number = u64::from_be_bytes(bytes.strip_prefix(word)?.get(..8)?.try_into().ok()?);
    let rest = bytes.get(SMALLEST..)?;
    (rest == filling(number, rest.len())).then_some(number)
}

fn message(word: &[u8; 4], number: u64, address: [u8; 16], size: usize) -> Vec<u8> {
    let rest = filling(number, size.saturating_sub(SMALLEST));
    [&word[..], &number.to_be_bytes(), &address, &rest].concat()
}

fn filling(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_where_its_question_seemed_to_come_from() {
        for from in ["10.5.1.254", "fd00::1"] {
            let from: IpAddr = from.parse().expect("an address");
            for size in [SMALLEST, 64, 1422] {
                let asked = question(7, size);
                assert_eq!(asked.len(), size);
                let said = answer(&asked, from).expect("an answer");
                assert_eq!(seen(&said, 7, size), Some(from));
                assert_eq!(seen(&said, 8, size), None, "it is another's");
                assert_eq!(seen(&said[..size - 1], 7, size), None, "it was cut off");
            }
        }
    }

    #[test]
    fn a_single_bit_that_has_changed_is_noticed() {
        let from: IpAddr = "10.5.1.254".parse().expect("an address");
        let asked = question(7, 100);
        for at in (0..12).chain(SMALLEST..100) {
            let mut damaged = asked.clone();
            damaged[at] ^= 4;
            let said = answer(&damaged, from);
            assert!(said.is_none_or(|said| seen(&said, 7, 100).is_none()), "at {at}");
        }
        assert_eq!(answer(b"GET / HTTP/1.1", from), None);
    }
}
