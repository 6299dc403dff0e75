//! ICMP echo: a peer's kernel answers it whether a daemon runs there or not.

use std::net::SocketAddr;
use std::time::Duration;

use super::{random_nonce, socket};

const ECHO_V4: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);
const LENGTH: usize = 16;

/// `None`: it could not be tried, for want of `CAP_NET_RAW` or of a way.
pub(crate) async fn ping(from: SocketAddr, to: SocketAddr, patience: Duration) -> Option<bool> {
    let socket = socket::pinging(from).ok()?;
    socket.connect(to).await.ok()?;
    let nonce = random_nonce().ok()?;
    socket.send(&echo(to.is_ipv6(), nonce)).await.ok()?;
    let answered = async {
        let mut bytes = [0; 256];
        loop {
            let Ok(length) = socket.recv(&mut bytes).await else { return false };
            if bytes.get(..length).is_some_and(|packet| is_answer(packet, to.is_ipv6(), nonce)) {
                return true;
            }
        }
    };
    Some(tokio::time::timeout(patience, answered).await.unwrap_or(false))
}

fn echo(is_v6: bool, nonce: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    (bytes[0], _) = if is_v6 { ECHO_V6 } else { ECHO_V4 };
    // Half of it as identifier and number, by which firewalls know what belongs together.
    bytes[4..8].copy_from_slice(&nonce.to_be_bytes()[..4]);
    bytes[8..16].copy_from_slice(&nonce.to_be_bytes());
    if !is_v6 {
        // With IPv6 the kernel sees to it.
        let sum = checksum(&bytes);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// With IPv4 a raw socket is given the IP header too.
fn is_answer(packet: &[u8], is_v6: bool, nonce: u64) -> bool {
    let start =
        if is_v6 { 0 } else { packet.first().map_or(0, |first| usize::from(first & 15) * 4) };
    let Some(message) = packet.get(start..) else { return false };
    let (_, kind) = if is_v6 { ECHO_V6 } else { ECHO_V4 };
    message.first() == Some(&kind) && message.get(8..16) == Some(&nonce.to_be_bytes()[..])
}

pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or_default();
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_another_ping_is_none() {
        let mut answer = vec![0x45; 1];
        answer.resize(20, 0);
        let mut message = echo(false, 77);
        message[0] = 0;
        answer.extend(message);
        assert!(is_answer(&answer, false, 77));
        assert!(!is_answer(&answer, false, 78));
        assert!(!is_answer(&echo(true, 77), true, 77), "it is a question");
        for length in 0..answer.len() {
            assert!(!is_answer(&answer[..length], false, 77));
        }
    }

    #[test]
    fn the_sum_over_a_message_with_its_checksum_is_zero() {
        assert_eq!(checksum(&echo(false, 0x0123_4567_89ab_cdef)), 0);
    }
}
