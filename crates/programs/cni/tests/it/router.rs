//! A pod that says it is a router. The host must not believe it, however its bridge came about: whoever
//! sets the host's default route reads the host's traffic (CVE-2020-10749).

use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde_json::json;

use crate::node::{Node, Pod, V4, Whose, run};
use crate::traced::Traced;

/// To all nodes of a link.
const EVERYBODY: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// A bridge does not take such frames for itself: they are received by the port.
const PAST_THE_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];

/// "I am a router, for half an hour", in a frame for `to`.
fn advertisement(to: [u8; 6]) -> Vec<u8> {
    let source: Ipv6Addr = "fe80::bad".parse().unwrap();
    let destination: Ipv6Addr = "ff02::1".parse().unwrap();
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut pseudo = [source.octets(), destination.octets()].concat();
    pseudo.extend([0, 0, 0, message.len() as u8, 0, 0, 0, 58]);
    pseudo.extend(&message);
    let mut sum: u32 =
        pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut frame = to.to_vec();
    frame.extend([0x02, 0, 0, 0, 0x0b, 0xad, 0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, message.len() as u8, 58, 255]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(message);
    frame
}

fn send_from(pod: &Pod, frame: &[u8]) {
    pod.netns.inside(|| {
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::empty(), None)
                .unwrap();
        let index = rustix::net::netdevice::name_to_index(&socket, "eth0").unwrap();
        // SAFETY: all zero is an address; pointers and lengths are those of the address and the frame.
        let sent = unsafe {
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = libc::AF_PACKET as u16;
            to.sll_protocol = 0xdd86;
            to.sll_ifindex = index as i32;
            to.sll_halen = 6;
            to.sll_addr[..6].copy_from_slice(&frame[..6]);
            libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        assert_eq!(sent, frame.len() as isize);
    });
}

/// What the host has learnt of routers within a while.
fn learnt(pod: &Pod, patience: Duration) -> String {
    let deadline = Instant::now() + patience;
    loop {
        for to in [EVERYBODY, PAST_THE_BRIDGE] {
            send_from(pod, &advertisement(to));
        }
        std::thread::sleep(Duration::from_millis(20));
        let routes = run("ip", "-6 route show default");
        if !routes.is_empty() || Instant::now() > deadline {
            return routes;
        }
    }
}

const A_WHILE: Duration = Duration::from_millis(600);

#[test]
fn a_pod_that_says_it_is_a_router_is_not_believed_on_a_bridge_that_was_made() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    assert_eq!(learnt(&pod, A_WHILE), "");
}

#[test]
fn a_pod_that_says_it_is_a_router_is_not_believed_on_a_bridge_that_was_found() {
    let node = Node::new(V4);
    run("ip", "link add cni0 type bridge");
    run("ip", "link set cni0 up");
    let pod = node.attached("pod-1");
    assert_eq!(learnt(&pod, A_WHILE), "");
}

#[test]
fn what_a_pod_has_made_the_host_believe_ends_with_the_next_add() {
    let node = Node::new(V4);
    let pod = node.attached("pod-1");
    run("sysctl", "-q -w net.ipv6.conf.cni0.accept_ra=1");
    assert!(learnt(&pod, Duration::from_secs(10)).contains("proto ra"), "it can be done");
    let _next = node.attached("pod-2");
    assert_eq!(run("ip", "-6 route show default"), "");
    assert_eq!(learnt(&pod, A_WHILE), "");
}

/// A bridge is half made when its maker is killed.
#[test]
fn a_pod_that_says_it_is_a_router_is_not_believed_wherever_the_first_add_was_killed() {
    let node = Node::new(V4);
    let mut half_made = 0;
    for stops in 1.. {
        let _ = std::process::Command::new("ip").args(["link", "del", "cni0"]).output();
        let mut pod = Pod::new("pod-1");
        let request = node.request(Whose::Ours, "flannel", "ADD", &pod);
        let traced = Traced::start(&request, &node.flannel_conf());
        let ended = !(0..2 * stops - 1).all(|_| traced.go_on());
        if ended {
            break;
        }
        traced.kill();
        if run("ip", "-o link").contains("cni0") {
            half_made += 1;
            node.add(Whose::Ours, &mut pod);
            let accepted = run("sysctl", "-n net.ipv6.conf.cni0.accept_ra");
            assert_eq!(accepted.trim(), "0", "killed after {stops} system calls");
            let port = pod.result["interfaces"][1]["name"].as_str().unwrap();
            let accepted = run("sysctl", &format!("-n net.ipv6.conf.{port}.accept_ra"));
            assert_eq!(accepted.trim(), "0", "killed after {stops} system calls");
        }
        node.del(Whose::Ours, &pod);
        if half_made > 12 {
            break;
        }
    }
    assert!(half_made > 5, "{half_made}");
}

#[test]
fn every_add_finds_the_bridge_as_it_must_be_or_makes_it_so() {
    let mut node = Node::new(&format!("{V4}{}", crate::node::V6));
    node.delegate = json!({"isDefaultGateway": true, "promiscMode": true});
    let mut pods = vec![node.attached("pod-0")];
    for (at, (program, vandalism)) in [
        ("ip", "link set cni0 down"),
        ("ip", "link set cni0 promisc off"),
        ("ip", "addr flush dev cni0"),
        ("sysctl", "-q -w net.ipv6.conf.cni0.disable_ipv6=1"),
        ("sysctl", "-q -w net.ipv6.conf.cni0.accept_ra=2"),
        ("sysctl", "-q -w net.ipv4.ip_forward=0"),
        ("sysctl", "-q -w net.ipv6.conf.all.forwarding=0"),
        ("sysctl", "-q -w net.ipv4.conf.cni0.forwarding=0"),
        ("sysctl", "-q -w net.ipv6.conf.cni0.forwarding=0"),
    ]
    .into_iter()
    .enumerate()
    {
        run(program, vandalism);
        let pod = node.attached(&format!("pod-{}", at + 1));
        let link = run("ip", "-d -o link show cni0");
        assert!(link.contains(",UP") && link.contains("promiscuity 1"), "{vandalism}: {link}");
        let addresses = run("ip", "-o addr show dev cni0");
        for wanted in ["10.244.57.1/24", "fd00:244:0:55::1/64"] {
            assert!(addresses.contains(wanted), "{vandalism}: {addresses}");
        }
        for (setting, wanted) in [
            ("ipv6.conf.cni0.accept_ra", "0"),
            ("ipv4.ip_forward", "1"),
            ("ipv6.conf.all.forwarding", "1"),
            ("ipv4.conf.cni0.forwarding", "1"),
            ("ipv6.conf.cni0.forwarding", "1"),
        ] {
            let found = run("sysctl", &format!("-n net.{setting}"));
            assert_eq!(found.trim(), wanted, "{vandalism}: {setting}");
        }
        pods.push(pod);
    }
}
