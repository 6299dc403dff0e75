//! Masquerading of what leaves an attachment's own network: in the table that the Go plugins use
//! for it, rule by rule the same, so that they can remove ours and we theirs. What they may have
//! written with iptables is removed too.

use ipnet::IpNet;

use crate::go_names::{attachment_hash, masquerade_chain, network_hash};
use crate::nft::{
    Batch, Expressions, Family, Field, Frame, Hook, ListedRule, Nft, NftError, Spot, Verdict,
};
use crate::protocol::{Attachment, Call};
use crate::{iptables, protocol};

const TABLE: &str = "cni_plugins_masquerade";
const CHAIN: &str = "masq_checks";
const BASE: &str = "postrouting";
const TABLE_COMMENT: &str = "Masquerading for plugins from github.com/containernetworking/plugins";

/// Others change the firewall, too, and may remove what we have just listed.
const TRIES: usize = 5;

/// For every address of an attachment.
pub(crate) fn set_up(call: &Call, addresses: &[IpNet]) -> Result<(), NftError> {
    let mut nft = Nft::open()?;
    let mut tries = 0;
    loop {
        tries += 1;
        let present = nft.all_rules(Family::Inet, TABLE)?;
        let frame = frame();
        let mut batch = Batch::new(Family::Inet, TABLE);
        frame.mend(&mut batch, &frame.flaws(&mut nft, &present)?);
        replace_rules(&mut batch, call, addresses, &own(&present, &hash(call)));
        match nft.commit(batch) {
            Err(error) if error.is_absence() && tries < TRIES => {}
            other => return other,
        }
    }
}

/// Whether everything is there that `set_up` makes.
pub(crate) fn check(call: &Call, addresses: &[IpNet]) -> Result<(), protocol::Error> {
    let mut nft = Nft::open()?;
    // The Go plugin's iptables flavour has it.
    let chain = masquerade_chain(&call.conf.name, &call.container_id);
    let families = addresses.iter().map(|address| Family::of(address.addr()));
    let mut by_iptables = true;
    for family in families {
        by_iptables &= nft.has_chain(family, "nat", &chain)?;
    }
    if by_iptables {
        return Ok(());
    }
    let present = nft.all_rules(Family::Inet, TABLE)?;
    let flaws = frame().flaws(&mut nft, &present)?;
    let missing = match flaws.first() {
        Some(flaw) => {
            format!("the chain {} of the table {TABLE} is missing or changed", flaw.chain())
        }
        None if own(&present, &hash(call)).len() < addresses.len() => {
            format!("rules of {} are missing in the table {TABLE}", call.container_id)
        }
        None => return Ok(()),
    };
    Err(protocol::Error::internal(format_args!("what leaves is not masqueraded: {missing}")))
}

/// Nothing of it needs to be there.
pub(crate) fn tear_down(call: &Call) -> Result<(), protocol::Error> {
    let mut nft = Nft::open()?;
    let mut batch = Batch::new(Family::Inet, TABLE);
    let present = nft.rules(Family::Inet, TABLE, CHAIN)?;
    for handle in own(&present, &hash(call)) {
        batch.delete_rule(CHAIN, handle);
    }
    nft.commit(batch)?;
    iptables::remove_chain(
        &mut nft,
        &masquerade_chain(&call.conf.name, &call.container_id),
        "POSTROUTING",
    )
}

/// Removes the rules of this network's attachments that live no more.
pub(crate) fn collect(network: &str, valid: &[Attachment]) -> Result<(), NftError> {
    let living: Vec<String> =
        valid.iter().map(|it| attachment_hash(network, &it.ifname, &it.container_id)).collect();
    let ours = format!("{}-", network_hash(network));
    let mut nft = Nft::open()?;
    let mut batch = Batch::new(Family::Inet, TABLE);
    for rule in nft.rules(Family::Inet, TABLE, CHAIN)? {
        let comment = rule.comment.unwrap_or_default();
        if comment.starts_with(&ours)
            && !living.iter().any(|hash| comment.starts_with(hash.as_str()))
        {
            batch.delete_rule(CHAIN, rule.handle);
        }
    }
    nft.commit(batch)
}

fn hash(call: &Call) -> String {
    attachment_hash(&call.conf.name, &call.ifname, &call.container_id)
}

fn own(present: &[ListedRule], hash: &str) -> Vec<u64> {
    let ours = |rule: &&ListedRule| {
        rule.chain == CHAIN && rule.comment.as_ref().is_some_and(|it| it.starts_with(hash))
    };
    present.iter().filter(ours).map(|rule| rule.handle).collect()
}

/// The chains, and the rules that lead into them. Multicast stays as it is: neighbours on the same
/// network may want to be found by it.
fn frame() -> Frame {
    let mut rules = Vec::new();
    for multicast in ["224.0.0.0/4", "ff00::/8"] {
        let Ok(multicast) = multicast.parse::<IpNet>() else { continue };
        let rule =
            Expressions::new().family_of(multicast.addr()).network(Field::Destination, multicast);
        rules.push(rule.verdict(Verdict::Return));
    }
    rules.push(Expressions::new().verdict(Verdict::Goto(CHAIN)));
    Frame::new(Family::Inet, TABLE, TABLE_COMMENT).holder(CHAIN, None).leading(
        BASE,
        Some(Hook::Postrouting),
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
            .masquerade();
        batch.owned_rule(CHAIN, &rule, (&comment, name), Spot::Last);
    }
}
