//! Two devices that speak to each other over sockets of this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flannel_common::{PresharedKey, PrivateKey, PublicKey};
use flannel_entries::tunnel::{WireguardDevice, WireguardPeer};
use ipnet::IpNet;

use super::device::{HandedPeer, Wireguard};
use super::handshake::Keys;
use super::opening::OpenedPacket;
use super::peer::Peer;
use super::session::Session;
use crate::sys::udp::UdpSocket;

struct Side {
    device: Wireguard,
    key: PrivateKey,
    socket: StdSocket,
    /// What has come for the device.
    came: Vec<Vec<u8>>,
}

fn config(key: &PrivateKey) -> WireguardDevice {
    WireguardDevice { private_key: key.clone(), mtu: 1420 }
}

impl Side {
    fn new(byte: u8) -> Self {
        let socket = StdSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket that does not wait");
        let key = PrivateKey::from_random([byte; 32]);
        Self { device: serving(&key, &socket), key, socket, came: Vec::new() }
    }

    fn at(&self) -> SocketAddr {
        self.socket.local_addr().expect("an address")
    }

    /// How the other side knows it.
    fn as_peer(&self, subnet: &str) -> WireguardPeer {
        WireguardPeer {
            public_key: self.key.public(),
            preshared_key: Some(PresharedKey::from_bytes([3; 32])),
            endpoint: self.at(),
            keepalive: 0,
            allowed: vec![subnet.parse().expect("a subnet")],
        }
    }

    fn only_peer(&self) -> Arc<Peer> {
        let [(_, peer)] = self.device.peers().try_into().ok().expect("one peer");
        peer
    }

    fn send(&self, packet: &[u8]) {
        let peer = self.only_peer();
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

    /// Takes what there is. Whether there was something.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 2048];
        let mut any = false;
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            any = true;
            let mut opened = Vec::new();
            self.device.open(from, &mut buffer[..len], 0, &mut opened);
            for OpenedPacket { at, len, .. } in opened {
                let packet = &buffer[at..at + len];
                let end = packet.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                self.came.push(packet[..end].to_vec());
            }
        }
        any
    }
}

fn serving(key: &PrivateKey, socket: &StdSocket) -> Wireguard {
    let device = Wireguard::new(&config(key));
    let socket = socket.try_clone().expect("the same socket");
    device.set_sockets(vec![Arc::new(UdpSocket::from_fd(socket.into(), false))]);
    device
}

/// Until nobody has anything to say.
fn talk(one: &mut Side, two: &mut Side) {
    while one.receive() | two.receive() {}
}

fn pair() -> (Side, Side) {
    let (one, two) = (Side::new(1), Side::new(2));
    one.device.put(&[two.as_peer("10.244.2.0/24")], &[]);
    two.device.put(&[one.as_peer("10.244.1.0/24")], &[]);
    (one, two)
}

#[test]
fn what_is_sent_before_there_is_a_session_waits_for_it() {
    let (mut one, mut two) = pair();
    for packet in [b"first", b"again"] {
        one.send(packet);
    }
    talk(&mut one, &mut two);
    assert_eq!(two.came, [b"first", b"again"]);
    two.send(b"answer");
    talk(&mut one, &mut two);
    assert_eq!(one.came, [b"answer"]);
}

#[test]
fn both_may_begin_at_the_same_time() {
    let (mut one, mut two) = pair();
    one.send(b"from one");
    two.send(b"from two");
    talk(&mut one, &mut two);
    assert_eq!((one.came.len(), two.came.len()), (1, 1));
    one.send(b"more");
    two.send(b"more");
    talk(&mut one, &mut two);
    assert_eq!((one.came.len(), two.came.len()), (2, 2));
}

#[test]
fn who_has_another_preshared_key_or_is_unknown_gets_nothing() {
    let (mut one, mut two) = pair();
    let mut other = one.as_peer("10.244.1.0/24");
    other.preshared_key = None;
    two.device.put(&[other], &[]);
    one.send(b"first");
    talk(&mut one, &mut two);
    two.device.remove(&two.device.others(&[]));
    one.device.configure(&config(&one.key));
    one.send(b"second");
    talk(&mut one, &mut two);
    assert!(two.came.is_empty());
}

#[test]
fn one_that_was_started_anew_asks_for_a_session_when_it_is_spoken_to() {
    let (mut one, mut two) = pair();
    one.send(b"first");
    talk(&mut one, &mut two);
    two.device = serving(&two.key, &two.socket);
    two.device.put(&[one.as_peer("10.244.1.0/24")], &[]);
    one.send(b"lost");
    talk(&mut one, &mut two);
    one.send(b"second");
    talk(&mut one, &mut two);
    assert_eq!(two.came, [&b"first"[..], b"second"]);
}

#[test]
fn sessions_that_are_handed_over_go_on() {
    let (mut one, mut two) = pair();
    one.send(b"first");
    talk(&mut one, &mut two);
    let handed = serde_json::to_string(&two.device.hand_over()).expect("it is written");
    two.device = serving(&two.key, &two.socket);
    two.device.adopt(serde_json::from_str(&handed).expect("it is read"));
    one.send(b"second");
    talk(&mut one, &mut two);
    two.send(b"answer");
    talk(&mut one, &mut two);
    assert_eq!(
        (two.came, one.came),
        (vec![b"first".to_vec(), b"second".to_vec()], vec![b"answer".to_vec()])
    );
}

#[test]
fn a_device_whose_sessions_were_handed_over_and_that_serves_again_agrees_upon_new_ones() {
    let (mut one, mut two) = pair();
    one.send(b"first");
    talk(&mut one, &mut two);
    let keys_of = |peers: &[HandedPeer]| -> Vec<serde_json::Value> {
        let peers = serde_json::to_value(peers).expect("it is written");
        peers[0].as_object().into_iter().flatten().map(|(_, it)| it["sending"].clone()).collect()
    };
    // Handed to a process that died before it took anything.
    let handed = keys_of(&two.device.hand_over());
    assert!(two.only_peer().session(two.device.now()).is_none());
    // Of what both sides send to each other now nothing is by keys that have left.
    one.send(b"by a session that is gone");
    two.send(b"waits");
    talk(&mut one, &mut two);
    one.send(b"second");
    talk(&mut one, &mut two);
    assert_eq!(
        (&one.came[..], &two.came[..]),
        (&[b"waits".to_vec()][..], &[b"first".to_vec(), b"second".to_vec()][..])
    );
    let again = keys_of(&two.device.hand_over());
    let keys = |of: &[serde_json::Value]| of.iter().filter(|it| it.is_array()).count();
    assert!(keys(&handed) > 0 && keys(&again) > 0);
    assert!(handed.iter().filter(|it| it.is_array()).all(|key| !again.contains(key)));
}

/// A peer with a session, as another process would hand it over.
fn handed_over(config: WireguardPeer) -> HandedPeer {
    let number = config.public_key.0.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let keys = Keys { sending: [1; 32], receiving: [2; 32] };
    let session = Session::new(number, number, true, keys, Duration::ZERO);
    let current = Some(session.hand_over(Duration::ZERO));
    let endpoint = config.endpoint;
    HandedPeer { config, endpoint, latest: [0; 12], current, previous: None, next: None }
}

/// Printed, not asserted: what is asserted is that all are there.
#[test]
fn adopting_ten_times_as_many_peers_takes_ten_times_as_long() {
    let key = PrivateKey::from_random([1; 32]);
    let adopt = |count: u32| {
        let handed = (0..count).map(|number| {
            let mut public = [7; 32];
            public[..4].copy_from_slice(&number.to_be_bytes());
            handed_over(WireguardPeer {
                public_key: PublicKey(public),
                preshared_key: None,
                endpoint: (Ipv4Addr::from(0x0a00_0000 + number), 51820).into(),
                keepalive: 0,
                allowed: vec![IpNet::from(IpAddr::from(Ipv4Addr::from(0x0af4_0000 + number)))],
            })
        });
        let (handed, device): (Vec<_>, _) = (handed.collect(), Wireguard::new(&config(&key)));
        let begin = Instant::now();
        device.adopt(handed);
        let took = begin.elapsed();
        assert_eq!(device.peers().len(), count as usize);
        assert!(device.peers().iter().all(|(_, peer)| device.session_age(peer).is_some()));
        took
    };
    adopt(100);
    let (few, many) = (adopt(1_000), adopt(10_000));
    println!(
        "1,000 peers: {few:?}, 10,000: {many:?}, {:.1} times",
        many.as_secs_f64() / few.as_secs_f64()
    );
}

#[test]
fn another_key_loses_nothing_of_what_is_under_way() {
    let (mut one, mut two) = pair();
    one.send(b"first");
    two.send(b"one");
    talk(&mut one, &mut two);
    // The device first. What is sent to it by the old key is read; what it sends waits.
    let old = two.key.public();
    two.key = PrivateKey::from_random([9; 32]);
    two.device.configure(&config(&two.key));
    one.send(b"second");
    two.send(b"two");
    talk(&mut one, &mut two);
    assert_eq!((one.came.len(), two.came.len()), (1, 2));
    // Then the peers, who ask for a session at once. Handshakes have timestamps, which are not that fine.
    std::thread::sleep(std::time::Duration::from_millis(50));
    for peer in one.device.put(&[two.as_peer("10.244.2.0/24")], &[old]) {
        one.device.initiate(&peer);
    }
    one.device.remove(&[old]);
    one.send(b"third");
    talk(&mut one, &mut two);
    assert_eq!(one.came, [b"one", b"two"]);
    assert_eq!(two.came, [&b"first"[..], b"second", b"third"]);
    // And if it comes to nothing, the old key is good again.
    assert!(one.device.peer(old).is_none());
}

#[test]
fn a_peer_is_found_where_it_was_announced_last_until_it_is_removed() {
    let device = Wireguard::new(&config(&PrivateKey::from_random([1; 32])));
    let [one, two] = [Side::new(2), Side::new(3)].map(|side| side.as_peer("10.1.1.0/24"));
    let found = |at| device.peer_at(at).map(|peer| peer.public_key);
    device.put(std::slice::from_ref(&one), &[]);
    let moved = WireguardPeer { endpoint: ([192, 0, 2, 9], 51820).into(), ..one.clone() };
    device.put(std::slice::from_ref(&moved), &[]);
    assert_eq!((found(one.endpoint), found(moved.endpoint)), (None, Some(one.public_key)));
    // Another key of the same node takes its place.
    let successor = WireguardPeer { endpoint: moved.endpoint, ..two };
    device.put(std::slice::from_ref(&successor), &[one.public_key]);
    device.remove(&[one.public_key]);
    assert_eq!(found(moved.endpoint), Some(successor.public_key));
    device.remove(&[successor.public_key]);
    assert_eq!(found(moved.endpoint), None);
}
