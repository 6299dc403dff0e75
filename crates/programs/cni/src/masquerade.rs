//! Masquerading of what leaves an attachment's network, in nftables or iptables: the very rules of the Go
//! plugins, so that they can remove ours and we theirs.

use flannel_nft::{
    Expressions, Field, Hook, Rule as NftRule, Spot, TableFamily, TableLayout, Verdict,
};
use ipnet::IpNet;

use crate::go_names::{attachment_hash, masquerade_chain, network_hash};
use crate::iptables::{self, Backend, OwnChain, Position, Rule, Stale};
use crate::nft::{Batch, Nft, NftError};
use crate::protocol::{Attachment, Call, Result, internal};

const TABLE: &str = "cni_plugins_masquerade";
const CHAIN: &str = "masq_checks";
const BASE: &str = "postrouting";
const TABLE_COMMENT: &str = "Masquerading for plugins from github.com/containernetworking/plugins";

/// The chain of iptables that everything passes on its way out.
const ENTRY: &str = "POSTROUTING";

/// For every address of an attachment. `backend`: where, if the host is not to decide.
pub(crate) fn set_up(call: &Call, backend: Option<Backend>, addresses: &[IpNet]) -> Result<()> {
    let mut nft = Nft::open()?;
    if backend.unwrap_or_else(Backend::of_host) == Backend::Nftables {
        return Ok(set_up_rules(&mut nft, call, addresses)?);
    }
    for chain in own_chains(call, addresses) {
        iptables::establish(&mut nft, &chain)
            .map_err(|error| error.context("failed to set up masquerading"))?;
    }
    Ok(())
}

fn set_up_rules(nft: &mut Nft, call: &Call, addresses: &[IpNet]) -> Result<(), NftError> {
    nft.commit_made(|nft| {
        let present = nft.all_rules(TableFamily::Inet, TABLE)?;
        let layout = layout();
        let mut batch = Batch::new(TableFamily::Inet, TABLE);
        layout.restore(&mut batch, &layout.flaws(nft, &present)?);
        replace_rules(&mut batch, call, addresses, &own(&present, &hash(call)));
        Ok(batch)
    })
}

/// Whether everything is there that `set_up` makes, wherever it made it.
pub(crate) fn check(call: &Call, addresses: &[IpNet]) -> Result<()> {
    let mut nft = Nft::open()?;
    let mut in_chains = false;
    for chain in own_chains(call, addresses) {
        if let Some(found) = iptables::verify(&mut nft, &chain) {
            found.map_err(|error| error.context("outgoing packets are not masqueraded"))?;
            in_chains = true;
        }
    }
    if in_chains {
        return Ok(());
    }
    let present = nft.all_rules(TableFamily::Inet, TABLE)?;
    let flaws = layout().flaws(&mut nft, &present)?;
    let missing = match flaws.first() {
        Some(flaw) => {
            format!("the chain {} of the table {TABLE} is missing or changed", flaw.chain)
        }
        None if own(&present, &hash(call)).len() < addresses.len() => {
            format!("rules of {} are missing in the table {TABLE}", call.container_id)
        }
        None => return Ok(()),
    };
    Err(internal!("outgoing packets are not masqueraded: {missing}"))
}

/// Nothing of it needs to be there.
pub(crate) fn tear_down(call: &Call) -> Result<()> {
    let mut nft = Nft::open()?;
    let mut batch = Batch::new(TableFamily::Inet, TABLE);
    let present = nft.rules(TableFamily::Inet, TABLE, CHAIN)?;
    for handle in own(&present, &hash(call)) {
        batch.delete_rule(CHAIN, handle);
    }
    nft.commit(&batch)?;
    iptables::remove_chain(&mut nft, &masquerade_chain(&call.conf.name, &call.container_id), ENTRY)
}

/// Removes the rules of this network's attachments that are gone.
pub(crate) fn collect(network: &str, valid: &[Attachment]) -> Result<()> {
    let hashes: Vec<String> =
        valid.iter().map(|it| attachment_hash(network, &it.ifname, &it.container_id)).collect();
    let ours = format!("{}-", network_hash(network));
    let mut nft = Nft::open()?;
    let mut batch = Batch::new(TableFamily::Inet, TABLE);
    for rule in nft.rules(TableFamily::Inet, TABLE, CHAIN)? {
        let comment = rule.comment.unwrap_or_default();
        if comment.starts_with(&ours)
            && !hashes.iter().any(|hash| comment.starts_with(hash.as_str()))
        {
            batch.delete_rule(CHAIN, rule.handle);
        }
    }
    nft.commit(&batch)?;
    let chains: Vec<String> =
        valid.iter().map(|it| masquerade_chain(network, &it.container_id)).collect();
    let comment = format!("name: \"{network}\" id: \"");
    iptables::collect(&mut nft, &Stale { entry: ENTRY, comment: &comment, valid: &chains })
}

/// One chain for all addresses of a family. A container with several attachments to a network has one
/// chain for all of them: the Go plugins have it so.
fn own_chains(call: &Call, addresses: &[IpNet]) -> Vec<OwnChain> {
    let (network, id) = (&call.conf.name, &call.container_id);
    let comment = format!("name: \"{network}\" id: \"{id}\"");
    let mut chains = Vec::new();
    for (family, multicast) in [(TableFamily::Ipv4, "224.0.0.0/4"), (TableFamily::Ipv6, "ff00::/8")]
    {
        let addresses: Vec<&IpNet> =
            addresses.iter().filter(|address| TableFamily::of(address.addr()) == family).collect();
        if addresses.is_empty() {
            continue;
        }
        let near = |address: &&IpNet| {
            Rule::new("-d").word(address.to_string()).and("-j ACCEPT").comment(&comment)
        };
        let mut rules: Vec<Rule> = addresses.iter().map(near).collect();
        rules.push(Rule::new("! -d").word(multicast).and("-j MASQUERADE").comment(&comment));
        let entries = addresses
            .iter()
            .map(|address| Rule::new("-s").word(address.addr().to_string()).comment(&comment));
        chains.push(OwnChain {
            family,
            name: masquerade_chain(network, id),
            rules,
            entry: ENTRY,
            entries: entries.collect(),
            position: Position::Last,
            has_others: true,
            shared: Vec::new(),
        });
    }
    chains
}

fn hash(call: &Call) -> String {
    attachment_hash(&call.conf.name, &call.ifname, &call.container_id)
}

fn own(present: &[NftRule], hash: &str) -> Vec<u64> {
    let ours = |rule: &&NftRule| {
        rule.chain == CHAIN && rule.comment.as_ref().is_some_and(|it| it.starts_with(hash))
    };
    present.iter().filter(ours).map(|rule| rule.handle).collect()
}

/// The chains, and the rules that lead into them. Multicast stays: neighbours are found by it.
fn layout() -> TableLayout {
    let mut rules = Vec::new();
    for multicast in ["224.0.0.0/4", "ff00::/8"] {
        let Ok(multicast) = multicast.parse::<IpNet>() else { continue };
        let rule =
            Expressions::new().family_of(multicast.addr()).network(Field::Destination, multicast);
        rules.push(rule.verdict(Verdict::Return));
    }
    rules.push(Expressions::new().verdict(Verdict::goto(CHAIN)));
    TableLayout::new(TableFamily::Inet, TABLE, TABLE_COMMENT).holder(CHAIN, None).leading(
        BASE,
        Some(Hook::SOURCE_NAT),
        rules,
    )
}

fn replace_rules(batch: &mut Batch, call: &Call, addresses: &[IpNet], stale: &[u64]) {
    for handle in stale {
        batch.delete_rule(CHAIN, *handle);
    }
    let name = &call.conf.name;
    let comment =
        format!("{}, net: {name}, if: {}, id: {}", hash(call), call.ifname, call.container_id);
    for address in addresses {
        let rule = Expressions::new()
            .family_of(address.addr())
            .address(Field::Source, address.addr())
            .not_network(Field::Destination, address.trunc())
            .masquerade(false);
        batch.owned_rule(CHAIN, &rule, (&comment, name), Spot::Last);
    }
}
