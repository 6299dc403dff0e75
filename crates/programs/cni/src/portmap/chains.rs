//! Port mappings as chains of iptables: those of the Go plugin, rule by rule.
//!
//! One chain has the mappings of one container. A shared one leads to it, by the ports it maps, and a
//! mark says of a connection that the host must put itself in between.

use std::net::IpAddr;

use flannel_nft::TableFamily;
use ipnet::IpNet;

use super::conf::{Mapping, PortmapConf, Protocol};
use crate::go_names::portmap_chain;
use crate::iptables::{self, OwnChain, Position, Rule, SharedChain, SharedRule, Stale};
use crate::nft::Nft;
use crate::protocol::{Attachment, Call, Result};

pub(super) const ENTRY: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// How many ports one rule can look for.
const MOST_PORTS: usize = 15;

/// Maps the ports to the container's addresses, in place of what was mapped for it before.
pub(super) fn forward(
    nft: &mut Nft,
    call: &Call,
    conf: &PortmapConf,
    addresses: &[IpNet],
) -> Result<()> {
    for address in addresses {
        iptables::establish(nft, &own(call, conf, *address))
            .map_err(|error| error.context("unable to set up port mappings"))?;
    }
    Ok(())
}

/// Removes the mappings of this network's containers that are gone.
pub(super) fn collect(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<()> {
    let chains: Vec<String> =
        valid.iter().map(|it| portmap_chain(network, &it.container_id)).collect();
    let comment = comment(network, "");
    let comment = comment.trim_end_matches('"');
    iptables::collect(nft, &Stale { entry: ENTRY, comment, valid: &chains })
}

fn shared(conf: &PortmapConf) -> Vec<SharedChain> {
    let mut chains = Vec::new();
    if conf.snat && conf.set_mark_chain.is_none() {
        let mark = format!("{0:#x}/{0:#x}", conf.mark);
        let set = Rule::default().comment("CNI portfwd masquerade mark");
        chains.push(SharedChain {
            name: SET_MARK,
            rules: vec![SharedRule::last(SET_MARK, set.and("-j MARK --set-xmark").word(&mark))],
        });
        let marked = Rule::new("-m mark --mark").word(&mark).and("-j MASQUERADE");
        let entry = Rule::default().comment("CNI portfwd requiring masquerade").jump(MASQUERADE);
        chains.push(SharedChain {
            name: MASQUERADE,
            // Before containers' own masquerading, which would end the matter.
            rules: vec![
                SharedRule::last(MASQUERADE, marked),
                SharedRule::first("POSTROUTING", entry),
            ],
        });
    }
    let local = Rule::new("-m addrtype --dst-type LOCAL").jump(ENTRY);
    chains.push(SharedChain {
        name: ENTRY,
        rules: vec![
            SharedRule::last("PREROUTING", local.clone()),
            SharedRule::last("OUTPUT", local),
        ],
    });
    chains
}

/// The chain of a container's address, with all that leads to it.
pub(super) fn own(call: &Call, conf: &PortmapConf, address: IpNet) -> OwnChain {
    let (network, id) = (&call.conf.name, &call.container_id);
    // A port of one address of the host goes before that of all of them; among equals the newer container has it.
    let is_specific = conf.for_address(address.addr()).all(|it| it.destination().is_some());
    let position = if is_specific { Position::First } else { Position::BehindSpecific };
    OwnChain {
        family: TableFamily::of(address.addr()),
        name: portmap_chain(network, id),
        rules: rules(conf, address),
        entry: ENTRY,
        entries: entries(conf, &comment(network, id), address.addr()),
        position,
        has_others: false,
        shared: shared(conf),
    }
}

fn entries(conf: &PortmapConf, comment: &str, ip: IpAddr) -> Vec<Rule> {
    let mut entries = Vec::new();
    for protocol in [Protocol::Sctp, Protocol::Tcp, Protocol::Udp] {
        let ports: Vec<String> = conf
            .mappings
            .iter()
            .filter(|mapping| mapping.protocol == protocol)
            .map(|mapping| mapping.host_port.to_string())
            .collect();
        for ports in ports.chunks(MOST_PORTS) {
            let rule = Rule::default()
                .comment(comment)
                .and("-m multiport -p")
                .word(protocol.name())
                .and("--destination-ports")
                .word(ports.join(","));
            entries.push(conf.conditions(ip).iter().fold(rule, |rule, word| rule.word(word)));
        }
    }
    entries
}

/// The mark comes before the mapping, and mappings of one host address before those of all.
fn rules(conf: &PortmapConf, address: IpNet) -> Vec<Rule> {
    let ip = address.addr();
    let (of_one, of_all): (Vec<&Mapping>, Vec<&Mapping>) =
        conf.for_address(ip).partition(|mapping| mapping.destination().is_some());
    let mut rules = Vec::new();
    for mapping in of_one.into_iter().chain(of_all) {
        let mut to_port = Rule::new("-p")
            .word(mapping.protocol.name())
            .and("--dport")
            .word(mapping.host_port.to_string());
        if let Some(host_ip) = mapping.destination() {
            to_port = to_port.and("-d").word(host_ip.to_string());
        }
        if conf.snat {
            let chain = conf.set_mark_chain.as_deref().unwrap_or(SET_MARK);
            let mut from = |source: &str| {
                rules.push(to_port.clone().and("-s").word(source).jump(chain));
            };
            match (conf.masquerade_all, ip.is_ipv4()) {
                (true, true) => from("0.0.0.0/0"),
                (true, false) => from("::/0"),
                (false, is_ipv4) => {
                    from(&address.to_string());
                    if is_ipv4 {
                        from("127.0.0.1");
                    }
                }
            }
        }
        let to = std::net::SocketAddr::new(ip, mapping.container_port);
        rules.push(to_port.and("-j DNAT --to-destination").word(to.to_string()));
    }
    rules
}

/// As long as iptables allows, and cut as the Go plugin cuts it.
fn comment(network: &str, id: &str) -> String {
    const LONGEST: usize = 255;
    const CUT: usize = 253;
    let text = format!("dnat name: \"{network}\" id: \"{id}\"");
    if text.len() <= LONGEST { text } else { format!("{}...", &text[..CUT]) }
}
