//! Faults that drop or mislead packets on either node, in pods and between them, planted one after the other in one lab:
//! each is named where it is, with what it is, and nothing else is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::process::Command;
use std::time::Duration;

use flannel_lab::{Lab, Node, Pod, Process};
use serde_json::Value;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(60);

/// Where a fault is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The node on which the tools are run.
    Here,
    /// The other one.
    There,
    /// The pod that sends.
    One,
    /// The pod that is sent to.
    Two,
    /// A pod beside the first.
    BesideOne,
    /// A pod beside the second.
    BesideTwo,
    /// Between the nodes.
    Between,
}

/// What the trace is to say first: the node if not this one, the way, and the hop; and words of it.
#[derive(Clone, Copy, Debug)]
enum Says<'a> {
    Wrong(&'a str, &'a str),
    /// Nothing is wrong for sure, and one line tells of what may be.
    May(&'a str),
    /// It does no harm, and nobody says a word.
    Nothing,
    /// Only real packets show it: the hop of the live part, and words.
    Live(&'a str, &'a str),
}

struct Fault<'a> {
    at: At,
    plant: String,
    heal: String,
    says: Says<'a>,
    /// What `check` says on the faulty node: the subject, and words.
    check: Option<(&'a str, &'a str)>,
}

struct Bed {
    lab: Lab,
    one: Pod,
    two: Pod,
    /// A further pod on each node.
    beside: [Pod; 2],
    /// A pod has processes, by which its network is found.
    _running: Vec<Process>,
}

fn start() -> Bed {
    let lab = Lab::builder().nodes(2).backend("vxlan").start().unwrap();
    let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
    let beside = [lab.pod(1).unwrap(), lab.pod(2).unwrap()];
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let running = [&one, &two, &beside[0], &beside[1]].map(|pod| {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        pod.spawn(sleep).unwrap()
    });
    Bed { lab, one, two, beside, _running: running.into() }
}

impl Bed {
    fn run(&self, at: At, command: &str) {
        let words = ["sh", "-ec", command];
        let done = match at {
            At::Here => self.lab.node(1).exec(&words),
            At::There => self.lab.node(2).exec(&words),
            At::One => self.one.exec(&words),
            At::Two => self.two.exec(&words),
            At::BesideOne => self.beside[0].exec(&words),
            At::BesideTwo => self.beside[1].exec(&words),
            At::Between => self.lab.switch().exec(&words),
        };
        done.unwrap();
    }

    fn trace(&self, more: &[&str]) -> Value {
        let (from, to) = (self.one.v4().unwrap().to_string(), self.two.v4().unwrap().to_string());
        let words = [&[FLANNELCTL, "trace", &from, &to, "-o", "json"], more].concat();
        let output = self.lab.node(1).output(&words).unwrap();
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr))
    }

    /// Nothing is left of what was planted before.
    fn is_whole(&self, after: &str) {
        self.lab
            .wait_until("nothing to be wrong", LIMIT, || {
                let traced = self.trace(&[]);
                let remarks = hops(&traced, "unknown").len() + hops(&traced, "wrong").len();
                if remarks == 0 { Ok(()) } else { Err(format!("after {after}: {traced:#}")) }
            })
            .unwrap();
    }

    fn check(&self, node: &Node) -> Vec<(String, String, String)> {
        let output = node.output(&[FLANNELCTL, "check", "-o", "json"]).unwrap();
        let report: Value = serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let findings = report["findings"].as_array().unwrap().iter();
        findings
            .filter(|one| one["severity"] != "note")
            .map(|one| (text(&one["subject"]), text(&one["what"]), text(&one["fix"])))
            .collect()
    }

    /// Plants it, asks the tools, and takes it away; what they say wrongly, if they do.
    fn is_named(&self, fault: &Fault<'_>) -> Result<(), String> {
        self.run(fault.at, &fault.plant);
        let said = self.judge(fault);
        self.run(fault.at, &fault.heal);
        said.map_err(|said| format!("{:?}: {}\n{said}", fault.at, fault.plant))
    }

    fn judge(&self, fault: &Fault<'_>) -> Result<(), String> {
        let traced = match fault.says {
            Says::Live(..) => self.trace(&["--live"]),
            Says::Wrong(..) | Says::May(_) | Says::Nothing => self.trace(&[]),
        };
        let (wrong, told) = (hops(&traced, "wrong"), hops(&traced, "unknown"));
        let is_right = match fault.says {
            Says::Wrong(place, words) => wrong.first().is_some_and(|first| {
                // What follows from it on the way back, and what probes say, is not something else.
                let same = |hop: &Named| hop.hop == first.hop || hop.hop == "probes";
                let named = first.place == place && first.what.contains(words);
                named && !first.fix.is_empty() && wrong.iter().all(same)
            }),
            Says::May(words) => {
                let blamed = wrong.iter().any(|hop| hop.hop != "probes");
                told.iter().any(|hop| hop.what.contains(words)) && !blamed
            }
            Says::Nothing => {
                let all = wrong.iter().chain(&told);
                all.into_iter().all(|hop| hop.hop == "probes")
            }
            Says::Live(hop, words) => {
                let live = wrong.iter().find(|one| one.place.contains("live"));
                live.is_some_and(|live| live.hop == hop && live.what.contains(words))
            }
        };
        if !is_right {
            return Err(format!("wrong: {wrong:#?}\ntold: {told:#?}"));
        }
        let Some((subject, words)) = fault.check else { return Ok(()) };
        let found = self.check(self.lab.node(if fault.at == At::There { 2 } else { 1 }));
        let is_it = |(of, what, fix): &&(String, String, String)| {
            of == subject && what.contains(words) && !fix.is_empty()
        };
        match found.iter().any(|one| is_it(&one)) {
            true => Ok(()),
            false => Err(format!("check: {found:#?}")),
        }
    }
}

#[derive(Debug)]
struct Named {
    /// `node2 there rules`.
    place: String,
    hop: String,
    what: String,
    fix: String,
}

fn hops(traced: &Value, condition: &str) -> Vec<Named> {
    let all = traced["hops"].as_array().unwrap().iter();
    let of = all.filter(|hop| hop["condition"] == condition);
    let text = |hop: &Value, key: &str| hop[key].as_str().unwrap_or("here").to_owned();
    of.map(|hop| Named {
        place: ["node", "way", "hop"].map(|key| text(hop, key)).join(" "),
        hop: text(hop, "hop"),
        what: text(hop, "what"),
        fix: if hop["fix"].is_null() { String::new() } else { text(hop, "fix") },
    })
    .collect()
}

/// A rule in a table of its own.
fn nft(family: &str, chain: &str, rule: &str) -> String {
    format!(
        "nft add table {family} planted; nft 'add chain {family} planted c {{ type filter {chain} priority 10 ; }}'; \
         nft add rule {family} planted c {rule}"
    )
}

fn field(text: &str, name: &str) -> String {
    text.split_whitespace().skip_while(|word| *word != name).nth(1).unwrap().to_owned()
}

#[test]
fn every_even_fault_of_the_table_is_named_where_it_is_and_nothing_else_is() {
    name_faults_of_half(0);
}

#[test]
fn every_odd_fault_of_the_table_is_named_where_it_is_and_nothing_else_is() {
    name_faults_of_half(1);
}

/// Goes through every second fault of the table, so that two tests beside each other go through all.
fn name_faults_of_half(half: usize) {
    let bed = start();
    bed.is_whole("nothing");
    let (one, two) = (bed.one.v4().unwrap(), bed.two.v4().unwrap());
    let port_of = |node: u16, pod: &str| {
        let node = bed.lab.node(node);
        let mac = field(&node.ip(&format!("neigh show {pod} dev cni0")).unwrap(), "lladdr");
        let all = node.exec(&["bridge", "fdb", "show", "br", "cni0"]).unwrap();
        let line = all.lines().find(|line| line.starts_with(&mac)).unwrap().to_owned();
        (mac, field(&line, "dev"))
    };
    let (_, veth1) = port_of(1, &one.to_string());
    let (mac2, veth2) = port_of(2, &two.to_string());
    let ports = bed.lab.node(2).exec(&["ls", "/sys/class/net/cni0/brif"]).unwrap();
    let other_port = ports.split_whitespace().find(|port| *port != veth2).unwrap().to_owned();
    let gateway = bed.lab.node(1).subnet_env().unwrap().subnet.unwrap().addr();
    let table = |family: &str| format!("nft delete table {family} planted");
    let no_queue = |device: &str| format!("tc qdisc del dev {device} root");
    let no_filters = |device: &str| format!("tc qdisc del dev {device} clsact");
    let iptables = |rule: &str| {
        let (plant, heal) = (format!("iptables {rule}"), format!("iptables {rule}"));
        (plant, heal.replacen("-I ", "-D ", 1))
    };
    let mut faults: Vec<Fault<'_>> = Vec::new();
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
    add(At::There, blackhole(&veth2), Says::Wrong("node2 there queue", "blackhole"), None);
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
        Says::Wrong("node2 there fdb", &other_port),
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
    add(At::There, mtu(&veth2), Says::Wrong("node2 there veth", "has an MTU of 1000"), None);
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
    assert!(faults.len() >= 24, "{}", faults.len());
    let of_half = faults.iter().skip(half).step_by(2);
    let all = of_half.filter_map(|fault| bed.is_named(fault).err());
    let all: Vec<String> = all.collect();
    assert!(all.is_empty(), "{} of {}:\n{}", all.len(), faults.len(), all.join("\n\n"));
    bed.is_whole("all");
}

/// What the daemon of a node says of its one peer.
fn probe(bed: &Bed, node: u16) -> Value {
    let output = bed.lab.node(node).output(&[FLANNELCTL, "peers", "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(output.stdout.lines().next().unwrap()).unwrap()["probe"].clone()
}

#[test]
fn losses_and_a_narrow_path_are_known_to_both_nodes_by_one_number_and_requests_pass_it() {
    let bed = start();
    let wait = |what: &str, holds: &dyn Fn() -> Result<(), String>| {
        bed.lab.wait_until(what, LIMIT, holds).unwrap();
    };
    // Large packets vanish on their way to the second node, whatever they are.
    let hole = nft("bridge", "hook forward", "ip daddr 192.168.100.2 ip length \\> 1200 drop");
    bed.run(At::Between, &hole);
    for node in [1, 2] {
        wait("both to know", &|| {
            let probe = probe(&bed, node);
            let known = probe["verdict"] == "mtu-black-hole" && probe["mtu"] == 1150;
            if known { Ok(()) } else { Err(format!("{node}: {probe:#}")) }
        });
        let found = bed.check(bed.lab.node(node));
        let told: Vec<&(String, String, String)> =
            found.iter().filter(|(_, what, _)| what.contains("bytes")).collect();
        let [(subject, what, fix)] = told.as_slice() else { panic!("{node}: {found:#?}") };
        assert!(subject == "mtu" && what.contains("carries 1200 bytes"), "{node}: {found:#?}");
        assert!(fix.contains("`ip link set dev eth0 mtu 1200`"), "{node}: {found:#?}");
        let said = probe(&bed, node)["fix"].as_str().unwrap().to_owned();
        assert_eq!(*fix, said, "one fix, whoever is asked");
    }
    // Requests and answers come through all the same.
    bed.run(At::Between, "nft delete table bridge planted; for port in p1 p2 s0; do ip link set $port mtu 1200; done");
    let traced = bed.trace(&[]);
    let hops = traced["hops"].as_array().unwrap();
    assert!(hops.iter().any(|hop| hop["node"] == "node2"), "{traced:#}");
    bed.run(At::Between, "for port in p1 p2 s0; do ip link set $port mtu 1500; done");
    wait("the path to be well", &|| match probe(&bed, 1)["verdict"] == "reached" {
        true => Ok(()),
        false => Err(probe(&bed, 1).to_string()),
    });

    // A share of packets is lost.
    bed.run(
        At::There,
        &nft("inet", "hook input", "udp dport 8472 numgen random mod 10 \\< 3 counter drop"),
    );
    wait("losses to be told", &|| {
        let output = bed.lab.node(1).output(&[FLANNELCTL, "status"]).unwrap();
        let says = ["on which side is not known", "probes lost", "round trip"];
        match says.iter().find(|words| !output.stdout.contains(**words)) {
            None => Ok(()),
            Some(words) => Err(format!("{words}: {}", output.stdout)),
        }
    });
    // Where the rule is, it is named.
    wait("the cause to be named", &|| {
        let output = bed.lab.node(2).output(&[FLANNELCTL, "status"]).unwrap();
        let named = output.stdout.contains("on this node: the nftables rule");
        if named { Ok(()) } else { Err(output.stdout) }
    });
}

#[test]
fn an_ipv6_address_given_out_twice_and_a_wrong_ipv6_neighbour_are_named() {
    let lab = Lab::builder().nodes(2).backend("vxlan").ipv6(true).start().unwrap();
    let (one, two, beside) = (lab.pod(1).unwrap(), lab.pod(2).unwrap(), lab.pod(1).unwrap());
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let (from, to) = (one.v6().unwrap().to_string(), two.v6().unwrap().to_string());
    let says = |place: &str, words: &str| {
        let named = || {
            let words_of = [FLANNELCTL, "trace", &from, &to, "-o", "json"];
            let told = lab.node(1).output(&words_of).map_err(|error| error.to_string())?.stdout;
            let traced: Value = serde_json::from_str(&told).map_err(|error| error.to_string())?;
            let wrong = hops(&traced, "wrong");
            match wrong.first() {
                Some(first) if first.place == place && first.what.contains(words) => Ok(()),
                None if words.is_empty() => Ok(()),
                _ => Err(told),
            }
        };
        lab.wait_until(words, LIMIT, named).unwrap();
    };
    says("", "");
    beside.exec(&["ip", "addr", "add", &format!("{from}/128"), "dev", "eth0", "nodad"]).unwrap();
    says("here there pod", "the address is given out twice");
    beside.exec(&["ip", "addr", "del", &format!("{from}/128"), "dev", "eth0"]).unwrap();
    let wrong = format!("neigh replace {to} lladdr 02:00:00:00:00:99 dev cni0 nud permanent");
    lab.node(2).ip(&wrong).unwrap();
    says("node2 there neighbour", "02:00:00:00:00:99 on cni0");
}

#[test]
#[ignore = "needs a kernel with netem: scripts/vm has one"]
fn delays_and_losses_made_by_netem_are_named_as_slow_and_lossy_with_their_queue() {
    let bed = start();
    let verdict_is = |wanted: &str| {
        let holds = || {
            let probe = probe(&bed, 1);
            if probe["verdict"] == wanted { Ok(()) } else { Err(probe.to_string()) }
        };
        bed.lab.wait_until(wanted, LIMIT, holds).unwrap();
    };
    let status = |node: u16| bed.lab.node(node).output(&[FLANNELCTL, "status"]).unwrap().stdout;
    verdict_is("reached");

    let delay = "the queue netem of eth0 delays all that it sends by 400.0 ms";
    bed.run(At::There, "tc qdisc add dev eth0 root netem delay 400ms");
    verdict_is("slow");
    let said = status(1);
    assert!(said.contains("on which side is not known"), "{said}");
    assert!(said.contains("nothing was found that drops or delays packets"), "{said}");
    let found = bed.check(bed.lab.node(2));
    let is_it = |(of, what, fix): &(String, String, String)| {
        of == "queues" && what.contains(delay) && fix == "tc qdisc del dev eth0 root"
    };
    assert!(found.iter().any(is_it), "{found:#?}");
    let traced = bed.trace(&[]);
    let told = hops(&traced, "unknown");
    assert!(told.iter().any(|hop| hop.what.contains(delay)), "{told:#?}");
    assert!(hops(&traced, "wrong").is_empty(), "{traced:#}");

    bed.run(At::There, "tc qdisc replace dev eth0 root netem loss 30%");
    verdict_is("lossy");
    // The other node finds it out by probes of its own.
    let named = || {
        let said = status(2);
        let is_named = said.contains("netem of eth0, which drops 30.0 % of what it sends");
        if is_named { Ok(()) } else { Err(said) }
    };
    bed.lab.wait_until("its queue to be named", LIMIT, named).unwrap();
    bed.run(At::There, "tc qdisc del dev eth0 root");
    verdict_is("reached");
}
