//! Packets between pods, to the gateway, through mapped ports and out into the world.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;

use crate::node::{Netns, Node, Pod, V4, V6, Whose, run};
use crate::traffic::{answers_tcp, ask_tcp, ask_udp, serve_tcp, serve_udp};

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    (ip, port).into()
}

fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { [0; 4].into() } else { [0; 16].into() }
}

/// Somebody outside, one hop away from the node.
fn world() -> Netns {
    let world = Netns::new();
    run("ip", "link add up0 type veth peer name far0");
    run("ip", &format!("link set far0 netns {}", world.path()));
    for (address, option) in [("192.0.2.1/24", ""), ("2001:db8::1/64", "nodad")] {
        run("ip", &format!("addr add {address} dev up0 {option}"));
        world.ip(&format!(
            "addr add {} dev far0 {option}",
            address.replacen("::1", "::2", 1).replacen(".1/", ".2/", 1)
        ));
    }
    run("ip", "link set up0 up");
    world.ip("link set far0 up");
    world
}

const HOST4: [u8; 4] = [192, 0, 2, 1];
const WORLD4: [u8; 4] = [192, 0, 2, 2];

#[test]
fn pods_reach_each_other_and_their_gateway_in_both_families() {
    let node = Node::new(&format!("{V4}{V6}"));
    let (a, b) = (node.attached("pod-a"), node.attached("pod-b"));
    for (from, to) in a.addresses().into_iter().zip(b.addresses()) {
        serve_tcp(&b.netns, at(to, 80));
        assert_eq!(ask_tcp(Some(&a.netns), at(to, 80)), Some(from), "pod to pod, unchanged");
        assert_eq!(
            ask_tcp(None, at(to, 80)).map(|ip| ip.is_ipv4()),
            Some(to.is_ipv4()),
            "node to pod"
        );
    }
    let gateways: [IpAddr; 2] =
        ["10.244.57.1".parse().unwrap(), "fd00:244:0:55::1".parse().unwrap()];
    let here = Netns::current();
    for (gateway, pod) in gateways.into_iter().zip(a.addresses()) {
        serve_tcp(&here, at(gateway, 81));
        assert_eq!(ask_tcp(Some(&a.netns), at(gateway, 81)), Some(pod), "pod to gateway");
    }
}

#[test]
fn a_mapped_port_is_reached_from_everywhere() {
    for whose in [Whose::Ours, Whose::Go] {
        std::thread::spawn(move || reach_mapped_port(whose)).join().unwrap();
    }
}

fn reach_mapped_port(whose: Whose) {
    let node = Node::new(&format!("{V4}{V6}"));
    let world = world();
    let mut pod = Pod::with_ports(
        "pod-1",
        json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8053, "containerPort": 53, "protocol": "udp"},
            {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
        ]),
    );
    node.add(whose, &mut pod);
    let neighbour = {
        let mut neighbour = Pod::new("pod-2");
        node.add(whose, &mut neighbour);
        neighbour
    };
    for ip in pod.addresses() {
        serve_tcp(&pod.netns, at(any(ip), 80).v6_only(ip));
    }
    serve_udp(&pod.netns, at([0; 4].into(), 53));
    let host = IpAddr::from(HOST4);
    let context = format!("{whose:?}");

    assert_eq!(
        ask_tcp(Some(&world), at(host, 8080)),
        Some(WORLD4.into()),
        "{context}: from outside, unchanged"
    );
    assert_eq!(
        ask_udp(Some(&world), at(host, 8053)),
        Some(WORLD4.into()),
        "{context}: UDP from outside"
    );
    let host6: IpAddr = "2001:db8::1".parse().unwrap();
    let world6: IpAddr = "2001:db8::2".parse().unwrap();
    assert_eq!(
        ask_tcp(Some(&world), at(host6, 8080)),
        Some(world6),
        "{context}: IPv6 from outside"
    );
    assert_eq!(
        ask_tcp(Some(&world), at(host, 8081)),
        Some(WORLD4.into()),
        "{context}: one address of the host"
    );

    let gateway: IpAddr = "10.244.57.1".parse().unwrap();
    assert_eq!(
        ask_tcp(None, at([127, 0, 0, 1].into(), 8080)),
        Some(gateway),
        "{context}: from localhost"
    );
    assert!(ask_tcp(None, at(host, 8080)).is_some(), "{context}: from the host's own address");
    assert!(
        !answers_tcp(None, at([127, 0, 0, 1].into(), 8081)),
        "{context}: not at other addresses"
    );
    assert_eq!(ask_tcp(Some(&pod.netns), at(host, 8080)), Some(gateway), "{context}: hairpin");
    assert_eq!(
        ask_tcp(Some(&neighbour.netns), at(host, 8080)),
        Some(gateway),
        "{context}: from the same bridge"
    );
    assert_eq!(
        ask_tcp(Some(&neighbour.netns), at(pod.ip(), 80)),
        Some(neighbour.ip()),
        "{context}: past the mapping, unchanged"
    );

    node.del(whose, &pod);
    assert!(!answers_tcp(Some(&world), at(host, 8080)), "{context}: no more");
    node.del(whose, &neighbour);
    node.assert_clean();
}

#[test]
fn of_two_pods_that_claim_a_port_the_newer_has_it_until_it_goes() {
    let node = Node::new(V4);
    let world = world();
    let mapping = || json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let mut pods = [Pod::with_ports("pod-1", mapping()), Pod::with_ports("pod-2", mapping())];
    let port = at(HOST4.into(), 8080);
    node.add(Whose::Ours, &mut pods[0]);
    serve_tcp(&pods[0].netns, at(pods[0].ip(), 80));
    assert!(ask_tcp(Some(&world), port).is_some());
    node.add(Whose::Ours, &mut pods[1]);
    assert!(!answers_tcp(Some(&world), port), "the newer one does not serve yet");
    serve_tcp(&pods[1].netns, at(pods[1].ip(), 80));
    assert!(ask_tcp(Some(&world), port).is_some());
    node.del(Whose::Ours, &pods[1]);
    assert!(ask_tcp(Some(&world), port).is_some(), "the older one has it again");
    node.del(Whose::Ours, &pods[0]);
    node.assert_clean();
}

#[test]
fn udp_flows_from_before_a_mapping_follow_it() {
    let node = Node::new(V4);
    let world = world();
    let port = at(HOST4.into(), 8053);
    let mapping = || json!([{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}]);
    let mut first = Pod::with_ports("pod-1", mapping());
    node.add(Whose::Ours, &mut first);
    serve_udp(&first.netns, at(first.ip(), 53));
    let client = world.inside(|| {
        let client = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        client.connect(port).unwrap();
        client
    });
    let ask = || client.send(b"?").and_then(|_| client.recv(&mut [0; 64])).is_ok();
    assert!(ask());
    node.del(Whose::Ours, &first);
    let mut second = Pod::with_ports("pod-2", mapping());
    node.add(Whose::Ours, &mut second);
    serve_udp(&second.netns, at(second.ip(), 53));
    assert!(ask(), "the same socket gets to the new pod");
}

/// One that says that it forgets flows, as flanneld does, and forgets none if it is not to.
fn helper(node: &Node, forgets: bool) -> std::path::PathBuf {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, listen,
        recv, send, socket,
    };
    let path = node.path(&format!("helper-{forgets}.sock"));
    if forgets {
        flannel_cni::deferred_kernel_work::serve(&path).unwrap();
        return path;
    }
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 10).unwrap();
    std::thread::spawn(move || {
        while let Ok(connection) = accept(&listener) {
            let _ = recv(&connection, &mut [0; 512], RecvFlags::empty());
            let _ = send(&connection, &[1], SendFlags::NOSIGNAL);
        }
    });
    path
}

#[test]
fn flanneld_forgets_udp_flows_from_before_a_mapping_after_the_answer() {
    for forgets in [false, true] {
        let test = move || {
            let node = Node::new(V4);
            let world = world();
            let mapping = || json!([{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}]);
            let mut first = Pod::with_ports("pod-1", mapping());
            node.add(Whose::Ours, &mut first);
            serve_udp(&first.netns, at(first.ip(), 53));
            let client = world.inside(|| {
                let client = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                client.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
                client.connect(at(HOST4.into(), 8053)).unwrap();
                client
            });
            let ask = || client.send(b"?").and_then(|_| client.recv(&mut [0; 64])).is_ok();
            assert!(ask());
            node.del(Whose::Ours, &first);
            let mut second = node.attached("pod-2");
            second.port_mappings = mapping();
            serve_udp(&second.netns, at(second.ip(), 53));
            let mut request = node.request(Whose::Ours, "portmap", "ADD", &second);
            request.work_socket = helper(&node, forgets).display().to_string();
            let mut conf = node.portmap_conf(&second);
            conf["prevResult"] = second.result.clone();
            request.send(&conf.to_string()).expect_success();
            client.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
            let follows = (0..if forgets { 50 } else { 2 }).any(|_| ask());
            assert_eq!(follows, forgets, "who forgets is flanneld, and not the plugin");
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn masqueraded_pods_are_seen_as_the_node_and_neighbours_as_themselves() {
    let mut node = Node::new(V4);
    node.delegate = json!({"isDefaultGateway": true, "ipMasq": true});
    let world = world();
    let (a, b) = (node.attached("pod-a"), node.attached("pod-b"));
    serve_tcp(&world, at(WORLD4.into(), 80));
    serve_tcp(&b.netns, at(b.ip(), 80));
    assert_eq!(ask_tcp(Some(&a.netns), at(WORLD4.into(), 80)), Some(HOST4.into()));
    assert_eq!(ask_tcp(Some(&a.netns), at(b.ip(), 80)), Some(a.ip()));
    node.del(Whose::Ours, &a);
    node.del(Whose::Ours, &b);
    node.assert_clean();
}

/// `::` listens for IPv4 too, unless the port is taken: so each family has its own address.
trait Own {
    fn v6_only(self, ip: IpAddr) -> SocketAddr;
}

impl Own for SocketAddr {
    fn v6_only(self, ip: IpAddr) -> SocketAddr {
        if ip.is_ipv6() { (ip, self.port()).into() } else { self }
    }
}
