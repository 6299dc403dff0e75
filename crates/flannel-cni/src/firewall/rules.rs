//! Rules in iptables: those of the Go plugin, one by one.

use ipnet::IpNet;

use super::conf::{FirewallConf, Ingress};
use crate::iptables::{self, Rule, SharedChain, SharedRule};
use crate::nft::{Nft, TableFamily};
use crate::protocol::{Error, Outcome};

const FORWARD: &str = "FORWARD";
const CHAIN: &str = "CNI-FORWARD";
const FROM_BRIDGE: &str = "CNI-ISOLATION-STAGE-1";
const TO_BRIDGE: &str = "CNI-ISOLATION-STAGE-2";

/// What these addresses send, and the answers, may pass.
pub(super) fn allow(conf: &FirewallConf, addresses: &[IpNet]) -> Result<(), Error> {
    for (family, addresses) in by_family(addresses) {
        iptables::ensure_filters(family, &chains(conf, &addresses))?;
    }
    Ok(())
}

pub(super) fn check(conf: &FirewallConf, addresses: &[IpNet]) -> Result<(), Error> {
    for (family, addresses) in by_family(addresses) {
        iptables::check_filters(family, &chains(conf, &addresses))?;
    }
    Ok(())
}

pub(super) fn forget(addresses: &[IpNet]) -> Result<(), Error> {
    let mut nft = Nft::open()?;
    for (family, addresses) in by_family(addresses) {
        let rules: Vec<Rule> = addresses.iter().flat_map(of_address).collect();
        iptables::remove_filters(&mut nft, family, CHAIN, &rules)?;
    }
    Ok(())
}

/// Keeps what other bridges, or other containers altogether, send from a container's bridge.
pub(super) fn isolate(conf: &FirewallConf, result: &Outcome) -> Result<(), Error> {
    if conf.ingress == Ingress::Everybody {
        return Ok(());
    }
    let bridge = bridge(result)?;
    for (family, _) in by_family(&super::conf::addresses(result)) {
        iptables::ensure_filters(family, &isolation(bridge, conf.ingress))?;
    }
    Ok(())
}

pub(super) fn check_isolation(conf: &FirewallConf, result: &Outcome) -> Result<(), Error> {
    if conf.ingress == Ingress::Everybody {
        return Ok(());
    }
    let bridge = bridge(result)?;
    for (family, _) in by_family(&super::conf::addresses(result)) {
        iptables::check_filters(family, &isolation(bridge, conf.ingress))?;
    }
    Ok(())
}

/// The plugin that makes a bridge names it first.
fn bridge(result: &Outcome) -> Result<&str, Error> {
    match result.interfaces.first() {
        Some(interface) if !interface.name.is_empty() => Ok(&interface.name),
        _ => Err(Error::internal("an ingress policy needs a bridge, and the result names none")
            .with_details("make sure to chain \"firewall\" behind \"bridge\" or \"flannel\"")),
    }
}

fn by_family(addresses: &[IpNet]) -> Vec<(TableFamily, Vec<IpNet>)> {
    [TableFamily::Ipv4, TableFamily::Ipv6]
        .into_iter()
        .map(|family| {
            let of_it = addresses.iter().filter(|it| TableFamily::of(it.addr()) == family);
            (family, of_it.copied().collect::<Vec<_>>())
        })
        .filter(|(_, addresses)| !addresses.is_empty())
        .collect()
}

fn chains(conf: &FirewallConf, addresses: &[IpNet]) -> [SharedChain; 2] {
    let entry = Rule::default().comment("CNI firewall plugin rules").jump(CHAIN);
    let admin = Rule::default().comment("CNI firewall plugin admin overrides");
    let own = addresses.iter().flat_map(of_address).map(|rule| SharedRule::last(CHAIN, rule));
    [
        SharedChain {
            name: CHAIN.into(),
            rules: own.chain([SharedRule::first(FORWARD, entry)]).collect(),
        },
        SharedChain {
            name: conf.admin_chain.clone(),
            rules: vec![SharedRule::first(CHAIN, admin.jump(&conf.admin_chain))],
        },
    ]
}

fn of_address(address: &IpNet) -> [Rule; 2] {
    let answers = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
    [
        Rule::new("-d").word(address.to_string()).and(answers),
        Rule::new("-s").word(address.to_string()).and("-j ACCEPT"),
    ]
}

/// What comes from one of the bridges and goes elsewhere must not go to another one of them.
fn isolation(bridge: &str, ingress: Ingress) -> [SharedChain; 2] {
    const ALL: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";
    let of_policy = match ingress {
        Ingress::Nobody => "CNI firewall plugin rules (ingressPolicy: isolated)",
        _ => "CNI firewall plugin rules (ingressPolicy: same-bridge)",
    };
    let from = || Rule::new("-i").word(bridge);
    let elsewhere = from().and("! -o").word(bridge).comment(of_policy).jump(TO_BRIDGE);
    let within = from().and("-o").word(bridge).comment(of_policy).and("-j DROP");
    let to = Rule::new("-o").word(bridge).comment(ALL).and("-j DROP");
    let rest = || Rule::default().comment(ALL).and("-j RETURN");
    let mut first = vec![SharedRule::first(FROM_BRIDGE, elsewhere)];
    if ingress == Ingress::Nobody {
        first.push(SharedRule::first(FROM_BRIDGE, within));
    }
    first.push(SharedRule::last(FROM_BRIDGE, rest()));
    first.push(SharedRule::first(FORWARD, Rule::default().comment(ALL).jump(FROM_BRIDGE)));
    [
        // Others lead to it, so it is made first.
        SharedChain {
            name: TO_BRIDGE.into(),
            rules: vec![SharedRule::first(TO_BRIDGE, to), SharedRule::last(TO_BRIDGE, rest())],
        },
        SharedChain { name: FROM_BRIDGE.into(), rules: first },
    ]
}
