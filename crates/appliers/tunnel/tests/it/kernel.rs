//! The kernel's own segmentation as the reference: a large packet is handed to it by one device, and leaves it
//! by another that takes none.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use flannel_lab::Lab;

use crate::build::{Packet, Transport, pipeline};

const LIMIT: Duration = Duration::from_secs(10);

fn tun(name: &str, vnet: bool) -> File {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: an interface request of all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let vnet = if vnet { libc::IFF_VNET_HDR } else { 0 };
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | vnet) as libc::c_short;
    // SAFETY: the kernel reads and writes one interface request.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    file
}

#[test]
fn large_packets_leave_as_the_kernel_would_send_them() {
    let lab = Lab::builder().nodes(1).bare().start().unwrap();
    let node = lab.node(1);
    let (mut into, out) = node.in_netns(|| (tun("in0", true), tun("out0", false))).unwrap();
    for line in [
        "addr add 10.244.1.1/24 dev in0",
        "addr add fd00:1::1/64 dev in0 nodad",
        "link set in0 up",
        "addr add 10.99.0.1/32 dev out0",
        "link set out0 up",
        "route add 10.244.2.0/24 dev out0",
        "-6 route add fd00:2::/64 dev out0",
    ] {
        node.ip(line).unwrap();
    }
    let (send, received) = std::sync::mpsc::channel();
    let mut reader = out.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        while let Ok(len) = reader.read(&mut packet) {
            if send.send(packet[..len].to_vec()).is_err() {
                return;
            }
        }
    });
    let payload = |len: usize| (0..len).map(|at| (at * 11 + at / 256) as u8).collect::<Vec<u8>>();
    let tcp = |flags, options: usize| Transport::Tcp {
        ports: (4000, 80),
        sequence: u32::MAX - 5000,
        flags,
        options: [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2][..options].to_vec(),
    };
    for v6 in [false, true] {
        for (transport, len, segment) in [
            (tcp(0x10, 12), 45 * 1400, 1400),
            (tcp(0x19, 12), 30_001, 1400),
            (tcp(0x98, 0), 10_000, 536),
            (tcp(0xd8, 0), 5_000, 1000),
            (Transport::Udp { ports: (4000, 53) }, 9_999, 1200),
        ] {
            let large = Packet::out(v6, transport, payload(len));
            let read = large.large(segment);
            into.write_all(&read).unwrap();
            let ours = pipeline().send(&[&read]).datagrams();
            let begin = Instant::now();
            let mut theirs = Vec::new();
            while theirs.len() < ours.len() {
                let left = LIMIT.saturating_sub(begin.elapsed());
                let packet = received.recv_timeout(left).expect("as many packets as ours");
                // The device itself says a word now and then (router solicitation).
                if packet.len() > 40
                    && packet[if v6 { 6 } else { 9 }] == large.bytes()[if v6 { 6 } else { 9 }]
                {
                    theirs.push(packet);
                }
            }
            assert!(ours == theirs, "{:?} of {len} bytes in {segment}", large.transport);
        }
    }
}
