//! Masquerading of what leaves an attachment's own network: in the table that the Go plugins use
//! for it, rule by rule the same, so that they can remove ours and we theirs. What they may have
//! written with iptables is removed too.

use ipnet::IpNet;

use crate::go_names::{attachment_hash, masquerade_chain, network_hash};
use crate::nft::{Batch, Expressions, Family, Field, Hook, Nft, NftError, Verdict};
use crate::protocol::{Attachment, Call};
use crate::{iptables, protocol};

const TABLE: &str = "cni_plugins_masquerade";
const CHAIN: &str = "masq_checks";
const BASE: &str = "postrouting";
const TABLE_COMMENT: &str = "Masquerading for plugins from github.com/containernetworking/plugins";

/// For every address of an attachment.
pub(crate) fn set_up(call: &Call, addresses: &[IpNet]) -> Result<(), NftError> {
    let mut nft = Nft::open()?;
    let stale = rules_with(&mut nft, &hash(call))?;
    let mut quick = Batch::new(Family::Inet, TABLE);
    replace_rules(&mut quick, call, addresses, &stale);
    match nft.commit(quick) {
        Err(error) if error.is_absence() => {
            let mut whole = Batch::new(Family::Inet, TABLE);
            frame(&mut whole);
            // What was stale may have gone with the table.
            let stale = rules_with(&mut nft, &hash(call))?;
            replace_rules(&mut whole, call, addresses, &stale);
            nft.commit(whole)
        }
        other => other,
    }
}

/// Nothing of it needs to be there.
pub(crate) fn tear_down(call: &Call) -> Result<(), protocol::Error> {
    let mut nft = Nft::open()?;
    let mut batch = Batch::new(Family::Inet, TABLE);
    for handle in rules_with(&mut nft, &hash(call))? {
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

fn rules_with(nft: &mut Nft, hash: &str) -> Result<Vec<u64>, NftError> {
    let rules = nft.rules(Family::Inet, TABLE, CHAIN)?;
    let ours = |comment: &Option<String>| {
        comment.as_ref().is_some_and(|comment| comment.starts_with(hash))
    };
    Ok(rules.into_iter().filter(|rule| ours(&rule.comment)).map(|rule| rule.handle).collect())
}

/// The chains, and the rules that lead into them. Multicast stays as it is: neighbours on the same
/// network may want to be found by it.
fn frame(batch: &mut Batch) {
    batch.table(TABLE_COMMENT);
    batch.chain(CHAIN);
    batch.nat_chain(BASE, Hook::Postrouting);
    batch.flush(BASE);
    for multicast in ["224.0.0.0/4", "ff00::/8"] {
        let Ok(multicast) = multicast.parse::<IpNet>() else { continue };
        let rule =
            Expressions::new().family_of(multicast.addr()).network(Field::Destination, multicast);
        batch.rule(BASE, &rule.verdict(Verdict::Return));
    }
    batch.rule(BASE, &Expressions::new().verdict(Verdict::Goto(CHAIN)));
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
        batch.owned_rule(CHAIN, &rule, Some((&comment, name)));
    }
}
