//! Two machines with one public address: the second to start takes no lease, and says why.

use flannel_lab::{Families, Lab, LabBuilder, Result, SUBNET_ENV};

use crate::support::{LIMIT, go_flanneld, lab, own_key, probe};

/// Node 2 is told to announce the address of node 1, which runs, and gets its lease when that one has gone.
fn refuses_the_address_of_another(builder: LabBuilder) -> Result<()> {
    let lab = builder.no_daemons().start()?;
    let (first, second) = (lab.node(1), lab.node(2));
    first.flanneld().start()?;
    first.flanneld().wait_ready()?;
    let (before, key) = (lab.leases()?, own_key(&lab, 1)?);
    // As on a copy of the first.
    second.write_file(SUBNET_ENV, &first.read_file(SUBNET_ENV)?)?;
    second.flanneld().start()?;
    lab.wait_until("the second to refuse", LIMIT, || match probe(&lab, 2, "/readyz") {
        Ok(Ok((503, why))) if why.contains("is of another node that is running") => Ok(()),
        other => Err(format!("{other:?}\n{}", second.flanneld().log())),
    })?;
    assert!(second.read_file(SUBNET_ENV).is_err(), "no pod gets an address of the first's subnet");
    assert_eq!(lab.leases()?, before, "the first keeps what it has");
    assert!(!second.flanneld().log().contains("Lease acquired"), "{}", second.flanneld().log());
    // A machine that is replaced by another one at its address.
    first.flanneld().kill9();
    first.ip("link set eth0 down")?;
    lab.wait_until("the lease of a machine that is gone", LIMIT, || {
        own_key(&lab, 2).is_ok_and(|taken| taken == key)
    })
}

#[test]
fn a_node_refuses_the_address_of_another_that_runs() -> Result<()> {
    refuses_the_address_of_another(lab(2).node_flag(2, "--public-ip=192.168.100.1"))
}

#[test]
fn a_node_refuses_the_address_of_another_that_runs_the_go_flannel() -> Result<()> {
    let lab = lab(2).node_flanneld(1, go_flanneld()).node_flag(2, "--public-ip=192.168.100.1");
    refuses_the_address_of_another(lab)
}

/// The machines that have one address are beside the lease server here.
#[test]
fn a_node_of_a_lease_server_refuses_the_address_of_another_that_runs() -> Result<()> {
    let lab = lab(3).lease_server().no_daemons().node_flag(3, "--public-ip=192.168.100.2");
    let lab = lab.backend("udp").start()?;
    for node in [1, 2] {
        lab.node(node).flanneld().start()?;
        lab.node(node).flanneld().wait_ready()?;
    }
    let before = lab.leases()?;
    lab.node(3).flanneld().start()?;
    lab.wait_until("it to refuse", LIMIT, || match probe(&lab, 3, "/readyz") {
        Ok(Ok((503, why))) if why.contains("is of another node that is running") => Ok(()),
        other => Err(format!("{other:?}\n{}", lab.node(3).flanneld().log())),
    })?;
    assert_eq!(lab.leases()?, before);
    Ok(())
}

/// Both cards have the address, as after a mistake with DHCP.
#[test]
fn a_node_whose_address_another_machine_on_the_link_has_refuses_its_lease() -> Result<()> {
    let lab = lab(2).no_daemons().node_flag(2, "--public-ip=192.168.100.1").start()?;
    refuses_an_address_on_the_link(&lab, "192.168.100.1/32")
}

#[test]
fn a_node_whose_ipv6_address_another_machine_on_the_link_has_refuses_its_lease() -> Result<()> {
    let lab = lab(2).underlay(Families::Ipv6).overlay(Families::Ipv6).no_daemons();
    let lab = lab.backend("udp").node_flag(2, "--public-ipv6=fd00:100::1").start()?;
    refuses_an_address_on_the_link(&lab, "fd00:100::1/128 nodad")
}

/// Node 2 has the address of node 1, which runs, on its own card: it takes no lease, and says which machine has it.
fn refuses_an_address_on_the_link(lab: &Lab, address: &str) -> Result<()> {
    lab.node(1).flanneld().start()?;
    lab.node(1).flanneld().wait_ready()?;
    let before = lab.leases()?;
    lab.node(2).ip(&format!("addr add dev eth0 {address}"))?;
    lab.node(2).flanneld().start()?;
    lab.wait_until("it to refuse", LIMIT, || match probe(lab, 2, "/readyz") {
        Ok(Ok((503, why))) if why.contains("the machine with the hardware address") => Ok(()),
        other => Err(format!("{other:?}\n{}", lab.node(2).flanneld().log())),
    })?;
    assert_eq!(lab.leases()?, before);
    Ok(())
}
