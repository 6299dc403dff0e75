//! A node is itself under another address; a copy of it is not, whatever was copied.

use flannel_lab::{Lab, LabBuilder, LabError, Node, Result, SUBNET_ENV};

use crate::support::{
    Kernel, LIMIT, connected_pods, go_flanneld, lab, lease_path, own_key, peer, probe, put_peers,
    reach_each_other,
};

const MOVED: &str = "192.168.100.77";

fn keys(lab: &Lab) -> Result<Vec<String>> {
    Ok(lab.leases()?.into_iter().map(|(key, _)| key).collect())
}

fn addresses(lab: &Lab) -> Result<Vec<String>> {
    let address = |value: &str| {
        let value: serde_json::Value = serde_json::from_str(value).expect("lease attributes");
        value["PublicIP"].as_str().unwrap_or_default().to_owned()
    };
    Ok(lab.leases()?.iter().map(|(_, value)| address(value)).collect())
}

/// The last node gets another address while its daemon is down, and `meanwhile` happens to it.
fn keeps_its_subnet(builder: LabBuilder, meanwhile: impl Fn(&Node) -> Result<()>) -> Result<()> {
    let lab = builder.start()?;
    let (one, two) = connected_pods(&lab)?;
    let (node, before) = (lab.node(2), lab.node(2).read_file(SUBNET_ENV)?);
    let leases = keys(&lab)?;
    node.flanneld().kill9();
    lab.change_address(2, MOVED.parse().unwrap())?;
    meanwhile(node)?;
    node.flanneld().start()?;
    node.flanneld().wait_ready()?;
    assert_eq!(node.read_file(SUBNET_ENV)?, before, "{}", node.flanneld().log());
    assert_eq!(keys(&lab)?, leases, "no second lease:\n{}", node.flanneld().log());
    assert!(addresses(&lab)?.contains(&MOVED.to_owned()), "{:?}", lab.leases()?);
    reach_each_other(&lab, &one, &two)
}

fn nothing(_: &Node) -> Result<()> {
    Ok(())
}

/// What a reboot leaves: neither devices nor what is in `/run`.
pub(crate) fn reboot(node: &Node) -> Result<()> {
    for device in ["flannel.1", "flannel-v6.1"] {
        let _ = node.ip(&format!("link del {device}"));
    }
    node.exec(&["rm", SUBNET_ENV]).map(drop)
}

#[test]
fn a_node_whose_address_changed_while_it_was_down_keeps_its_subnet() -> Result<()> {
    keeps_its_subnet(lab(2), nothing)
}

#[test]
fn so_it_does_with_host_gw() -> Result<()> {
    keeps_its_subnet(lab(2).backend("host-gw"), nothing)
}

#[test]
fn so_it_does_with_a_dual_stack() -> Result<()> {
    keeps_its_subnet(lab(2).ipv6(true), nothing)
}

#[test]
fn so_it_does_with_a_lease_server() -> Result<()> {
    keeps_its_subnet(lab(2).lease_server(), nothing)
}

#[test]
fn so_it_does_when_it_serves_the_leases_itself() -> Result<()> {
    let lab = lab(1).lease_server().start()?;
    let (node, before) = (lab.node(1), own_key(&lab, 1)?);
    node.flanneld().kill9();
    lab.change_address(1, MOVED.parse().unwrap())?;
    node.flanneld().restart()?;
    assert_eq!(own_key(&lab, 1)?, before, "{}", node.flanneld().log());
    assert_eq!(addresses(&lab)?, [MOVED]);
    Ok(())
}

/// Another card, at another address, in a machine that was not switched off.
#[test]
fn so_it_does_with_another_card_if_nobody_has_its_former_address() -> Result<()> {
    keeps_its_subnet(lab(2), |node| {
        node.ip("link set eth0 down")?;
        node.ip("link set eth0 address 02:fb:00:00:00:99")?;
        node.ip("link set eth0 up")?;
        node.ip("route replace default via 192.168.100.254").map(drop)
    })
}

#[test]
fn so_it_does_with_a_lease_server_in_front_of_etcd() -> Result<()> {
    let serving = ["--listen=:10253", "--listen-insecure", "--store=etcd", "--remote=self"];
    let builder = serving.into_iter().fold(lab(2), |lab, flag| lab.node_flag(1, flag));
    keeps_its_subnet(builder.node_flag(2, "--remote=192.168.100.1:10253"), nothing)
}

#[test]
fn so_it_does_with_ipv6_alone() -> Result<()> {
    let lab = lab(2).overlay(flannel_lab::Families::Ipv6).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (node, before) = (lab.node(2), lab.node(2).read_file(SUBNET_ENV)?);
    node.flanneld().kill9();
    lab.change_address(2, "fd00:100::77".parse().unwrap())?;
    reboot(node)?;
    node.flanneld().start()?;
    node.flanneld().wait_ready()?;
    assert_eq!(node.read_file(SUBNET_ENV)?, before, "{}", node.flanneld().log());
    reach_each_other(&lab, &one, &two)
}

#[test]
fn so_it_does_when_it_is_told_to_use_another_of_its_addresses() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (node, before) = (lab.node(2), own_key(&lab, 2)?);
    node.ip(&format!("addr add {MOVED}/24 dev eth0"))?;
    node.exec(&["rm", "-r", "/var/lib/flannel/nodes"])?;
    node.flanneld().add_flag(format!("--public-ip={MOVED}"));
    node.flanneld().restart()?;
    assert_eq!(own_key(&lab, 2)?, before, "{}", node.flanneld().log());
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_subnet_that_an_operator_has_reserved_for_the_new_address_is_taken() -> Result<()> {
    let lab = lab(1).start()?;
    let node = lab.node(1);
    node.flanneld().kill9();
    lab.change_address(1, MOVED.parse().unwrap())?;
    let (key, reserved) =
        ("10.244.60.0-24", format!(r#"{{"PublicIP":"{MOVED}","PublicIPv6":null}}"#));
    lab.etcd()?.put(&crate::support::lease_path(&lab, key), &reserved)?;
    node.flanneld().restart()?;
    assert_eq!(own_key(&lab, 1)?, key, "{}", node.flanneld().log());
    assert!(node.flanneld().log().contains("is reserved for this node's address"));
    Ok(())
}

/// Its address was given to a new node, which has taken its lease by it, as every flannel does.
#[test]
fn a_lease_that_another_node_lives_on_by_now_is_left_to_it() -> Result<()> {
    let lab = lab(3).no_daemons().start()?;
    for node in [1, 2] {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()?;
    }
    let (former, lost) = (lab.node(2).nic().addresses()[0], own_key(&lab, 2)?);
    lab.node(2).flanneld().kill9();
    lab.change_address(2, MOVED.parse().unwrap())?;
    lab.change_address(3, former)?;
    lab.node(3).flanneld().start()?;
    lab.node(3).flanneld().wait_ready()?;
    assert_eq!(own_key(&lab, 3)?, lost, "as with the Go flannel");
    lab.node(2).flanneld().start()?;
    lab.wait_until("another subnet", LIMIT, || own_key(&lab, 2).is_ok_and(|key| key != lost))?;
    lab.node(2).flanneld().wait_ready()?;
    assert_eq!(own_key(&lab, 3)?, lost);
    assert!(lab.node(2).flanneld().log().contains("is leased to"));
    lab.pod_on_every_node()?;
    lab.matrix(LIMIT)?.check()
}

#[test]
fn so_it_does_after_a_reboot() -> Result<()> {
    keeps_its_subnet(lab(2).backend("host-gw"), reboot)?;
    keeps_its_subnet(lab(2), reboot)
}

#[test]
fn so_it_does_when_what_it_kept_of_itself_is_lost_and_nobody_has_its_former_address() -> Result<()>
{
    let forget = |node: &Node| node.exec(&["rm", "-r", "/var/lib/flannel/nodes"]).map(drop);
    keeps_its_subnet(lab(2), forget)?;
    keeps_its_subnet(lab(2).backend("host-gw"), forget)
}

#[test]
fn so_it_does_when_the_go_flannel_had_run_there() -> Result<()> {
    let lab = lab(2).node_flanneld(2, go_flanneld()).start()?;
    let (one, two) = connected_pods(&lab)?;
    let (node, before) = (lab.node(2), own_key(&lab, 2)?);
    node.flanneld().kill9();
    lab.change_address(2, MOVED.parse().unwrap())?;
    node.flanneld().restart_with(crate::support::flanneld())?;
    assert_eq!(own_key(&lab, 2)?, before, "{}", node.flanneld().log());
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_node_of_the_go_flannel_follows_one_that_comes_back_under_another_address() -> Result<()> {
    keeps_its_subnet(lab(2).node_flanneld(1, go_flanneld()), nothing)
}

#[test]
fn nodes_that_have_exchanged_their_addresses_keep_their_subnets() -> Result<()> {
    let lab = lab(3).start()?;
    let pods = (lab.pod(2)?, lab.pod(3)?);
    let before = [own_key(&lab, 2)?, own_key(&lab, 3)?];
    let address = |node: u16| lab.node(node).nic().addresses()[0];
    let (second, third) = (address(2), address(3));
    lab.node(2).flanneld().kill9();
    lab.node(3).flanneld().kill9();
    lab.change_address(2, MOVED.parse().unwrap())?;
    lab.change_address(3, second)?;
    lab.change_address(2, third)?;
    for node in [2, 3] {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()?;
    }
    assert_eq!([own_key(&lab, 2)?, own_key(&lab, 3)?], before);
    assert_eq!(keys(&lab)?.len(), 3, "{:?}", lab.leases()?);
    reach_each_other(&lab, &pods.0, &pods.1)
}

/// Files, and the device with its MAC.
fn make_a_copy(original: &Node, copy: &Node) -> Result<()> {
    copy.write_file(SUBNET_ENV, &original.read_file(SUBNET_ENV)?)?;
    copy.exec(&["mkdir", "-p", "/var/lib/flannel/nodes"])?;
    let files = original.output(&["ls", "/var/lib/flannel/nodes"])?;
    for name in files.stdout.lines() {
        let path = format!("/var/lib/flannel/nodes/{name}");
        copy.write_file(&path, &original.read_file(&path)?)?;
    }
    let Some(device) = Kernel::of(original)?.device("flannel.1") else { return Ok(()) };
    let (mac, local) = (device.mac, copy.nic().addresses()[0]);
    copy.ip(&format!(
        "link add flannel.1 address {mac} type vxlan id 1 local {local} dev eth0 dstport 8472 nolearning"
    ))
    .map(drop)
}

/// Node 3 is a copy of node 2, which lives.
fn is_told_apart(builder: LabBuilder) -> Result<()> {
    let lab = builder.no_daemons().start()?;
    for node in [1, 2] {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()?;
    }
    let (original, copy) = (lab.node(2), lab.node(3));
    let before = lab.leases()?;
    make_a_copy(original, copy)?;
    copy.flanneld().start()?;
    copy.flanneld().wait_ready()?;
    let log = copy.flanneld().log();
    assert_ne!(own_key(&lab, 3)?, own_key(&lab, 2)?, "{log}");
    let after = lab.leases()?;
    assert_eq!(after.len(), 3, "{after:?}");
    assert!(before.iter().all(|lease| after.contains(lease)), "{before:?} became {after:?}");
    assert!(log.contains(&own_key(&lab, 2)?), "it says whose the subnet is:\n{log}");
    lab.pod_on_every_node()?;
    lab.matrix(LIMIT)?.check()?;
    // Both start again and are still two.
    let (leases, files) = (lab.leases()?, [2, 3].map(|node| own_key(&lab, node).unwrap()));
    copy.flanneld().restart()?;
    original.flanneld().restart()?;
    assert_eq!(lab.leases()?, leases);
    assert_eq!([2, 3].map(|node| own_key(&lab, node).unwrap()), files);
    lab.matrix(LIMIT)?.check()
}

#[test]
fn a_copy_of_a_running_node_is_told_from_it() -> Result<()> {
    is_told_apart(lab(3))
}

#[test]
fn a_copy_is_told_from_its_original_with_host_gw() -> Result<()> {
    is_told_apart(lab(3).backend("host-gw"))
}

#[test]
fn a_copy_is_told_from_its_original_by_nodes_of_a_lease_server() -> Result<()> {
    is_told_apart(lab(3).lease_server())
}

/// A lease server over TLS that knows its clients by token; node 3 has that of node 2.
#[test]
fn with_tokens_a_node_keeps_its_subnet_and_a_copy_that_has_its_token_does_not_get_it() -> Result<()>
{
    const TOKEN: &str = "the-token-of-node-2-and-its-copy";
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["192.168.100.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let mut builder = lab(3).lease_server().no_daemons();
    for flag in ["certfile=/run/server.pem", "keyfile=/run/server.key"] {
        builder = builder.node_flag(1, format!("--remote-{flag}"));
    }
    builder = builder.node_flag(1, "--listen-token-file=/run/tokens");
    for node in [2, 3] {
        builder = builder.node_flag(node, "--remote-cafile=/run/server.pem");
        builder = builder.node_env(node, "FLANNELD_REMOTE_TOKEN", TOKEN);
    }
    let lab = builder.start()?;
    for node in lab.nodes() {
        node.write_file("/run/server.pem", &certificate.pem())?;
    }
    lab.node(1).write_file("/run/server.key", &key.serialize_pem())?;
    let line = format!("{} node-2\n", flannel_store::remote::hash_token(TOKEN));
    lab.node(1).write_file("/run/tokens", &line)?;
    for node in [1, 2] {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()?;
    }
    let (original, copy) = (lab.node(2), lab.node(3));
    let before = own_key(&lab, 2)?;
    original.flanneld().kill9();
    lab.change_address(2, MOVED.parse().unwrap())?;
    original.flanneld().start()?;
    original.flanneld().wait_ready()?;
    assert_eq!(own_key(&lab, 2)?, before, "{}", original.flanneld().log());

    make_a_copy(original, copy)?;
    copy.flanneld().start()?;
    copy.flanneld().wait_ready()?;
    assert_ne!(own_key(&lab, 3)?, before, "{}", copy.flanneld().log());
    assert_eq!(own_key(&lab, 2)?, before);
    let log = original.flanneld().log();
    assert!(!log.contains("was written by another node"), "{log}");
    lab.pod_on_every_node()?;
    lab.matrix(LIMIT)?.check()
}

#[test]
fn a_copy_of_a_running_node_of_the_go_flannel_is_told_from_it() -> Result<()> {
    let lab = lab(3).node_flanneld(2, go_flanneld()).no_daemons().start()?;
    for node in [1, 2] {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()?;
    }
    let (original, copy) = (lab.node(2), lab.node(3));
    make_a_copy(original, copy)?;
    copy.flanneld().start()?;
    copy.flanneld().wait_ready()?;
    assert_ne!(own_key(&lab, 3)?, own_key(&lab, 2)?, "{}", copy.flanneld().log());
    lab.pod_on_every_node()?;
    lab.matrix(LIMIT)?.check()
}

#[test]
fn a_store_that_knows_a_former_address_of_a_running_node_is_told_the_present_one() -> Result<()> {
    let lab = lab(2).start()?;
    let (one, two) = connected_pods(&lab)?;
    let before = lab.leases()?;
    lab.change_address(2, MOVED.parse().unwrap())?;
    let told = || addresses(&lab).is_ok_and(|all| all.contains(&MOVED.to_owned()));
    lab.wait_until("the new address", LIMIT, told)?;
    // As a backup would.
    let (key, value) = before.iter().find(|(key, _)| *key == own_key(&lab, 2).unwrap()).unwrap();
    lab.etcd()?.put(&crate::support::lease_path(&lab, key), value)?;
    lab.wait_until("the new address again", LIMIT, told)?;
    assert_eq!(keys(&lab)?.len(), 2, "{}", lab.node(2).flanneld().log());
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_subnet_file_with_the_subnet_of_another_node_is_removed_though_no_other_is_free() -> Result<()>
{
    let config = r#"{"Network": "10.244.0.0/16", "SubnetMin": "10.244.50.0",
                     "SubnetMax": "10.244.53.0", "Backend": {"Type": "vxlan"}}"#;
    let lab = lab(2).config_json(config).no_daemons().start()?;
    put_peers(&lab, 50..54)?;
    // The machine of node 2 has the address, and says so.
    let theirs = peer(50).1.replace("192.168.100.50", "192.168.100.2");
    lab.etcd()?.put(&lease_path(&lab, "10.244.50.0-24"), theirs)?;
    let node = lab.node(1);
    let stale = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.50.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    node.write_file(SUBNET_ENV, stale)?;
    node.flanneld().start()?;
    lab.wait_until("the node to be without a subnet", LIMIT, || {
        let (status, why) = probe(&lab, 1, "/readyz")?.unwrap_or_default();
        let said = status == 503 && why.contains("out of subnets");
        if said { Ok(()) } else { Err(LabError::Spec(why)) }
    })?;
    let log = node.flanneld().log();
    assert!(log.contains("10.244.50.0-24 that this node had is leased to 192.168.100.2"), "{log}");
    assert!(node.read_file(SUBNET_ENV).is_err(), "no pod gets an address of another's subnet");
    lab.etcd()?.delete(&lease_path(&lab, &peer(52).0))?;
    node.flanneld().wait_ready()?;
    assert_eq!(own_key(&lab, 1)?, "10.244.52.0-24");
    assert!(node.read_file(SUBNET_ENV)?.contains("10.244.52.1/24"));

    // Another node takes it while this one runs.
    let theirs = peer(52).1.replace("192.168.100.52", "192.168.100.2");
    lab.etcd()?.put(&lease_path(&lab, "10.244.52.0-24"), theirs)?;
    lab.wait_until("the file to go", LIMIT, || node.read_file(SUBNET_ENV).is_err())?;
    lab.etcd()?.delete(&lease_path(&lab, &peer(51).0))?;
    lab.wait_until("the file of another subnet", LIMIT, || {
        node.read_file(SUBNET_ENV).is_ok_and(|file| file.contains("10.244.51.1/24"))
    })
}

/// What a node has lost is said, and does not cut its pods off from each other.
#[test]
fn a_peers_lease_does_not_take_the_place_of_a_connected_route() -> Result<()> {
    for metric in ["10.244.0.0/16", "10.240.0.0/12"] {
        let config = format!(
            r#"{{"Network": "{metric}", "SubnetLen": 24, "SubnetMin": "10.244.1.0",
            "SubnetMax": "10.244.20.0", "Backend": {{"Type": "vxlan"}}}}"#
        );
        let lab = lab(1).config_json(&config).no_daemons().start()?;
        let node = lab.node(1);
        node.ip("link add lan0 type bridge")?;
        node.ip("addr add 10.244.50.9/24 dev lan0")?;
        node.ip("link set lan0 up")?;
        clash(&lab, "10.244.50.0-24", "10.244.50.0/24 dev lan0", 503)?;
    }
    Ok(())
}

/// A peer comes, with the subnet `key`: the connected route stays as it is, and is named.
fn clash(lab: &Lab, key: &str, route: &str, status: u16) -> Result<()> {
    clash_with(lab, key, &crate::support::peer(50).1, route, status)
}

fn clash_with(lab: &Lab, key: &str, value: &str, route: &str, status: u16) -> Result<()> {
    let node = lab.node(1);
    let connected = |node: &Node| -> Result<Vec<String>> {
        let routes = node.ip("-4 route show proto kernel")?;
        Ok(routes.lines().map(|line| line.trim().to_owned()).collect())
    };
    let before = connected(node)?;
    node.flanneld().start()?;
    node.flanneld().wait_ready()?;
    lab.etcd()?.put(&crate::support::lease_path(lab, key), value)?;
    let said = || {
        let (found, why) = probe(lab, 1, "/readyz")?.unwrap_or_default();
        let said = found == status && why.contains(key) && why.contains(route);
        if said { Ok(()) } else { Err(LabError::Spec(format!("{found} {why}"))) }
    };
    lab.wait_until("the probe to name lease and route", LIMIT, said)?;
    let log = node.flanneld().log();
    assert!(log.contains(key) && log.contains(route), "{log}");
    let kept = connected(node)?;
    assert!(before.iter().all(|line| kept.contains(line)), "{before:?} became {kept:?}");
    node.flanneld().kill9();
    node.flanneld().start()?;
    lab.wait_until("the probe to name it after a restart", LIMIT, said)?;
    let kept = connected(node)?;
    assert!(before.iter().all(|line| kept.contains(line)), "{before:?} became {kept:?}");
    lab.etcd()?.delete(&crate::support::lease_path(lab, key))?;
    lab.wait_until("readiness", LIMIT, || {
        let (found, why) = probe(lab, 1, "/readyz")?.unwrap_or_default();
        let ready = found == 200 && !why.contains(key);
        if ready { Ok(()) } else { Err(LabError::Spec(format!("{found} {why}"))) }
    })
}

fn with_bridge(address: &str) -> Result<Lab> {
    let config = r#"{"Network": "10.244.0.0/16", "SubnetMin": "10.244.1.0",
                     "SubnetMax": "10.244.20.0", "Backend": {"Type": "vxlan"}}"#;
    let lab = lab(1).config_json(config).no_daemons().start()?;
    let node = lab.node(1);
    node.ip("link add br-test type bridge")?;
    node.ip(&format!("addr add {address} dev br-test"))?;
    node.ip("link set br-test up")?;
    Ok(lab)
}

#[test]
fn a_network_of_the_card_is_not_taken_from_it_with_host_gw_either() -> Result<()> {
    let config = r#"{"Network": "10.244.0.0/16", "SubnetMin": "10.244.1.0",
                     "SubnetMax": "10.244.20.0", "Backend": {"Type": "host-gw"}}"#;
    let lab = lab(1).config_json(config).no_daemons().start()?;
    lab.node(1).ip("addr add 10.244.50.9/24 dev eth0")?;
    let (key, value) = crate::support::peer(50);
    clash_with(&lab, &key, &value.replace("vxlan", "host-gw"), "10.244.50.0/24 dev eth0", 503)
}

#[test]
fn a_peers_subnet_around_our_own_address_is_refused() -> Result<()> {
    clash(&with_bridge("10.244.50.1/20")?, "10.244.50.0-24", "10.244.48.0/20 dev br-test", 503)
}

#[test]
fn a_connected_route_inside_a_peers_subnet_is_named() -> Result<()> {
    clash(&with_bridge("10.244.50.65/26")?, "10.244.50.0-24", "10.244.50.64/26 dev br-test", 503)
}

#[test]
fn a_peers_subnet_in_an_unused_part_of_a_connected_network_is_used_and_named() -> Result<()> {
    let lab = with_bridge("10.244.48.1/20")?;
    clash(&lab, "10.244.50.0-24", "10.244.48.0/20 dev br-test", 200)?;
    lab.etcd()?
        .put(&crate::support::lease_path(&lab, "10.244.50.0-24"), &crate::support::peer(50).1)?;
    lab.wait_until("the route", LIMIT, || {
        lab.node(1).ip("route").is_ok_and(|all| all.contains("10.244.50.0/24 via"))
    })
}

#[test]
fn a_bridge_that_comes_later_has_its_route_for_itself() -> Result<()> {
    let lab = with_bridge("10.99.0.1/24")?;
    let node = lab.node(1);
    crate::support::put_peers(&lab, 50..52)?;
    node.flanneld().start()?;
    node.flanneld().wait_ready()?;
    node.ip("addr add 10.244.50.1/24 dev br-test")?;
    let routes = || node.ip("route show 10.244.50.0/24");
    lab.wait_until("the bridge's route alone", LIMIT, || {
        let routes = routes()?;
        let alone = routes.contains("dev br-test") && !routes.contains("flannel.1");
        if alone { Ok(()) } else { Err(LabError::Spec(routes)) }
    })?;
    node.ip("addr del 10.244.50.1/24 dev br-test")?;
    lab.wait_until("the peer's route again", LIMIT, || {
        let routes = routes()?;
        if routes.contains("dev flannel.1") { Ok(()) } else { Err(LabError::Spec(routes)) }
    })?;
    node.flanneld().wait_ready()
}
