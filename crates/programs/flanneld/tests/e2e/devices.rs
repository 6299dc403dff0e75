//! The device itself: renamed, put under a bridge, moved away, or with somebody else's in its place. What
//! was ours is taken back; what is not is named, with the fix.

use flannel_lab::{Lab, LabError, Node, Pod, Result, Vandalism};

use crate::support::{
    Kernel, LIMIT, Repairs, both_ways, connected_pods, lab, measured, probe, reach_each_other,
};

/// A network namespace of its own on node 1.
struct Elsewhere<'a>(&'a Node);

impl<'a> Elsewhere<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        lab.node(1).ip("netns add elsewhere")?;
        Ok(Self(lab.node(1)))
    }

    fn take(&self, device: &str) -> Result<()> {
        self.0.ip(&format!("link set {device} netns elsewhere")).map(drop)
    }

    fn links(&self) -> Result<String> {
        self.0.ip("-n elsewhere -o link")
    }

    fn remove(self) -> Result<()> {
        self.0.ip("netns del elsewhere").map(drop)
    }
}

fn two_nodes() -> Result<(Lab, Pod, Pod, Kernel)> {
    let lab = lab(2).ipv6(true).start()?;
    let (one, two) = connected_pods(&lab)?;
    let kernel = Kernel::of(lab.node(1))?;
    Ok((lab, one, two, kernel))
}

/// Waits until the node is not ready, for this reason.
pub(crate) fn not_ready(lab: &Lab, reason: &[&str]) -> Result<()> {
    lab.wait_until("the node to say what is wrong", LIMIT, || {
        let answer = probe(lab, 1, "/readyz")?;
        let (status, why) = answer.map_err(|error| LabError::Spec(error.to_string()))?;
        let told = status == 503 && reason.iter().all(|part| why.contains(part));
        if told { Ok(()) } else { Err(LabError::Spec(format!("{status} {why}"))) }
    })
}

#[test]
fn a_renamed_device_is_taken_back_under_its_name_without_losing_a_packet() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes()?;
    let index = kernel.device("flannel.1").unwrap().index;
    let traffic = both_ways(&lab, &one, &two)?;
    let mut repairs = Repairs::default();
    for (device, to) in [("flannel.1", "x"), ("flannel-v6.1", "y"), ("flannel.1", "flannel.2")] {
        let deed = Vandalism::Rename { device: device.into(), to: to.into() };
        repairs.after(&deed.to_string(), &mut kernel, || lab.node(1).vandalize(&deed))?;
    }
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    repairs.report();
    assert_eq!(kernel.device("flannel.1").unwrap().index, index, "it is the same device");
    let log = lab.node(1).flanneld().log();
    // Nothing but the device was undone.
    let restored: Vec<&str> = log.lines().filter(|line| line.contains("restored")).collect();
    assert_eq!(restored.len(), 3, "{log}");
    assert!(restored.iter().all(|line| line.contains("restored device flannel")), "{log}");
    Ok(())
}

#[test]
fn a_device_renamed_while_no_daemon_ran_is_taken_back_at_its_start() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes()?;
    let (node, before) = (lab.node(1), kernel.held());
    let traffic = both_ways(&lab, &one, &two)?;
    node.flanneld().stop()?;
    node.ip("link set flannel.1 name x")?;
    // Somebody else's thing under its name.
    node.ip("link add flannel.1 type bridge")?;
    node.ip("link set flannel-v6.1 name y")?;
    node.flanneld().restart()?;
    lab.wait_until("all as it was", LIMIT, || {
        let held = kernel.held();
        if held == before { Ok(()) } else { Err(format!("{held:?}")) }
    })?;
    traffic.flow(&lab)?;
    let reports = traffic.stop();
    measured(&reports);
    reports.nothing_is_lost();
    reach_each_other(&lab, &one, &two)
}

#[test]
fn somebody_elses_device_with_our_vni_is_named_with_the_fix() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes()?;
    let (node, before) = (lab.node(1), kernel.held());
    node.flanneld().stop()?;
    node.ip("link del flannel.1")?;
    node.ip("link add theirs type vxlan id 1 dev eth0 dstport 8472 local 192.168.100.1")?;
    node.flanneld().start()?;
    let reason = ["flannel.1", "theirs is in the way", "ip link del theirs", "Backend.VNI"];
    not_ready(&lab, &reason)?;
    let log = node.flanneld().log();
    assert!(reason.iter().all(|part| log.contains(part)), "{log}");
    assert!(!log.contains("restored device flannel.1"), "{log}");
    assert!(node.ip("link show theirs").is_ok(), "it is not ours to remove");
    // As soon as it is gone:
    let mut repairs = Repairs::default();
    repairs.until(
        &lab,
        "theirs removed",
        || node.ip("link del theirs").map(drop),
        || match kernel.held() {
            held if held == before => Ok(()),
            held => Err(format!("{held:?}")),
        },
    )?;
    repairs.report();
    lab.wait_until("the node to be ready", LIMIT, || node.flanneld().is_ready())?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_device_under_a_bridge_is_taken_from_it() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes()?;
    let traffic = both_ways(&lab, &one, &two)?;
    let mut repairs = Repairs::default();
    for device in ["flannel.1", "flannel-v6.1"] {
        let deed = Vandalism::Enslave(device.into());
        repairs.after(&deed.to_string(), &mut kernel, || lab.node(1).vandalize(&deed))?;
    }
    traffic.flow(&lab)?;
    measured(traffic.stop());
    repairs.report();
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_device_moved_into_another_namespace_is_made_anew_with_the_same_mac() -> Result<()> {
    let (lab, one, two, mut kernel) = two_nodes()?;
    let elsewhere = Elsewhere::new(&lab)?;
    let traffic = both_ways(&lab, &one, &two)?;
    let mut repairs = Repairs::default();
    for device in ["flannel.1", "flannel-v6.1"] {
        let what = format!("{device} moved into another namespace");
        repairs.after(&what, &mut kernel, || elsewhere.take(device))?;
    }
    traffic.flow(&lab)?;
    measured(traffic.stop());
    repairs.report();
    let there = elsewhere.links()?;
    assert!(!there.contains("flannel"), "{there}");

    // The same if nobody was there to see it go, and under another name.
    let (node, before) = (lab.node(1), kernel.held());
    node.flanneld().stop()?;
    node.ip("link set flannel.1 name x")?;
    elsewhere.take("x")?;
    node.flanneld().restart()?;
    lab.wait_until("all as it was", LIMIT, || kernel.held() == before)?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_device_of_a_tunnel_moved_into_another_namespace_is_made_again() -> Result<()> {
    for (backend, device) in [("udp", "flannel0"), ("wireguard", "flannel-wg")] {
        let env = ("WIREGUARD_IMPLEMENTATION", "userspace");
        let lab = lab(2).backend(backend).env(env.0, env.1).start()?;
        let (one, two) = connected_pods(&lab)?;
        let (node, elsewhere) = (lab.node(1), Elsewhere::new(&lab)?);
        let mut kernel = Kernel::of(node)?;
        let mut repairs = Repairs::default();
        let what = format!("{device} moved into another namespace");
        repairs.after(&what, &mut kernel, || elsewhere.take(device))?;
        repairs.report();
        reach_each_other(&lab, &one, &two)?;
        let there = elsewhere.links()?;
        assert!(!there.contains("flannel"), "{there}");

        // The same if no daemon was there to see it go, and under another name.
        let before = kernel.held();
        node.flanneld().stop()?;
        node.ip(&format!("link set {device} name x"))?;
        elsewhere.take("x")?;
        node.flanneld().restart()?;
        lab.wait_until("all as it was", LIMIT, || kernel.held() == before)?;
        reach_each_other(&lab, &one, &two)?;
        elsewhere.remove()?;
    }
    Ok(())
}

#[test]
fn somebody_elses_device_in_another_namespace_is_named_with_the_fix() -> Result<()> {
    let lab = lab(2).no_daemons().start()?;
    let (node, elsewhere) = (lab.node(1), Elsewhere::new(&lab)?);
    node.ip("link add theirs type vxlan id 1 dev eth0 dstport 8472 local 192.168.100.1")?;
    elsewhere.take("theirs")?;
    node.flanneld().start()?;
    not_ready(&lab, &["theirs is in the way", "another network namespace", "ip netns list-id"])?;
    elsewhere.remove()?;
    lab.start_daemons()?;
    connected_pods(&lab).map(drop)
}

#[test]
fn a_port_that_another_program_has_is_named_with_the_fix() -> Result<()> {
    let lab = lab(1).no_daemons().start()?;
    let node = lab.node(1);
    let socket = node.in_netns(|| std::net::UdpSocket::bind(("0.0.0.0", 8472)))?.unwrap();
    node.flanneld().start()?;
    not_ready(&lab, &["flannel.1", "UDP port 8472", "ss -ulnp", "Backend.Port"])?;
    drop(socket);
    lab.start_daemons()
}
