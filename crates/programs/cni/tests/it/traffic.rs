//! Do packets flow? Servers and clients in namespaces, which tell each other who they see.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::node::Netns;

/// For an answer that must come, on a machine that may be busy.
const WAIT_LIMIT: Duration = Duration::from_secs(15);
/// For one that must not.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// A TCP server in a namespace that tells each client the address it comes from.
pub(crate) fn serve_tcp(netns: &Netns, address: SocketAddr) {
    let listener = netns.inside(move || TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let Ok(peer) = stream.peer_addr() else { continue };
            let _ = stream.write_all(peer.ip().to_string().as_bytes());
        }
    });
}

/// The same over UDP.
pub(crate) fn serve_udp(netns: &Netns, address: SocketAddr) {
    let socket = netns.inside(move || UdpSocket::bind(address).unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(peer.ip().to_string().as_bytes(), peer);
        }
    });
}

/// Whom the server sees. `None`: nobody answered.
pub(crate) fn ask_tcp(netns: Option<&Netns>, address: SocketAddr) -> Option<IpAddr> {
    // An IPv6 address that has just come may not be used yet, and a busy machine takes its time: once more.
    ask_for(netns, address, WAIT_LIMIT).or_else(|| ask_for(netns, address, WAIT_LIMIT))
}

pub(crate) fn answers_tcp(netns: Option<&Netns>, address: SocketAddr) -> bool {
    ask_for(netns, address, IMPATIENCE).is_some()
}

fn ask_for(netns: Option<&Netns>, address: SocketAddr, patience: Duration) -> Option<IpAddr> {
    let ask = move || {
        let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
        stream.set_read_timeout(Some(patience)).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.parse().ok()
    };
    match netns {
        Some(netns) => netns.inside(ask),
        None => ask(),
    }
}

pub(crate) fn ask_udp(netns: Option<&Netns>, address: SocketAddr) -> Option<IpAddr> {
    let ask = move || {
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.set_read_timeout(Some(WAIT_LIMIT)).ok()?;
        socket.connect(address).ok()?;
        socket.send(b"who am I?").ok()?;
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).ok()?;
        std::str::from_utf8(&buffer[..len]).ok()?.parse().ok()
    };
    match netns {
        Some(netns) => netns.inside(ask),
        None => ask(),
    }
}
