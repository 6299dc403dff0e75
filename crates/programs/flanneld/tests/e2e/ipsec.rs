//! ipsec, in a kernel that has it and with strongSwan's charon: `scripts/vm` runs these. And what is said
//! where there is none.

use std::path::Path;
use std::time::Duration;

use flannel_ipsec::vici::{Message, Vici};
use flannel_lab::{LabBuilder, LabError, Node, PingOptions, Result, Vandalism};
use serde_json::{Value, json};

use crate::mixed::leases_for_both;
use crate::probing::flannelctl;
use crate::restart::nothing_is_lost;
use crate::support::{
    Capture, Kernel, LIMIT, both_ways, connected_pods, flanneld, go_flanneld, lab, lease_path,
    measured, own_key, probe, reach_each_other,
};
use crate::vandalism::every_deed;

const PSK: &str = "96-bytes-that-nobody-guesses-7f3a9c51d0e84b26-and-some-more-of-them-2b8e6d4f10a7c953-that-is-it.";
const SOCKET: &str = "/var/run/charon.vici";
const NOTE: &str = "/run/flannel/charon.pid";

fn backend() -> Value {
    json!({"Type": "ipsec", "PSK": PSK})
}

fn ipsec(nodes: u16) -> LabBuilder {
    lab(nodes).backend_json(backend())
}

fn config(backend: Value) -> String {
    json!({"Network": "10.244.0.0/16", "Backend": backend}).to_string()
}

/// The process of the charon that flannel started on a node.
fn charon(node: &Node) -> Result<String> {
    let note = node.read_file(NOTE)?;
    Ok(note.lines().next().unwrap_or_default().to_owned())
}

fn tell_charon(
    node: &Node,
    command: &'static str,
    message: &Message,
) -> std::result::Result<Message, String> {
    let tell = || {
        let mut vici = Vici::connect(Path::new(SOCKET)).map_err(|error| error.to_string())?;
        vici.command(command, message).map_err(|error| error.to_string())
    };
    node.in_netns(tell).unwrap()
}

/// What charon answers to a question without details, as a list.
fn listed(
    node: &Node,
    command: &'static str,
    name: &str,
) -> std::result::Result<Vec<String>, String> {
    Ok(tell_charon(node, command, &Message::default())?.get_list(name).to_vec())
}

fn has(node: &Node, connections: usize, secrets: usize) -> std::result::Result<(), String> {
    let (loaded, shared) =
        (listed(node, "get-conns", "conns")?, listed(node, "get-shared", "keys")?);
    if (loaded.len(), shared.len()) == (connections, secrets) {
        return Ok(());
    }
    Err(format!("{loaded:?} {shared:?}"))
}

/// Whether charon has tunnels and is not about to agree on any.
fn has_negotiated(node: &Node) -> std::result::Result<(), String> {
    let told = node
        .in_netns(|| {
            let mut vici = Vici::connect(Path::new(SOCKET)).map_err(|error| error.to_string())?;
            let all = vici.list("list-sas", "list-sa", &Message::default());
            all.map_err(|error| error.to_string())
        })
        .map_err(|error| error.to_string())??;
    let has_tunnel = |ike: &Message| {
        let mut tunnels = ike.get_section("child-sas").into_iter().flat_map(Message::sections);
        tunnels.any(|(_, tunnel)| tunnel.get_text("state") == Some("INSTALLED"))
    };
    let is_done = |ike: &Message| ike.get_text("state") == Some("ESTABLISHED") && has_tunnel(ike);
    let all: Vec<&Message> = told.iter().flat_map(Message::sections).map(|(_, ike)| ike).collect();
    match !all.is_empty() && all.iter().all(|ike| is_done(ike)) {
        true => Ok(()),
        false => Err(format!("{all:?}")),
    }
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn restarts_lose_nothing_with_ipsec() -> Result<()> {
    nothing_is_lost(ipsec(2), &["flannel.ipsec"])
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn everything_removed_or_altered_comes_back_with_ipsec() -> Result<()> {
    every_deed(ipsec(2), |lab| {
        let ours = lab.node(1).subnet_env().unwrap().subnet.unwrap().trunc();
        let theirs = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
        let out = format!("src {ours} dst {theirs} dir out");
        let tunnel = "tmpl src 192.168.100.1 dst 192.168.100.2 proto esp mode tunnel";
        vec![
            "ip xfrm policy flush".to_owned(),
            format!("ip xfrm policy delete {out}"),
            format!("ip xfrm policy delete src {theirs} dst {ours} dir fwd"),
            format!("ip xfrm policy update {out} action block"),
            format!("ip xfrm policy update {out} {tunnel} reqid 12"),
            format!("ip xfrm policy update {out} priority 5 {tunnel} reqid 11"),
            // What nobody wants.
            format!("ip xfrm policy add src {ours} dst 10.244.250.0/24 dir out {tunnel} reqid 11"),
            "ip route del 10.244.0.0/16 dev flannel.ipsec".to_owned(),
            "ip route replace 10.244.0.0/16 via 192.168.100.254 dev eth0".to_owned(),
            "ip addr flush dev flannel.ipsec".to_owned(),
            "ip link set flannel.ipsec mtu 1400".to_owned(),
            "ip xfrm state flush".to_owned(),
        ]
    })
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn defect_50_charon_is_kept_running_and_told_of_all_that_is_wanted() -> Result<()> {
    let lab = ipsec(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;

    let first = charon(node)?;
    let traffic = both_ways(&lab, &one, &two)?;
    node.exec(&["kill", "-9", &first])?;
    lab.wait_until("another charon", LIMIT, || has_other_charon(node, &first))?;
    lab.wait_until("what it is to know", LIMIT, || has(node, 1, 2))?;
    traffic.flow(&lab)?;
    measured(format_args!("charon killed: {}", traffic.stop()));
    let log = node.flanneld().log();
    assert!(log.contains("charon: it has ended (signal: 9 (SIGKILL)); starting it again"), "{log}");
    // Those of the old one serve until there are new ones, and go then.
    lab.wait_until("only known tunnels", LIMIT, || match kernel.tunnels() {
        0..=4 => Ok(()),
        more => Err(format!("{more} tunnels")),
    })?;

    // Somebody else at the controls.
    let name = listed(node, "get-conns", "conns").unwrap()[0].clone();
    let of = |key: &str, value: &str| Message::default().text(key, value);
    for (command, message) in [
        ("unload-conn", of("name", &name)),
        ("unload-shared", of("id", "flannel-192.168.100.2")),
        ("terminate", of("ike", &name).text("force", "yes")),
    ] {
        tell_charon(node, command, &message).unwrap();
        lab.wait_until(command, LIMIT, || has(node, 1, 2))?;
        reach_each_other(&lab, &one, &two)?;
    }
    tell_charon(node, "clear-creds", &Message::default()).unwrap();
    lab.wait_until("the secrets again", LIMIT, || has(node, 1, 2))?;

    // A peer that leaves takes everything along: policies, connection, secret, tunnels.
    lab.node(2).flanneld().stop()?;
    lab.etcd()?.delete(&lease_path(&lab, &own_key(&lab, 2)?))?;
    lab.wait_until("nothing of it", LIMIT, || has(node, 0, 1))?;
    lab.wait_until("no tunnels", LIMIT, || match kernel.tunnels() {
        0 => Ok(()),
        some => Err(format!("{some} tunnels")),
    })?;
    let held = kernel.held();
    assert!(!held.iter().any(|line| line.contains("xfrm")), "{held:?}");
    Ok(())
}

fn has_other_charon(node: &Node, first: &str) -> std::result::Result<(), String> {
    match charon(node) {
        Ok(pid) if pid != first => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn whoever_listens_on_the_underlay_can_read_nothing_of_ipsec_at_no_moment() -> Result<()> {
    let lab = ipsec(2).no_daemons().start()?;
    // From the first packet on: pods that are there before the tunnel is.
    lab.start_daemons()?;
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    let capture = Capture::start(&lab, &one, &two)?;
    let traffic = both_ways(&lab, &one, &two)?;
    let node = lab.node(1);
    let mut kernel = Kernel::of(node)?;
    let held = kernel.held();
    assert_eq!(held.iter().filter(|line| line.contains("xfrm policy")).count(), 3, "{held:?}");
    node.flanneld().restart()?;
    node.flanneld().kill9();
    node.flanneld().restart()?;
    node.exec(&["ip", "xfrm", "policy", "flush"])?;
    lab.wait_until("a repair", LIMIT, || kernel.held() == held)?;
    node.vandalize(&Vandalism::LinkDelete("flannel.ipsec".into()))?;
    lab.wait_until("a repair", LIMIT, || kernel.held() == held)?;
    traffic.flow(&lab)?;
    // While nobody is there to repair it.
    node.flanneld().kill9();
    node.exec(&["kill", "-9", &charon(node)?])?;
    node.exec(&["ip", "xfrm", "state", "flush"])?;
    node.exec(&["ip", "xfrm", "policy", "flush"])?;
    std::thread::sleep(Duration::from_secs(1));
    node.flanneld().restart()?;
    traffic.flow(&lab)?;
    measured(traffic.stop());
    let (frames, readable) = capture.stop();
    measured(format_args!("{readable} of {frames} frames readable"));
    assert!(frames > 100 && readable == 0, "{readable} of {frames}");

    // What is looked for would be found. And nothing of the former backend stays.
    let pid = charon(node)?;
    lab.put_config(&config(json!({"Type": "vxlan"})))?;
    lab.wait_until("ipsec to go", LIMIT, || kernel.device("flannel.ipsec").is_none())?;
    let capture = Capture::start(&lab, &one, &two)?;
    reach_each_other(&lab, &one, &two)?;
    assert!(capture.stop().1 > 0);
    lab.wait_until("charon to go", LIMIT, || {
        let runs = node.output(&["kill", "-0", &pid]).unwrap().status.success();
        !runs && node.read_file(NOTE).is_err()
    })?;
    lab.wait_until("the tunnels to go", LIMIT, || kernel.tunnels() == 0)?;
    let held = kernel.held();
    assert!(!held.iter().any(|line| line.contains("xfrm")), "{held:?}");

    lab.put_config(&config(backend()))?;
    lab.wait_until("ipsec again", LIMIT, || kernel.device("flannel.1").is_none())?;
    reach_each_other(&lab, &one, &two)?;

    let log = lab.node(1).flanneld().log() + &lab.node(2).flanneld().log();
    assert!(!log.contains(&PSK[..20]), "a secret is in the log");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn in_udp_too_and_nothing_is_left_after_a_cleanup() -> Result<()> {
    let mut backend = backend();
    backend["UDPEncap"] = json!(true);
    backend["ESPProposal"] = json!("aes256-sha256-ecp256");
    let lab = lab(2).backend_json(backend).start()?;
    let (one, two) = connected_pods(&lab)?;
    assert_eq!(lab.node(1).subnet_env()?.mtu, 1500 - 77 - 8);
    lab.tcp_transfer(&one, &two, 1 << 20)?;
    let node = lab.node(1);
    let states = node.exec(&["ip", "xfrm", "state"])?;
    assert!(states.contains("encap type espinudp") && states.contains("cbc(aes)"));
    // A node speaks to pods of others too.
    lab.ping_address(node, two.v4().unwrap().into(), PingOptions::default())?;

    let pid = charon(node)?;
    node.flanneld().stop()?;
    let flannelctl = flanneld().with_file_name("flannelctl");
    let said = node.exec(&[flannelctl.to_str().unwrap(), "cleanup", "--yes"])?;
    assert!(said.contains("charon (process") && said.contains("xfrm policy out"), "{said}");
    let mut kernel = Kernel::of(node)?;
    assert!(kernel.held().is_empty(), "{:?}", kernel.held());
    assert_eq!(kernel.tunnels(), 0);
    assert!(!node.output(&["kill", "-0", &pid])?.status.success(), "charon runs");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn pods_of_both_talk_over_ipsec_and_a_node_changes_from_go_to_ours_and_back() -> Result<()> {
    let lab = ipsec(2).flanneld(go_flanneld()).no_daemons().start()?;
    for node in lab.nodes() {
        node.flanneld().start()?;
        node.flanneld().wait_ready()?;
    }
    let (one, two) = connected_pods(&lab)?;
    let (node, leases) = (lab.node(1), leases_for_both(&lab)?);
    let mut kernel = Kernel::of(node)?;
    let policies = |kernel: &mut Kernel| -> Vec<String> {
        kernel.held().into_iter().filter(|line| line.contains("xfrm")).collect()
    };
    let (before, env) = (policies(&mut kernel), node.subnet_env()?);
    let flannelctl = flanneld().with_file_name("flannelctl");
    for (who, binary) in
        [("ours", flanneld().to_owned()), ("Go's", go_flanneld()), ("ours", flanneld().to_owned())]
    {
        if who == "Go's" {
            // While our charon runs, the Go flannel's does not.
            node.flanneld().stop()?;
            node.exec(&[flannelctl.to_str().unwrap(), "cleanup", "--yes"])?;
            node.flanneld().restart_with(&binary)?;
            reach_each_other(&lab, &one, &two)?;
        }
        let traffic = both_ways(&lab, &one, &two)?;
        node.flanneld().restart_with(&binary)?;
        traffic.flow(&lab)?;
        measured(format_args!("changed to {who}: {}", traffic.stop()));
        assert_eq!(
            (policies(&mut kernel), leases_for_both(&lab)?),
            (before.clone(), leases.clone())
        );
        assert_eq!(node.subnet_env()?, env);
        lab.tcp_transfer(&one, &two, 1 << 20)?;
    }
    // A charon whose socket is gone makes way for another.
    node.flanneld().stop()?;
    node.exec(&["rm", SOCKET])?;
    node.flanneld().restart()?;
    reach_each_other(&lab, &one, &two)?;
    // Whoever of both starts anew.
    for number in [1, 2] {
        lab.node(number).flanneld().restart()?;
        reach_each_other(&lab, &one, &two)?;
    }
    Ok(())
}

#[test]
fn a_machine_without_charon_is_told_of_with_the_fix() -> Result<()> {
    let lab = ipsec(1).no_daemons().start()?;
    lab.node(1).flanneld().start()?;
    let says = |words: &str| match probe(&lab, 1, "/readyz")? {
        Ok((503, text)) if text.contains(words) => Ok(()),
        other => Err(LabError::Spec(format!("{other:?}"))),
    };
    let there = Path::new("/usr/lib/ipsec/charon").exists();
    assert!(!there, "this machine has a charon, so this test cannot be");
    let log = || {
        let log = lab.node(1).flanneld().log();
        let told = "there is no charon: install strongSwan with its VICI plugin";
        if log.contains(told) { Ok(()) } else { Err(log) }
    };
    lab.wait_until("the log", LIMIT, log)?;
    // The kernel at hand may lack the device too, which comes first.
    lab.wait_until("the probe", LIMIT, || says("charon").or_else(|_| says("flannel.ipsec")))?;
    assert!(!lab.node(1).flanneld().log().contains(&PSK[..20]));
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPsec, and charon: scripts/vm has both"]
fn a_repair_that_is_asked_for_compares_what_charon_knows_too() -> Result<()> {
    let lab = ipsec(2).start()?;
    let node = lab.node(1);
    lab.wait_until("the peer's connection", LIMIT, || has(node, 1, 2))?;
    // While charon negotiates, it answers nobody who asks about that connection: the kernel may load modules first.
    lab.wait_until("charon to have its tunnels", LIMIT, || has_negotiated(node))?;
    lab.wait_until("nothing to differ", LIMIT, || {
        let (is_whole, said) = flannelctl(&lab, 1, &["diff"]);
        if is_whole { Ok(()) } else { Err(LabError::Spec(said)) }
    })?;
    let name = listed(node, "get-conns", "conns").unwrap()[0].clone();
    tell_charon(node, "unload-conn", &Message::default().text("name", &name)).unwrap();
    let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
    assert!(is_whole && said.contains("ipsec: "), "{said}");
    assert_eq!(has(node, 1, 2), Ok(()), "when it has said so, it is there: {said}");
    let (is_whole, said) = flannelctl(&lab, 1, &["diff"]);
    assert!(is_whole, "{said}");
    Ok(())
}
