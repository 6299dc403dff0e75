//! Port mappings as rules. The table, the chains and the comments are those of the Go plugin's
//! nftables flavour, so that it can remove our rules and we its.
//!
//! A connection to a mapped port is sent on to the container, whichever address of the host it came
//! to. One that comes from the container's own network, or from the host's loopback address, would be
//! answered past the host, or not at all: it is marked, and on its way out the host puts itself in
//! between.

use std::net::{IpAddr, Ipv4Addr};

use flannel_nft::{
    Expressions, Field, Flaw, Hook, Rule, Spot, TableFamily, TableLayout, Verdict, fitted_comment,
    fitted_owner,
};
use ipnet::{IpNet, Ipv4Net};

use super::conf::{Mapping, PortmapConf};
use super::host_port_rule::{TakenPort, taken_port, translates};
use crate::nft::{Batch, Nft, NftError};
use crate::protocol::{Attachment, Call, Result, internal};

pub(super) const TABLE: &str = "cni_hostport";
const TABLE_COMMENT: &str = "CNI portmap plugin";
pub(super) const PORTS: &str = "hostports";
const PORTS_OF_OLD: &str = "hostip_hostports";
const ALL_PORTS: &str = "hostports_all";
const MASQUERADING: &str = "masquerading";
const ARRIVAL: &str = "loopback_guard";
pub(super) const OWNED: [&str; 3] = [PORTS, PORTS_OF_OLD, MASQUERADING];
pub(super) const FAMILIES: [TableFamily; 2] = [TableFamily::Ipv4, TableFamily::Ipv6];

/// Maps the ports to the container's addresses, if any, in place of what was mapped for it before.
pub(super) fn forward(
    nft: &mut Nft,
    call: &Call,
    conf: &PortmapConf,
    addresses: &[IpNet],
) -> Result<(), NftError> {
    let owner = Container::new(&call.container_id, &call.conf.name);
    nft.commit_made(|nft| {
        let mut batch = Batch::new(TableFamily::Ipv4, TABLE);
        for family in FAMILIES {
            let present = nft.all_rules(family, TABLE)?;
            delete(&mut batch, family, present.iter().filter(|rule| owner.owns(rule)));
            for address in addresses.iter().filter(|it| TableFamily::of(it.addr()) == family) {
                let layout = layout(family);
                layout.restore(&mut batch, &layout.flaws(nft, &present)?);
                let foreign = present.iter().filter(|rule| !owner.owns(rule));
                // Those of all addresses of the host stand behind those of one.
                let first_of_all = foreign
                    .filter(|rule| rule.chain == PORTS && !rule.asks_for_destination())
                    .map(|rule| Spot::Before(rule.handle))
                    .next();
                let spots = [first_of_all.unwrap_or(Spot::Last), Spot::First];
                batch.switch(family, TABLE);
                container(&mut batch, call, conf, *address, spots);
            }
        }
        Ok(batch)
    })
}

/// The guard alone, for mappings that are kept in iptables.
pub(super) fn guard_loopback(nft: &mut Nft) -> Result<(), NftError> {
    let present = nft.all_rules(TableFamily::Ipv4, TABLE)?;
    let layout = with_loopback_guard(TableLayout::new(TableFamily::Ipv4, TABLE, TABLE_COMMENT));
    let mut batch = Batch::new(TableFamily::Ipv4, TABLE);
    layout.restore(&mut batch, &layout.flaws(nft, &present)?);
    nft.commit(&batch)
}

/// Whether the container's mappings are there, and packets find their way to them.
pub(super) fn verify(nft: &mut Nft, call: &Call, conf: &PortmapConf, ip: IpAddr) -> Result<()> {
    let (owner, family) =
        (Container::new(&call.container_id, &call.conf.name), TableFamily::of(ip));
    let present = nft.all_rules(family, TABLE)?;
    let flaws = layout(family).flaws(nft, &present)?;
    if let Some(Flaw { chain, .. }) = flaws.iter().find(|flaw| !flaw.is_guard) {
        return Err(internal!(
            "the chain {chain} of the table {TABLE} is missing or changed: no packet finds its way to hostports"
        )
        .with_details("the next ADD on this host repairs it"));
    }
    let own = || present.iter().filter(|rule| owner.owns(rule));
    let mapping = own().filter(|rule| translates(rule)).count();
    let masquerading = own().filter(|rule| rule.chain == MASQUERADING).count();
    let masqueraded = 1 + usize::from(ip.is_ipv4());
    if mapping < conf.for_address(ip).count() || (conf.snat && masquerading < masqueraded) {
        let id = &call.container_id;
        return Err(internal!("missing hostport rules of {id} in the table {TABLE}"));
    }
    let Some((port, by)) = taken_by_others(&present, &owner, conf, ip) else { return Ok(()) };
    let by = by.map_or("a rule without a comment".to_owned(), |by| format!("that of {by}"));
    Err(internal!(
        "host port {port} leads elsewhere: another rule of the table {TABLE} comes first, {by}"
    )
    .with_details("remove the other container, or choose another hostPort or hostIP"))
}

/// A mapping of the container whose connections another rule takes before ours, and the comment of that rule.
fn taken_by_others<'a>(
    present: &'a [Rule],
    owner: &Container,
    conf: &PortmapConf,
    ip: IpAddr,
) -> Option<(u16, Option<&'a String>)> {
    // In the order in which packets come to them.
    let met = [PORTS_OF_OLD, PORTS].map(|chain| present.iter().filter(move |it| it.chain == chain));
    let met: Vec<(&Rule, bool, Option<TakenPort>)> =
        met.into_iter().flatten().map(|it| (it, owner.owns(it), taken_port(it))).collect();
    conf.for_address(ip).find_map(|mapping| {
        let ours = TakenPort {
            protocol: Some(mapping.protocol as u8),
            port: Some(mapping.host_port),
            destination: mapping.destination(),
        };
        let before = met.iter().position(|(_, is_own, taken)| *is_own && *taken == Some(ours));
        let (rule, ..) = met[..before.unwrap_or_default()]
            .iter()
            .find(|(_, is_own, taken)| !is_own && taken.is_some_and(|taken| taken.covers(ours)))?;
        Some((mapping.host_port, rule.comment.as_ref()))
    })
}

/// Removes rules of this network's containers that are gone; the Go plugin's do not say their network.
pub(super) fn collect(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), NftError> {
    let containers: Vec<Container> =
        valid.iter().map(|it| Container::new(&it.container_id, network)).collect();
    let fitted = fitted_owner(network);
    let is_stale = |rule: &&Rule| {
        let of_network =
            rule.owner.as_deref().is_some_and(|it| it == network || it == fitted.as_ref());
        of_network && OWNED.contains(&&*rule.chain) && !containers.iter().any(|it| it.owns(rule))
    };
    let mut batch = Batch::new(TableFamily::Ipv4, TABLE);
    for family in FAMILIES {
        let present = nft.all_rules(family, TABLE)?;
        delete(&mut batch, family, present.iter().filter(is_stale));
    }
    nft.commit(&batch)
}

/// A container, as the firewall knows it.
struct Container {
    comment: String,
    /// In full, and as it is written down: short ones are the same.
    networks: [String; 2],
}

impl Container {
    fn new(container_id: &str, network: &str) -> Self {
        Self {
            comment: fitted_comment(container_id).into_owned(),
            networks: [network.to_owned(), fitted_owner(network).into_owned()],
        }
    }

    /// Rules that the Go plugin made do not say which network they are for.
    fn owns(&self, rule: &Rule) -> bool {
        rule.owner.as_ref().is_none_or(|network| self.networks.contains(network))
            && rule.comment.as_deref() == Some(&self.comment)
            && OWNED.contains(&&*rule.chain)
    }
}

fn delete<'a>(batch: &mut Batch, family: TableFamily, rules: impl Iterator<Item = &'a Rule>) {
    batch.switch(family, TABLE);
    for rule in rules {
        batch.delete_rule(&rule.chain, rule.handle);
    }
}

/// The chains, and the rules that lead packets to them.
fn layout(family: TableFamily) -> TableLayout {
    let jump = |chain| Expressions::new().verdict(Verdict::jump(chain));
    let entry = || vec![Expressions::new().destined_here().verdict(Verdict::jump(ALL_PORTS))];
    let layout = TableLayout::new(family, TABLE, TABLE_COMMENT)
        .holder(PORTS, None)
        .holder(PORTS_OF_OLD, None)
        .leading(ALL_PORTS, None, vec![jump(PORTS_OF_OLD), jump(PORTS)])
        .leading("prerouting", Some(Hook::DESTINATION_NAT), entry())
        .leading("output", Some(Hook::OUTPUT_NAT), entry())
        .holder(MASQUERADING, Some(Hook::SOURCE_NAT));
    if family == TableFamily::Ipv4 { with_loopback_guard(layout) } else { layout }
}

/// Connections from the host's loopback address are let out (`route_localnet`). Those to it must not be
/// let in because of that: services that listen there rely on being unreachable.
fn with_loopback_guard(layout: TableLayout) -> TableLayout {
    let loopback = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8).trunc());
    let guard =
        Expressions::new().network(Field::Destination, loopback).arriving().verdict(Verdict::Drop);
    layout.guard(ARRIVAL, Hook::ARRIVAL, vec![guard])
}

/// `spots`: where mappings of all addresses of the host go, and where those of one.
fn container(
    batch: &mut Batch,
    call: &Call,
    conf: &PortmapConf,
    address: IpNet,
    [of_all, of_one]: [Spot; 2],
) {
    let owner = (call.container_id.as_str(), call.conf.name.as_str());
    let ip = address.addr();
    // Before those of older containers: of two that claim a port the newer has it.
    for mapping in conf.for_address(ip) {
        let spot = if mapping.destination().is_some() { of_one } else { of_all };
        let dnat = to_port(mapping).dnat(ip, mapping.container_port);
        let mark = conf.snat.then(|| from_near(to_port(mapping), conf, address).mark(conf.mark));
        // What is put first comes to stand behind what is put first after it.
        let mut rules = [mark, Some(dnat)];
        if matches!(spot, Spot::First) {
            rules.reverse();
        }
        for rule in rules.into_iter().flatten() {
            batch.owned_rule(PORTS, &rule, owner, spot);
        }
    }
    if conf.snat {
        let marked = from_near(Expressions::new(), conf, address)
            .address(Field::Destination, ip)
            .marked(conf.mark);
        batch.owned_rule(MASQUERADING, &marked.masquerade(false), owner, Spot::Last);
        if ip.is_ipv4() {
            let local = Expressions::new()
                .address(Field::Source, IpAddr::V4(Ipv4Addr::LOCALHOST))
                .address(Field::Destination, ip);
            batch.owned_rule(MASQUERADING, &local.masquerade(false), owner, Spot::Last);
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
