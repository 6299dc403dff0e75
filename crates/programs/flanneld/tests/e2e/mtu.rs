//! The MTU: what the network card carries is what there is, and everybody is told the same number.

use std::time::Duration;

use flannel_lab::{Lab, Result};
use serde_json::json;

use crate::support::{Kernel, LIMIT, connected_pods, lab, probe, reach_each_other};

/// Waits until device and subnet file of node 1 have this MTU, and stay so.
fn settles_at(lab: &Lab, device: &str, mtu: u32, pods: u32) -> Result<()> {
    let mut kernel = Kernel::of(lab.node(1))?;
    lab.wait_until(&format!("{device} and the subnet file to say {mtu}, {pods}"), LIMIT, || {
        let (there, told) = (kernel.device(device).map(|d| d.mtu), lab.node(1).subnet_env()?.mtu);
        if there == Some(mtu) && told == pods {
            return Ok(());
        }
        Err(flannel_lab::LabError::Spec(format!("{there:?} {told}")))
    })?;
    let index = kernel.device(device).map(|device| device.index);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(kernel.device(device).map(|device| device.index), index, "it was made anew");
    Ok(())
}

fn remarks(lab: &Lab) -> usize {
    lab.node(1).flanneld().log().matches("Backend.MTU is").count()
}

fn nobody_is_accused(lab: &Lab) {
    let log = lab.node(1).flanneld().log();
    for accusation in ["somebody", "restored device", "again and again", "recreating "] {
        assert!(!log.contains(accusation), "{accusation}:\n{log}");
    }
}

#[test]
fn an_mtu_that_the_card_cannot_carry_is_said_once_and_what_fits_is_used() -> Result<()> {
    let lab = lab(2).backend_json(json!({"Type": "vxlan", "MTU": 9000})).start()?;
    let (one, two) = connected_pods(&lab)?;
    settles_at(&lab, "flannel.1", 1450, 1450)?;
    let log = lab.node(1).flanneld().log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("Backend.MTU is")).collect();
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains("9000") && said[0].contains("eth0 carries 1500"), "{log}");
    assert_eq!(probe(&lab, 1, "/readyz")?.unwrap().0, 200);

    // The card is given another, less or more than that, later: it is followed.
    for (card, device) in [(1400, 1350), (9000, 8950), (65000, 8950), (1500, 1450)] {
        lab.node(1).ip(&format!("link set eth0 mtu {card}"))?;
        settles_at(&lab, "flannel.1", device, device)?;
    }
    assert_eq!(remarks(&lab), 3, "once for each that is too little");
    nobody_is_accused(&lab);
    reach_each_other(&lab, &one, &two)
}

#[test]
fn an_mtu_that_the_card_cannot_carry_is_lowered_for_both_families() -> Result<()> {
    let lab = lab(1).ipv6(true).backend_json(json!({"Type": "vxlan", "MTU": 9000})).start()?;
    settles_at(&lab, "flannel.1", 1450, 1430)?;
    settles_at(&lab, "flannel-v6.1", 1430, 1430)?;
    nobody_is_accused(&lab);

    // Too little for IPv6: what is there stays, and that is said.
    lab.node(1).ip("link set eth0 mtu 1300")?;
    lab.wait_until("the node to say so", LIMIT, || {
        let (status, why) = probe(&lab, 1, "/readyz").unwrap().unwrap();
        let told = status == 503 && why.contains("1280") && why.contains("raise the MTU of eth0");
        if told { Ok(()) } else { Err(format!("{status} {why}")) }
    })?;
    lab.node(1).ip("link set eth0 mtu 1500")?;
    lab.wait_until("the node to be ready again", LIMIT, || lab.node(1).flanneld().is_ready())?;
    settles_at(&lab, "flannel-v6.1", 1430, 1430)
}

#[test]
fn an_mtu_that_a_config_raises_beyond_the_card_changes_nothing() -> Result<()> {
    let lab = lab(2).start()?;
    connected_pods(&lab)?;
    let config =
        |mtu| json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "MTU": mtu}});
    for (asked, device) in [(9000, 1450), (1450, 1400), (8000, 1450)] {
        lab.put_config(&config(asked).to_string())?;
        settles_at(&lab, "flannel.1", device, device)?;
    }
    lab.wait_until("both to be said", LIMIT, || remarks(&lab) == 2)?;
    nobody_is_accused(&lab);
    Ok(())
}
