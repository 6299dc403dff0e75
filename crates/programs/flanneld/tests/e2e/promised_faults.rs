//! Ten faults of which it is promised that `flannelctl status` or `check` names them within ten seconds, planted one at a
//! time on three nodes of vxlan. These tests run where nothing else does (`scripts/test`).

use flannel_lab::Result;

use crate::faults::{
    Diagnostic, again_and_again, also, ask, check, is_named_in_time, repair, shell, started,
    status, tunnel_end,
};

#[test]
fn a_port_that_one_nodes_firewall_drops_is_named() -> Result<()> {
    let lab = started()?;
    let rule = "nft 'add table inet planted { chain it { type filter hook input priority -300; udp dport 8472 drop; }; }'";
    // On which side it is dropped is known there alone.
    let both = "`flannelctl check` names what drops it on that node";
    is_named_in_time(
        &lab,
        || shell(&lab, 2, rule),
        &[
            check(
                2,
                "firewall",
                "on UDP port 8472, the vxlan tunnel",
                "nft delete rule inet planted it handle",
            ),
            status(1, "tunnel", "UDP port 8472 does not arrive there", both),
            status(2, "tunnel", "UDP port 8472 does not come back", both),
        ],
        |()| shell(&lab, 2, "nft delete table inet planted"),
    )
}

#[test]
fn a_path_that_carries_less_than_the_cards_is_named() -> Result<()> {
    let lab = started()?;
    let lower = "ip link set dev eth0 mtu 1400";
    // What is larger vanishes.
    let rule = "nft 'add table inet planted { chain it { type filter hook prerouting priority -300; iifname eth0 meta length > 1400 drop; }; }'";
    is_named_in_time(
        &lab,
        || shell(&lab, 2, rule),
        &[
            check(
                1,
                "mtu",
                "the path to 192.168.100.2 carries 1400 bytes",
                "ip link set dev eth0 mtu 1400",
            ),
            status(1, "underlay", "packets of more than 1350 bytes vanish", lower),
            // By others, who may have lost a packet while they measured.
            also("bytes vanish between this node and that one"),
            also("carries 1400 bytes"),
            // Where the rule is, it is named.
            also("where it has 1500 bytes"),
        ],
        |()| shell(&lab, 2, "nft delete table inet planted"),
    )?;
    // What is larger is cut up.
    let port = lab.node(2).nic().port;
    let set = |mtu: u32| {
        lab.switch().ip(&format!("link set dev {port} mtu {mtu}")).unwrap();
    };
    is_named_in_time(
        &lab,
        || set(1400),
        &[
            status(1, "underlay", "the largest are cut up on the way", lower).remark(),
            // What the daemon knows is told once.
            check(1, "underlay", "the largest are cut up on the way", lower).remark(),
            also("carries 1400 bytes"),
            // What node 2 itself sends is not cut up, and the port takes what a VLAN adds beyond its MTU.
            also("bytes vanish between this node and that one"),
            also("carries 1404 bytes"),
        ],
        |()| set(1500),
    )
}

#[test]
fn a_peers_daemon_that_was_killed_is_named_there_and_elsewhere() -> Result<()> {
    let lab = started()?;
    is_named_in_time(
        &lab,
        || lab.node(2).flanneld().kill9(),
        &[
            check(2, "daemon", "no flanneld runs here, and one has", "systemctl restart flanneld")
                .remark(),
            status(1, "daemon", "flanneld is not running there", "systemctl restart flanneld")
                .remark(),
            // By a node whose own daemon has not yet found out which of the two it is.
            also("UDP port 8475 does not answer at 192.168.100.2, which answer a ping"),
        ],
        |()| lab.node(2).flanneld().start().unwrap(),
    )
}

#[test]
fn an_address_of_the_tunnel_that_somebody_takes_again_and_again_is_named() -> Result<()> {
    let lab = started()?;
    let entry = format!("{}/32 dev flannel.1", tunnel_end(&lab, 2));
    let what = format!("address {entry}, for this node");
    is_named_in_time(
        &lab,
        || again_and_again(&lab, 2, &format!("ip addr del {entry}")),
        &[
            status(
                2,
                "entries",
                "changed by somebody else again and again",
                "stop whoever does that",
            ),
            check(2, "entries", &what, "stop whoever does that"),
            status(1, "entries", "lacks entries that lead to this node", "flannelctl status"),
            also("this node does not have the address that it is to send from"),
        ],
        |vandal| {
            drop(vandal);
            repair(&lab, 2);
        },
    )
}

#[test]
fn a_route_back_that_strict_rp_filter_does_not_like_is_named() -> Result<()> {
    let lab = started()?;
    is_named_in_time(
        &lab,
        || {
            shell(
                &lab,
                1,
                "sysctl -qw net.ipv4.conf.all.rp_filter=1; ip link add other type bridge; ip link set other up; \
                 ip route add 192.168.100.2/32 dev other",
            )
        },
        &[
            check(
                1,
                "rp_filter",
                "drops packets from 192.168.100.2 to 192.168.100.1 that come in by eth0",
                "net.ipv4.conf.eth0.rp_filter=2",
            ),
            status(
                1,
                "underlay",
                "nothing comes back from 192.168.100.2",
                "ip route get 192.168.100.2",
            ),
            also("nothing comes back from 192.168.100.1"),
            also("1 of 2 nodes do not answer a ping"),
        ],
        |()| shell(&lab, 1, "ip link del other; sysctl -qw net.ipv4.conf.all.rp_filter=0"),
    )
}

#[test]
fn a_host_that_does_not_forward_is_named() -> Result<()> {
    let lab = started()?;
    let fix = "sysctl -w net.ipv4.ip_forward=1";
    is_named_in_time(
        &lab,
        || shell(&lab, 1, "sysctl -qw net.ipv4.ip_forward=0"),
        &[
            check(1, "host", "net.ipv4.ip_forward is 0", fix),
            status(1, "host", "net.ipv4.ip_forward is 0", fix),
        ],
        |()| shell(&lab, 1, fix),
    )
}

#[test]
fn a_plugin_that_the_conflist_names_and_that_is_missing_is_named() -> Result<()> {
    let lab = started()?;
    let conflist = r#"{"name":"cbr0","plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}},{"type":"portmap"}]}"#;
    shell(&lab, 1, "mkdir -p /run/plugins /etc/cni/net.d");
    shell(&lab, 1, "for it in flannel bridge host-local portmap; do touch /run/plugins/$it; done");
    lab.node(1).write_file("/etc/cni/net.d/10-flannel.conflist", conflist)?;
    is_named_in_time(
        &lab,
        || shell(&lab, 1, "rm /run/plugins/portmap"),
        &[check(
            1,
            "cni",
            "10-flannel.conflist names the plugin portmap, which is not in /run/plugins",
            "flannel --install /run/plugins",
        )],
        |()| shell(&lab, 1, "touch /run/plugins/portmap"),
    )
}

#[test]
fn two_nodes_with_one_public_address_are_named() -> Result<()> {
    let lab = started()?;
    let flanneld = lab.node(3).flanneld();
    let flags = flanneld.flags();
    let fix = "flanneld --public-ip";
    is_named_in_time(
        &lab,
        || {
            flanneld.stop().unwrap();
            flanneld.add_flag("--public-ip=192.168.100.2");
            flanneld.start().unwrap();
        },
        &[
            check(1, "lease", "announce one public address, 192.168.100.2", fix),
            status(1, "lease", "announce one public address, 192.168.100.2", fix),
            status(2, "lease", "announce one public address, 192.168.100.2", fix),
            status(3, "lease", "announce one public address, 192.168.100.2", fix),
        ],
        |()| {
            flanneld.stop().unwrap();
            flanneld.set_flags(flags);
            flanneld.start().unwrap();
        },
    )
}

#[test]
fn a_store_that_is_away_is_named() -> Result<()> {
    let lab = started()?;
    is_named_in_time(
        &lab,
        || lab.etcd().unwrap().kill(),
        &[
            status(1, "store", "it is unreachable", "flags of flanneld say where it is").remark(),
            check(1, "store", "cannot be asked", "flags of flanneld say where it is"),
        ],
        |()| lab.etcd().unwrap().restart().unwrap(),
    )
}

#[test]
fn a_node_cut_off_from_one_other_is_named() -> Result<()> {
    let lab = started()?;
    is_named_in_time(
        &lab,
        || lab.partition(&[1], &[2]).unwrap(),
        &[
            status(1, "underlay", "nothing comes back from 192.168.100.2", "ping 192.168.100.2"),
            status(2, "underlay", "nothing comes back from 192.168.100.1", "ping 192.168.100.1"),
            check(
                1,
                "reach",
                "1 of 2 nodes do not answer a ping: 192.168.100.2",
                "ping 192.168.100.2",
            ),
            also("1 of 2 nodes do not answer a ping: 192.168.100.1"),
        ],
        |()| {
            let (code, said) = ask(&lab, 3, Diagnostic::Status, &[]);
            assert!(code == 0 && said.contains("the network is healthy\n"), "{said}");
            lab.heal().unwrap();
        },
    )
}
