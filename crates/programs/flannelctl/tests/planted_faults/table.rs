//! The table of faults: what is planted where, and what the tools are to say of it.

use crate::bed::{At, Bed, Fault, Says, nft};

/// Devices of pods as a node's bridge knows them.
pub(crate) struct Ports {
    veth1: String,
    veth2: String,
    mac2: String,
    /// Port of another pod beside the second.
    other_port: String,
}

impl Ports {
    pub(crate) fn find(bed: &Bed) -> Self {
        let (_, veth1) = port_of(bed, 1, &bed.one.v4().unwrap().to_string());
        let (mac2, veth2) = port_of(bed, 2, &bed.two.v4().unwrap().to_string());
        let ports = bed.lab.node(2).exec(&["ls", "/sys/class/net/cni0/brif"]).unwrap();
        let other_port = ports.split_whitespace().find(|port| *port != veth2).unwrap().to_owned();
        Self { veth1, veth2, mac2, other_port }
    }
}

/// MAC of a pod, and the port of the bridge that leads to it.
fn port_of(bed: &Bed, node: u16, pod: &str) -> (String, String) {
    let node = bed.lab.node(node);
    let mac = field(&node.ip(&format!("neigh show {pod} dev cni0")).unwrap(), "lladdr");
    let all = node.exec(&["bridge", "fdb", "show", "br", "cni0"]).unwrap();
    let line = all.lines().find(|line| line.starts_with(&mac)).unwrap().to_owned();
    (mac, field(&line, "dev"))
}

fn field(text: &str, name: &str) -> String {
    text.split_whitespace().skip_while(|word| *word != name).nth(1).unwrap().to_owned()
}

pub(crate) fn faults<'a>(bed: &Bed, ports: &'a Ports) -> Vec<Fault<'a>> {
    let Ports { veth1, veth2, mac2, other_port } = ports;
    let (one, two) = (bed.one.v4().unwrap(), bed.two.v4().unwrap());
    let gateway = bed.lab.node(1).subnet_env().unwrap().subnet.unwrap().addr();
    let table = |family: &str| format!("nft delete table {family} planted");
    let no_queue = |device: &str| format!("tc qdisc del dev {device} root");
    let no_filters = |device: &str| format!("tc qdisc del dev {device} clsact");
    let iptables = |rule: &str| {
        let (plant, heal) = (format!("iptables {rule}"), format!("iptables {rule}"));
        (plant, heal.replacen("-I ", "-D ", 1))
    };
    let mut faults: Vec<Fault<'a>> = Vec::new();
    let mut add = |at, (plant, heal): (String, String), says, check| {
        faults.push(Fault { at, plant, heal, says, check });
    };

    // Queues and filters.
    let blackhole =
        |device: &str| (format!("tc qdisc replace dev {device} root blackhole"), no_queue(device));
    add(
        At::Here,
        blackhole("flannel.1"),
        Says::Wrong("here there queue", "the queue blackhole of flannel.1"),
        Some(("queues", "the queue blackhole of flannel.1")),
    );
    add(At::There, blackhole(veth2), Says::Wrong("node2 there queue", "blackhole"), None);
    add(
        At::Here,
        (
            "tc qdisc replace dev eth0 root tbf rate 500kbit burst 3k latency 5ms".to_owned(),
            no_queue("eth0"),
        ),
        Says::May("the queue tbf of eth0"),
        None,
    );
    add(
        At::Here,
        (
            "tc qdisc replace dev eth0 root tbf rate 500kbit burst 3k latency 5ms".to_owned(),
            no_queue("eth0"),
        ),
        Says::Live("fdb", "the queue tbf of eth0 has dropped"),
        None,
    );
    add(
        At::Here,
        (
            "tc qdisc add dev cni0 clsact; tc filter add dev cni0 ingress pref 5 u32 match u32 0 0 action mirred egress \
             redirect dev lo"
                .to_owned(),
            no_filters("cni0"),
        ),
        Says::Wrong("here there queue", "which leads it to lo"),
        None,
    );
    let program = (
        "tc qdisc add dev flannel.1 clsact; tc filter add dev flannel.1 ingress bpf da bytecode '1,6 0 0 2'".to_owned(),
        no_filters("flannel.1"),
    );
    add(
        At::There,
        program.clone(),
        Says::May("a program of BPF, may drop"),
        Some(("queues", "a program of BPF")),
    );
    add(At::There, program, Says::Live("rules", "a filter (tc) of flannel.1 has dropped"), None);

    // Rules of all places.
    add(
        At::There,
        (nft("bridge", "hook output", &format!("ip daddr {two} counter drop")), table("bridge")),
        Says::Wrong("node2 there rules", "bridge planted c"),
        Some(("firewall", "bridge planted c")),
    );
    add(
        At::Here,
        (
            format!("ebtables -I INPUT -p IPv4 --ip-dst {two} -j DROP"),
            format!("ebtables -D INPUT -p IPv4 --ip-dst {two} -j DROP"),
        ),
        Says::Wrong("here there rules", "ebtables"),
        None,
    );
    add(
        At::Here,
        (nft("bridge", "hook output", "ether type arp drop"), table("bridge")),
        Says::Wrong("here back rules", "(ARP)"),
        None,
    );
    add(
        At::There,
        iptables("-t raw -I PREROUTING -m length --length 1000:65535 -j DROP"),
        Says::Wrong("node2 there rules", "where it has 1500 bytes"),
        Some(("firewall", "--length 1000:65535")),
    );
    let random =
        || iptables("-t mangle -I FORWARD -m statistic --mode random --probability 0.25 -j DROP");
    add(
        At::Here,
        random(),
        Says::May("--probability 0.25"),
        Some(("firewall", "--probability 0.25")),
    );
    add(At::Here, random(), Says::Live("rules", "--probability 0.25"), None);
    add(
        At::Here,
        (
            nft(
                "netdev",
                "hook egress device eth0",
                "udp dport 8472 numgen random mod 10 \\< 3 counter drop",
            ),
            table("netdev"),
        ),
        Says::Live("fdb", "netdev planted c has dropped"),
        None,
    );
    add(
        At::There,
        (
            nft("netdev", "hook ingress device flannel.1", &format!("ip daddr {two} counter drop")),
            table("netdev"),
        ),
        Says::Wrong("node2 there rules", "netdev planted c"),
        None,
    );
    add(
        At::There,
        (
            nft("inet", "hook forward", "limit rate over 10/second burst 5 packets counter drop"),
            table("inet"),
        ),
        Says::Live("rules", "inet planted c has dropped"),
        None,
    );
    add(
        At::There,
        (nft("inet", "hook forward", "ct state established drop"), table("inet")),
        Says::Wrong("node2 there rules", "once its connection is made"),
        None,
    );
    add(
        At::Here,
        (nft("inet", "hook forward", "meta mark 0 counter drop"), table("inet")),
        Says::Live("rules", "inet planted c has dropped"),
        None,
    );
    add(
        At::Here,
        iptables(&format!("-I FORWARD -m physdev --physdev-in {veth1} -j DROP")),
        Says::Wrong("here there rules", "--physdev-in"),
        None,
    );
    add(
        At::Here,
        iptables(&format!("-t nat -I PREROUTING -d {two} -j DNAT --to-destination 192.0.2.9")),
        Says::Wrong("here there rules", "DNAT"),
        None,
    );
    add(
        At::Two,
        (nft("inet", "hook input", &format!("ip saddr {one} drop")), table("inet")),
        Says::Wrong("node2 there pod", "in the pod"),
        None,
    );

    // Policies of IPsec.
    let policy = |dir: &str| {
        let policy = format!("dir {dir} src {one}/32 dst {two}/32");
        (
            format!("ip xfrm policy add {policy} action block"),
            format!("ip xfrm policy delete {policy}"),
        )
    };
    add(
        At::Here,
        policy("out"),
        Says::Wrong("here there policy", "a policy of IPsec blocks"),
        None,
    );
    add(At::There, policy("fwd"), Says::Wrong("node2 there policy", "(dir fwd)"), None);
    let default = |action: &str| format!("ip xfrm policy setdefault fwd {action}");
    add(
        At::Here,
        (default("block"), default("accept")),
        Says::Wrong("here there policy", "getdefault: fwd block"),
        None,
    );

    // Neighbours, duplicates, ports of the bridge.
    let neighbour = |ip: &str, device: &str| {
        (
            format!("ip neigh replace {ip} lladdr 02:00:00:00:00:99 dev {device} nud permanent"),
            format!("ip neigh del {ip} dev {device}"),
        )
    };
    add(
        At::Here,
        neighbour("192.168.100.2", "eth0"),
        Says::Wrong("here there neighbour", "192.168.100.2 is 02:00:00:00:00:99 on eth0"),
        Some(("neighbours", "02:00:00:00:00:99")),
    );
    add(
        At::There,
        neighbour(&two.to_string(), "cni0"),
        Says::Wrong("node2 there neighbour", "02:00:00:00:00:99 on cni0"),
        None,
    );
    add(
        At::One,
        neighbour(&gateway.to_string(), "eth0"),
        Says::Wrong("here there pod", "its gateway is 02:00:00:00:00:99"),
        None,
    );
    let address = |net: String| {
        (format!("ip addr add {net} dev eth0"), format!("ip addr del {net} dev eth0"))
    };
    add(
        At::BesideOne,
        address(format!("{one}/32")),
        Says::Wrong("here there pod", "the address is given out twice"),
        Some(("pods", "the address is given out twice")),
    );
    add(
        At::BesideTwo,
        address(format!("{one}/32")),
        Says::Wrong("node2 back pod", "an address of another node's pods"),
        None,
    );
    add(
        At::Two,
        address(format!("{one}/32")),
        Says::Wrong("node2 there pod", "itself, which is another's address"),
        None,
    );
    add(
        At::There,
        (
            format!(
                "ip link set cni0 type bridge stp_state 1 forward_delay 3000; ip link set {veth2} down; ip link set {veth2} up"
            ),
            format!(
                "ip link set cni0 type bridge stp_state 0; ip link set cni0 type bridge forward_delay 0; ip link set {veth2} down; ip link set {veth2} up"
            ),
        ),
        Says::Wrong("node2 there bridge", "is listening"),
        None,
    );
    add(
        At::There,
        (
            format!("bridge fdb replace {mac2} dev {other_port} master static sticky"),
            format!("bridge fdb del {mac2} dev {other_port} master"),
        ),
        Says::Wrong("node2 there fdb", other_port),
        None,
    );

    // Pods, MTUs, ARP, rules of routing.
    add(
        At::One,
        ("ip route del default".to_owned(), format!("ip route replace default via {gateway}")),
        Says::Wrong("here there pod", "its default route is missing"),
        Some(("pods", "its default route is missing")),
    );
    add(
        At::One,
        (
            format!("ip route replace default via {}", bed.beside[0].v4().unwrap()),
            format!("ip route replace default via {gateway}"),
        ),
        Says::Wrong("here there pod", "and its gateway, cni0, is"),
        None,
    );
    let mtu = |device: &str| {
        (format!("ip link set {device} mtu 1000"), format!("ip link set {device} mtu 1450"))
    };
    add(At::There, mtu("cni0"), Says::Wrong("node2 there bridge", "cni0 has an MTU of 1000"), None);
    add(At::There, mtu(veth2), Says::Wrong("node2 there veth", "has an MTU of 1000"), None);
    add(At::Two, mtu("eth0"), Says::Wrong("node2 there pod", "has an MTU of 1000"), None);
    add(
        At::Here,
        (
            "sysctl -qw net.ipv4.conf.cni0.arp_ignore=8".to_owned(),
            "sysctl -qw net.ipv4.conf.cni0.arp_ignore=0".to_owned(),
        ),
        Says::Wrong("here there arp", "arp_ignore is 8"),
        Some(("arp", "arp_ignore is 8")),
    );
    add(
        At::Here,
        (format!("ip rule add from {one} prohibit"), format!("ip rule del from {one} prohibit")),
        Says::Wrong("here there route", "of the type prohibit"),
        None,
    );
    let of_tcp = |verb: &str| format!("ip rule {verb} from {one} ipproto tcp blackhole");
    add(
        At::Here,
        (of_tcp("add"), of_tcp("del")),
        Says::Wrong("here there route", "of the type blackhole"),
        None,
    );

    // What is written into packets, and what rules ask of the kernel's tracking.
    add(
        At::Here,
        (nft("inet", "hook prerouting", "iifname cni0 ip ttl set 1"), table("inet")),
        Says::May("inet planted c"),
        None,
    );
    add(
        At::Here,
        iptables(&format!("-t nat -I POSTROUTING -s {one} -d {two} -j SNAT --to-source 192.0.2.7")),
        Says::Wrong("here there rules", "SNAT"),
        None,
    );
    add(
        At::Here,
        (
            nft("ip", "hook prerouting", &format!("ip daddr {two} ip daddr set 10.99.0.1")),
            table("ip"),
        ),
        Says::Wrong("here there rules", "ip planted c"),
        None,
    );
    add(
        At::Here,
        (nft("inet", "hook forward", "ct state untracked counter drop"), table("inet")),
        Says::Nothing,
        None,
    );
    add(
        At::There,
        (
            format!(
                "{}; nft 'add chain inet planted p {{ type filter hook prerouting priority -300 ; }}'; nft add rule inet planted p notrack",
                nft("inet", "hook forward", "ct state untracked counter drop")
            ),
            table("inet"),
        ),
        Says::May("inet planted c"),
        None,
    );
    add(At::Here, iptables("-I FORWARD -m mark --mark 0x0 -j DROP"), Says::May("--mark 0x0"), None);
    add(
        At::There,
        (nft("arp", "hook input", "arp operation request drop"), table("arp")),
        Says::May("of ARP"),
        Some(("firewall", "of ARP")),
    );
    let template = format!("dir fwd src {one}/32 dst {two}/32");
    add(
        At::There,
        (
            format!("ip xfrm policy add {template} tmpl proto esp mode tunnel reqid 9"),
            format!("ip xfrm policy delete {template}"),
        ),
        Says::Live("rules", "IPsec (XfrmInTmplMismatch) has dropped"),
        None,
    );

    // Ports of the bridge that keep pods from being found.
    let port_flags = |off: &str, on: &str| {
        (format!("bridge link set dev {veth2} {off}"), format!("bridge link set dev {veth2} {on}"))
    };
    add(
        At::There,
        port_flags("bcast_flood off", "bcast_flood on"),
        Says::Wrong("node2 there bridge", "passes no broadcasts on"),
        Some(("bridge", "passes no broadcasts on")),
    );
    let (off, on) = port_flags("learning off flood off", "learning on flood on");
    add(
        At::There,
        (format!("{off}; bridge fdb del {mac2} dev {veth2} master"), on),
        Says::Wrong("node2 there bridge", "neither learns"),
        None,
    );

    // Settings and rules inside of pods.
    add(
        At::One,
        (format!("ip route add blackhole {two}"), format!("ip route del blackhole {two}")),
        Says::Wrong("here there pod", "of the type blackhole"),
        None,
    );
    let sysctl = |name: &str, bad: u8, good: u8| {
        (format!("sysctl -qw {name}={bad}"), format!("sysctl -qw {name}={good}"))
    };
    add(
        At::Two,
        sysctl("net.ipv4.conf.eth0.arp_ignore", 8, 0),
        Says::Wrong("node2 there pod", "arp_ignore is 8"),
        None,
    );
    add(
        At::One,
        sysctl("net.ipv4.ip_default_ttl", 1, 64),
        Says::Wrong("here there pod", "with a TTL of 1"),
        Some(("pods", "with a TTL of 1")),
    );
    add(
        At::Two,
        sysctl("net.ipv4.icmp_echo_ignore_all", 1, 0),
        Says::May("answers no echo requests"),
        None,
    );
    add(
        At::Two,
        (nft("inet", "hook input", "meta length \\> 1000 counter drop"), table("inet")),
        Says::Wrong("node2 there pod", "where it has 1450 bytes"),
        None,
    );
    add(
        At::Two,
        (nft("inet", "hook input", "ct state established counter drop"), table("inet")),
        Says::Wrong("node2 there pod", "once its connection is made"),
        None,
    );

    // Between the nodes.
    add(
        At::Here,
        (
            "ip route add 192.168.100.2/32 via 192.168.100.77".to_owned(),
            "ip route del 192.168.100.2/32".to_owned(),
        ),
        Says::Wrong("here there underlay", "nobody on eth0 answers for 192.168.100.77"),
        None,
    );
    add(
        At::Between,
        (nft("bridge", "hook forward", "ip length \\> 1400 udp dport 8472 drop"), table("bridge")),
        Says::Live("underlay", "the path between the nodes carries less"),
        None,
    );
    add(
        At::Between,
        (
            nft(
                "bridge",
                "hook forward",
                "ip daddr 192.168.100.2 udp dport 8472 numgen random mod 10 \\< 3 drop",
            ),
            table("bridge"),
        ),
        Says::Live(
            "underlay",
            "packets of 1447 bytes, sent in a burst, did not come in by the underlay",
        ),
        None,
    );
    faults
}
