//! Addresses that an operator writes into a Node.

use std::time::{Duration, Instant};

use flannel_lab::Result;

use crate::support::{Kube, key, kube, name};

/// Three times the longest pause between two corrections of a node's own annotations.
const SOON: Duration = Duration::from_secs(15);

/// How node 2 is known in a family: by its own address, or by another one that it has too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeAddress {
    pub(crate) annotation: &'static str,
    pub(crate) overwrite: &'static str,
    pub(crate) own: &'static str,
    pub(crate) other: &'static str,
    length: u8,
    device: &'static str,
}

pub(crate) const V4: NodeAddress = NodeAddress {
    annotation: "public-ip",
    overwrite: "public-ip-overwrite",
    own: "192.168.100.2",
    other: "192.168.100.102",
    length: 24,
    device: "flannel.1",
};

pub(crate) const V6: NodeAddress = NodeAddress {
    annotation: "public-ipv6",
    overwrite: "public-ipv6-overwrite",
    own: "fd00:100::2",
    other: "fd00:100::102",
    length: 64,
    device: "flannel-v6.1",
};

impl NodeAddress {
    /// Node 2 has both from now on, and takes the first for its own.
    pub(crate) fn add_other(&self, kube: &Kube) -> Result<()> {
        let (other, length) = (self.other, self.length);
        let nodad = if other.contains(':') { " nodad" } else { "" };
        kube.lab.node(2).ip(&format!("address add {other}/{length} dev eth0{nodad}"))?;
        kube.replace_flag(2, &format!("--{}", self.annotation), self.own);
        Ok(())
    }

    /// Writes or removes the address of the operator.
    pub(crate) fn overwrite(&self, kube: &Kube, with: Option<&str>) {
        kube.server.annotate(&name(2), &key(self.overwrite), with);
    }

    /// Waits until the Node announces this address and node 1 sends there.
    pub(crate) fn wait_for(&self, kube: &Kube, address: &str) -> Result<()> {
        kube.wait(&format!("node 2 to be known at {address}"), || {
            let fdb = kube.lab.node(1).exec(&["bridge", "fdb", "show", "dev", self.device]);
            let sent_to = fdb.is_ok_and(|fdb| fdb.contains(&format!("dst {address} ")));
            sent_to && kube.annotation(2, self.annotation).as_deref() == Some(address)
        })
    }
}

fn is_announced_and_sent_to(kube: &Kube, known: NodeAddress) -> Result<()> {
    known.add_other(kube)?;
    known.overwrite(kube, Some(known.other));
    kube.lab.start_daemons()?;
    assert_eq!(kube.annotation(2, known.annotation).as_deref(), Some(known.other));
    known.wait_for(kube, known.other)?;
    let (one, two) = kube.connected_pods(1, 2)?;

    // And taken back, and changed, while all is running.
    known.overwrite(kube, None);
    known.wait_for(kube, known.own)?;
    kube.reach(&one, &two)?;

    // What is not an address is said and not announced.
    known.overwrite(kube, Some("nonsense"));
    kube.logged(2, &[known.overwrite, "nonsense"])?;
    assert_eq!(kube.annotation(2, known.annotation).as_deref(), Some(known.own));
    Ok(())
}

#[test]
fn an_overwritten_public_address_is_announced_and_sent_to() -> Result<()> {
    is_announced_and_sent_to(&kube(2).with_nodes()?, V4)
}

#[test]
fn an_overwritten_public_ipv6_address_is_announced_and_sent_to() -> Result<()> {
    let kube = kube(2).dual().with_nodes()?;
    is_announced_and_sent_to(&kube, V6)?;
    assert_eq!(kube.annotation(2, V4.annotation).as_deref(), Some(V4.own), "it was not written");
    Ok(())
}

/// An address that is changed again, or a fight for annotations, is not waited out for half a minute.
#[test]
fn an_overwrite_is_followed_each_time_and_a_storm_of_annotations_is_put_right_soon() -> Result<()> {
    let kube = kube(2).start()?;
    for last in [102, 103, 104] {
        let address = format!("192.168.100.{last}");
        let began = Instant::now();
        V4.overwrite(&kube, Some(&address));
        V4.wait_for(&kube, &address)?;
        assert!(began.elapsed() < SOON, "{address} is followed after {:?}", began.elapsed());
    }
    V4.overwrite(&kube, None);
    V4.wait_for(&kube, V4.own)?;
    let mac = kube.annotation(2, "backend-data");
    for round in 0..30 {
        let wrong = format!("192.168.100.{}", 110 + round);
        kube.server.annotate(&name(2), &key(V4.annotation), Some(&wrong));
        let wrong = format!(r#"{{"VNI":1,"VtepMAC":"02:11:22:33:44:{round:02}"}}"#);
        kube.server.annotate(&name(2), &key("backend-data"), Some(&wrong));
    }
    let began = Instant::now();
    V4.wait_for(&kube, V4.own)?;
    kube.wait("its MAC to be announced again", || kube.annotation(2, "backend-data") == mac)?;
    assert!(began.elapsed() < SOON, "it is put right after {:?}", began.elapsed());
    Ok(())
}

/// The Go flannel goes on without it when the API server does not answer at that moment.
#[test]
fn an_address_in_the_node_counts_more_than_the_flag_and_is_waited_for() -> Result<()> {
    let mut kube = kube(2).with_nodes()?;
    kube.lab.node(1).ip("address add 192.168.100.101/24 dev eth0")?;
    kube.server.annotate(&name(1), &key("node-public-ip"), Some("192.168.100.101"));
    kube.replace_flag(1, "--public-ip", "192.168.100.1");
    kube.server.kill();
    kube.lab.node(1).flanneld().start()?;
    kube.logged(1, &["Cannot ask for this node's public addresses", "no answer"])?;
    kube.server.restart();
    kube.lab.start_daemons()?;
    assert_eq!(kube.annotation(1, "public-ip").as_deref(), Some("192.168.100.101"));
    kube.connected_pods(1, 2)?;
    Ok(())
}

#[test]
fn addresses_of_both_families_in_the_node_count_more_than_the_flags() -> Result<()> {
    let kube = kube(2).dual().with_nodes()?;
    for known in [V4, V6] {
        known.add_other(&kube)?;
        let annotation = format!("node-{}", known.annotation);
        kube.server.annotate(&name(2), &key(&annotation), Some(known.other));
    }
    kube.lab.start_daemons()?;
    for known in [V4, V6] {
        known.wait_for(&kube, known.other)?;
    }
    kube.connected_pods(1, 2)?;
    Ok(())
}
