//! User of the peer of a connection from this machine, by the kernel's table of sockets. So a server without
//! authentication can still tell its operator from everybody else who can reach a port.

use std::net::{IpAddr, SocketAddr};

/// Whether the other end is a socket of root, or of the user that this process runs as, in this network namespace.
pub(crate) fn is_operator(peer: SocketAddr, local: SocketAddr) -> bool {
    let own = rustix::process::geteuid().as_raw();
    owner(peer, local).is_some_and(|user| user == 0 || user == own)
}

/// The user whose socket it is; `None` for one of another machine.
fn owner(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    // Of the calling thread's network namespace, which is that of the listening socket.
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    tables.iter().find_map(|table| {
        let text = std::fs::read_to_string(table).ok()?;
        find_owner(&text, peer, local)
    })
}

/// The owner in a table of sockets as `/proc/net/tcp` has it: the socket at the other end has its own address first.
fn find_owner(table: &str, peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (peer, local) = (forms(peer), forms(local));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (from, to) = (words.next()?, words.next()?);
        let is_it = peer.iter().zip(&local).any(|(peer, local)| peer == from && local == to);
        if is_it { words.nth(4)?.parse().ok() } else { None }
    })
}

/// Forms of an address in the table; IPv4 is also as it stands in a socket of IPv6.
fn forms(address: SocketAddr) -> Vec<String> {
    let port = address.port();
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => vec![form(&ip.octets(), port), form(&ip.to_ipv6_mapped().octets(), port)],
        IpAddr::V6(ip) => vec![form(&ip.octets(), port)],
    }
}

/// `0100007F:277D`: the bytes of the address as this machine reads words of them.
fn form(octets: &[u8], port: u16) -> String {
    let (words, _) = octets.as_chunks::<4>();
    let words = words.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    format!("{}:{port:04X}", words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_of_ones_own_is_an_operators_and_one_from_elsewhere_is_not() {
        for listen in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = tokio::net::TcpListener::bind(listen).await else { continue };
            let port = listener.local_addr().unwrap().port();
            let to = if listen.contains("::1") { "[::1]" } else { "127.0.0.1" };
            let client = tokio::net::TcpStream::connect(format!("{to}:{port}")).await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let local = stream.local_addr().unwrap();
            assert!(is_operator(peer, local), "{listen}");
            let other = SocketAddr::new(peer.ip(), peer.port() ^ 1);
            assert!(!is_operator(other, local), "nobody has this socket");
            drop(client);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_owner_is_the_one_in_the_line_of_the_other_end() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:277D 0100007F:B2C8 01 00000000:00000000 00:00000000 00000000     0        0 10 1\n   \
                     1: 0100007F:B2C8 0100007F:277D 01 00000000:00000000 00:00000000 00000000 65534        0 11 1\n";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(find_owner(table, at(0xb2c8), at(0x277d)), Some(65_534));
        assert_eq!(find_owner(table, at(0xb2c9), at(0x277d)), None);
    }
}
