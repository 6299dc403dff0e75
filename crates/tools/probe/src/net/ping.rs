//! ICMP echo: a peer's kernel answers it whether a daemon runs there or not.

use std::net::SocketAddr;
use std::time::Duration;

use flannel_common::random_bytes;
use flannel_link::{echo_request, read_echo_reply};

use super::socket;

/// `None`: it could not be tried, for want of `CAP_NET_RAW` or of a way.
pub(crate) async fn ping(from: SocketAddr, to: SocketAddr, timeout: Duration) -> Option<bool> {
    let socket = socket::pinging(from).ok()?;
    socket.connect(to).await.ok()?;
    let nonce = random_bytes().map(u64::from_ne_bytes).ok()?;
    socket.send(&echo(to.is_ipv6(), nonce)).await.ok()?;
    let answered = async {
        let mut bytes = [0; 256];
        while let Ok(length) = socket.recv(&mut bytes).await {
            if bytes.get(..length).is_some_and(|packet| is_answer(packet, to.is_ipv6(), nonce)) {
                return true;
            }
        }
        false
    };
    Some(tokio::time::timeout(timeout, answered).await.unwrap_or(false))
}

fn echo(is_v6: bool, nonce: u64) -> Vec<u8> {
    // Half of it as identifier and number, by which firewalls know what belongs together.
    let (identifier, number) = ((nonce >> 48) as u16, (nonce >> 32) as u16);
    echo_request(is_v6, identifier, number, &nonce.to_be_bytes())
}

fn is_answer(packet: &[u8], is_v6: bool, nonce: u64) -> bool {
    read_echo_reply(packet, is_v6).is_some_and(|(_, payload)| payload == nonce.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_another_ping_is_none() {
        let mut answer = vec![0; 20];
        (answer[0], answer[3]) = (0x45, 36);
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
}
