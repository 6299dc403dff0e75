//! WireGuard nodes that are spoken to by hand, for fuzzers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;

use flannel_common::PrivateKey;
use flannel_entries::tunnel::{WireguardDevice, WireguardPeer};

use super::device::Wireguard;
use crate::sys::udp::UdpSocket;

/// A node whose messages arrive when somebody carries them: [`Self::mail`] from its socket, [`Self::hear`] into it.
pub struct WireguardNode {
    device: Wireguard,
    key: PrivateKey,
    socket: StdSocket,
}

impl WireguardNode {
    pub fn new(key: [u8; 32]) -> io::Result<Self> {
        let socket = StdSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let key = PrivateKey::from_random(key);
        let device = Wireguard::new(&WireguardDevice { private_key: key.clone(), mtu: 1420 });
        let sender = UdpSocket::from_fd(socket.try_clone()?.into(), false);
        device.set_sockets(vec![Arc::new(sender)]);
        Ok(Self { device, key, socket })
    }

    /// Makes each the other's only peer.
    pub fn pair() -> io::Result<[Self; 2]> {
        let [one, two] = [Self::new([1; 32])?, Self::new([2; 32])?];
        one.device.put(&[two.as_peer()?], &[]);
        two.device.put(&[one.as_peer()?], &[]);
        Ok([one, two])
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a packet to its peer, or begins a handshake for it.
    pub fn send(&self, packet: &[u8]) {
        for (_, peer) in self.device.peers() {
            match peer.session(self.device.now()) {
                Some(session) => {
                    let message = session.message(packet, self.device.padded(packet.len()));
                    self.device.transmit(peer.endpoint(), &message);
                }
                None => {
                    peer.waiting.lock().push(packet.to_vec());
                    self.device.initiate(&peer);
                }
            }
        }
    }

    /// Begins a handshake though there is a session.
    pub fn initiate(&self) {
        for (_, peer) in self.device.peers() {
            self.device.initiate(&peer);
        }
    }

    /// Takes what has been sent to its address.
    pub fn mail(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2048];
        let received = std::iter::from_fn(|| {
            self.socket.recv_from(&mut buffer).ok().map(|(len, _)| buffer[..len].to_vec())
        });
        received.collect()
    }

    /// Handles one message, and returns the packets that were in it, with their padding.
    pub fn hear(&self, from: SocketAddr, message: &[u8]) -> Vec<Vec<u8>> {
        let (mut message, mut opened) = (message.to_vec(), Vec::new());
        self.device.open(from, &mut message, 0, &mut opened);
        opened.iter().map(|packet| message[packet.at..packet.at + packet.len].to_vec()).collect()
    }

    /// What a next process would get.
    pub fn hand_over(&self) -> String {
        serde_json::to_string(&self.device.hand_over()).unwrap_or_default()
    }

    /// Goes on with what an earlier process has handed over. Whether that could be read.
    pub fn adopt(&self, handed: &str) -> bool {
        let handed = serde_json::from_str(handed);
        handed.map(|handed| self.device.adopt(handed)).is_ok()
    }

    fn as_peer(&self) -> io::Result<WireguardPeer> {
        Ok(WireguardPeer {
            public_key: self.key.public(),
            preshared_key: None,
            endpoint: self.address()?,
            keepalive: 0,
            allowed: Vec::new(),
        })
    }
}
