//! ipip, in a kernel that has it: `scripts/vm` runs these. And what is said of one that has not.

use flannel_lab::{LabBuilder, Result};
use serde_json::json;

use crate::mixed::{leavers_leave_nothing, move_there_and_back, talk};
use crate::restart::nothing_is_lost;
use crate::support::{Kernel, LIMIT, connected_pods, lab, probe, reach_each_other};
use crate::vandalism::every_deed;

fn direct(builder: LabBuilder) -> LabBuilder {
    builder.backend_json(json!({"Type": "ipip", "DirectRouting": true}))
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn restarts_lose_nothing_with_ipip() -> Result<()> {
    nothing_is_lost(lab(2).backend("ipip"), &["flannel.ipip"])
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn everything_removed_or_altered_comes_back_with_ipip() -> Result<()> {
    every_deed(lab(2).backend("ipip"), |lab| {
        let v4 = lab.node(2).subnet_env().unwrap().subnet.unwrap().trunc();
        let device = "ip link set dev flannel.ipip type ipip";
        vec![
            format!("ip route replace {v4} via 192.168.100.254 dev eth0"),
            format!("ip route replace {v4} via 192.168.100.99 dev flannel.ipip onlink proto 244"),
            format!("ip route replace blackhole {v4}"),
            "ip route add 10.244.250.0/24 dev flannel.ipip".to_owned(),
            "ip addr add 10.244.250.1/32 dev flannel.ipip".to_owned(),
            "ip route flush dev flannel.ipip".to_owned(),
            "ip addr flush dev flannel.ipip".to_owned(),
            format!("{device} local 192.168.100.77 remote any"),
            format!("{device} local 192.168.100.1 remote any ttl 9 pmtudisc"),
            format!("{device} local 192.168.100.1 remote any dev eth0"),
        ]
    })
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn pods_of_both_talk_over_ipip_and_direct_routes() -> Result<()> {
    // Nodes 1 and 2 share a segment, node 3 is behind the router.
    talk(direct(lab(3).segments(2).segment_of(2, 0)))
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn a_node_moves_from_go_to_ours_and_back_with_ipip() -> Result<()> {
    move_there_and_back(lab(2).backend("ipip"), &["flannel.ipip"])
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn flannel_2554_what_go_left_of_peers_that_left_is_removed_with_ipip() -> Result<()> {
    // Over direct routes, which are not on a device of flannel's.
    leavers_leave_nothing(direct(lab(3)))
}

#[test]
#[ignore = "needs a kernel with ipip: scripts/vm has one"]
fn a_device_of_another_kind_under_its_name_makes_way() -> Result<()> {
    let lab = lab(2).backend("ipip").no_daemons().start()?;
    lab.node(1).ip("link add flannel.ipip type dummy")?;
    // The tunnel of all tunnels, which is not flannel's.
    lab.node(1).ip("link set tunl0 up")?;
    lab.start_daemons()?;
    let (one, two) = connected_pods(&lab)?;
    assert!(lab.node(1).ip("link show tunl0")?.contains("UP"));
    let kernel = &mut Kernel::of(lab.node(1))?;
    // Another backend for the whole network: its device goes with it.
    lab.put_config(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#)?;
    lab.wait_until("flannel.ipip to go", LIMIT, || kernel.device("flannel.ipip").is_none())?;
    reach_each_other(&lab, &one, &two)
}

#[test]
fn a_kernel_without_the_devices_of_a_backend_is_told_of_with_the_fix() -> Result<()> {
    for kind in ["ipip", "wireguard"] {
        let lab = lab(1).backend(kind).no_daemons().start()?;
        let node = lab.node(1);
        let has_it = node.output(&["ip", "link", "add", "probe0", "type", kind])?.status.success();
        if has_it {
            node.ip("link del probe0")?;
        }
        let (status, words) = if has_it {
            (200, String::new())
        } else {
            (503, format!("this kernel has no {kind} devices; load its module (modprobe {kind})"))
        };
        // A process of ours would speak WireGuard in the kernel's place.
        node.flanneld().set_env("WIREGUARD_IMPLEMENTATION", "kernel");
        node.flanneld().start()?;
        lab.wait_until("an answer", LIMIT, || match probe(&lab, 1, "/readyz")? {
            Ok((found, text)) if found == status && text.contains(&words) => Ok(()),
            other => Err(flannel_lab::LabError::Spec(format!("{other:?}"))),
        })?;
    }
    Ok(())
}
