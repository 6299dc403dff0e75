//! Port mappings as rules. The table, the chains and the comments are those of the Go plugin's
//! nftables flavour, so that it can remove our rules and we its.
//!
//! A connection to a mapped port is sent on to the container, whichever address of the host it came
//! to. One that comes from the container's own network, or from the host's loopback address, would be
//! answered past the host, or not at all: it is marked, and on its way out the host puts itself in
//! between.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::conf::{Mapping, PortmapConf};
use crate::nft::{Batch, Expressions, Family, Field, Hook, Nft, NftError, Verdict};
use crate::protocol::{Attachment, Call};

pub(super) const TABLE: &str = "cni_hostport";
const PORTS: &str = "hostports";
const PORTS_OF_OLD: &str = "hostip_hostports";
const ALL_PORTS: &str = "hostports_all";
const MASQUERADING: &str = "masquerading";
const OWNED: [&str; 3] = [PORTS, PORTS_OF_OLD, MASQUERADING];
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Maps the ports to the container's addresses, in place of what was mapped for it before.
pub(super) fn forward(
    nft: &mut Nft,
    call: &Call,
    conf: &PortmapConf,
    addresses: &[IpNet],
) -> Result<(), NftError> {
    let batch = replacement(own_rules(nft, call)?, call, conf, addresses, false);
    match nft.commit(batch) {
        // It is the first mapping on this host.
        Err(error) if error.is_absence() => {
            let batch = replacement(own_rules(nft, call)?, call, conf, addresses, true);
            nft.commit(batch)
        }
        other => other,
    }
}

/// Removes all that was mapped for a container. Nothing of it needs to be there.
pub(super) fn unforward(nft: &mut Nft, call: &Call) -> Result<(), NftError> {
    let mut batch = Batch::new(Family::Ipv4, TABLE);
    for (family, chain, handle) in own_rules(nft, call)? {
        batch.switch(family, TABLE);
        batch.delete_rule(chain, handle);
    }
    match nft.commit(batch) {
        // Somebody has removed them meanwhile: all of them, or the next try will tell.
        Err(error) if error.is_absence() && own_rules(nft, call)?.is_empty() => Ok(()),
        other => other,
    }
}

/// How many rules of the container there are: those that map, and those that masquerade.
pub(super) fn count(
    nft: &mut Nft,
    call: &Call,
    family: Family,
) -> Result<(usize, usize), NftError> {
    let found: Vec<_> = own_rules(nft, call)?.into_iter().filter(|it| it.0 == family).collect();
    let masquerading = found.iter().filter(|it| it.1 == MASQUERADING).count();
    Ok((found.len() - masquerading, masquerading))
}

/// Removes the rules of this network's containers that live no more. Of rules that the Go plugin made
/// nobody knows the network; they stay.
pub(super) fn collect(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), NftError> {
    let mut batch = Batch::new(Family::Ipv4, TABLE);
    for family in FAMILIES {
        for chain in OWNED {
            for rule in nft.rules(family, TABLE, chain)? {
                let lives = valid
                    .iter()
                    .any(|it| rule.comment.as_deref() == Some(it.container_id.as_str()));
                if rule.network.as_deref() == Some(network) && !lives {
                    batch.switch(family, TABLE);
                    batch.delete_rule(chain, rule.handle);
                }
            }
        }
    }
    nft.commit(batch)
}

type Place = (Family, &'static str, u64);

/// Every rule of this container in this network.
fn own_rules(nft: &mut Nft, call: &Call) -> Result<Vec<Place>, NftError> {
    let mut stale = Vec::new();
    for family in FAMILIES {
        for chain in OWNED {
            for rule in nft.rules(family, TABLE, chain)? {
                let of_network =
                    rule.network.as_ref().is_none_or(|network| *network == call.conf.name);
                if rule.comment.as_deref() == Some(call.container_id.as_str()) && of_network {
                    stale.push((family, chain, rule.handle));
                }
            }
        }
    }
    Ok(stale)
}

fn replacement(
    stale: Vec<Place>,
    call: &Call,
    conf: &PortmapConf,
    addresses: &[IpNet],
    with_frame: bool,
) -> Batch {
    let mut batch = Batch::new(Family::Ipv4, TABLE);
    for (family, chain, handle) in stale {
        batch.switch(family, TABLE);
        batch.delete_rule(chain, handle);
    }
    for address in addresses {
        batch.switch(Family::of(address.addr()), TABLE);
        if with_frame {
            frame(&mut batch);
        }
        container(&mut batch, call, conf, *address);
    }
    batch
}

/// The chains, and the rules that lead packets to them.
fn frame(batch: &mut Batch) {
    batch.table("CNI portmap plugin");
    batch.chain(PORTS);
    batch.chain(PORTS_OF_OLD);
    batch.chain(ALL_PORTS);
    batch.flush(ALL_PORTS);
    for chain in [PORTS_OF_OLD, PORTS] {
        batch.rule(ALL_PORTS, &Expressions::new().verdict(Verdict::Jump(chain)));
    }
    for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        batch.nat_chain(name, hook);
        batch.flush(name);
        batch.rule(name, &Expressions::new().destined_here().verdict(Verdict::Jump(ALL_PORTS)));
    }
    batch.nat_chain(MASQUERADING, Hook::Postrouting);
}

fn container(batch: &mut Batch, call: &Call, conf: &PortmapConf, address: IpNet) {
    let owner = Some((call.container_id.as_str(), call.conf.name.as_str()));
    let ip = address.addr();
    // Each rule goes before all others, so that of two containers that claim a port the newer has
    // it. The last one to be inserted is the first to be met.
    for mapping in conf.for_address(ip) {
        let dnat = to_port(mapping).dnat(ip, mapping.container_port);
        batch.insert_owned_rule(PORTS, &dnat, owner);
        if conf.snat {
            batch.insert_owned_rule(
                PORTS,
                &from_near(to_port(mapping), conf, address).mark(conf.mark),
                owner,
            );
        }
    }
    if conf.snat {
        let marked = from_near(Expressions::new(), conf, address)
            .address(Field::Destination, ip)
            .marked(conf.mark);
        batch.owned_rule(MASQUERADING, &marked.masquerade(), owner);
        if ip.is_ipv4() {
            let local = Expressions::new()
                .address(Field::Source, IpAddr::V4(Ipv4Addr::LOCALHOST))
                .address(Field::Destination, ip);
            batch.owned_rule(MASQUERADING, &local.masquerade(), owner);
        }
    }
}

fn to_port(mapping: &Mapping) -> Expressions {
    let rule = match mapping.destination() {
        Some(ip) => Expressions::new().address(Field::Destination, ip),
        None => Expressions::new(),
    };
    rule.port(mapping.protocol as u8, mapping.host_port)
}

/// From the container's own network: on the same bridge, an answer would not come past the host.
fn from_near(rule: Expressions, conf: &PortmapConf, address: IpNet) -> Expressions {
    if conf.masquerade_all { rule } else { rule.network(Field::Source, address.trunc()) }
}
