//! Mappings in nftables that the Go plugin made: their comment names the container, nothing the network.
//! Whether such a container lives is seen by its address, which some namespace of the host then has.

use std::collections::BTreeSet;
use std::net::IpAddr;

use flannel_nft::{Rule, TableFamily};

use super::host_port_rule::translated_to;
use super::rules;
use crate::addresses_in_use;
use crate::nft::{Batch, Nft, NftError};
use crate::protocol::Attachment;

/// Removes the mappings of containers that are gone, of whichever network.
pub(super) fn collect(nft: &mut Nft, valid: &[Attachment]) -> Result<(), NftError> {
    let mut foreign = Vec::new();
    for family in rules::FAMILIES {
        for chain in rules::OWNED {
            for rule in nft.rules(family, rules::TABLE, chain)? {
                let is_named =
                    |id: &String| valid.iter().any(|attachment| attachment.container_id == *id);
                if rule.owner.is_none() && rule.comment.as_ref().is_some_and(|id| !is_named(id)) {
                    foreign.push((family, chain, rule));
                }
            }
        }
    }
    if foreign.is_empty() {
        return Ok(());
    }
    // Without a look at all of them, nobody is judged.
    let Some(in_use) = addresses_in_use::addresses() else { return Ok(()) };
    let mut batch = Batch::new(TableFamily::Ipv4, rules::TABLE);
    for (family, chain, rule) in &foreign {
        let of_same = || foreign.iter().map(|it| &it.2).filter(|it| it.comment == rule.comment);
        if is_gone(of_same(), &in_use) {
            batch.switch(*family, rules::TABLE);
            batch.delete_rule(chain, rule.handle);
        }
    }
    nft.commit(&batch)
}

fn is_gone<'a>(rules: impl Iterator<Item = &'a Rule>, in_use: &BTreeSet<IpAddr>) -> bool {
    let addresses: BTreeSet<IpAddr> = rules.filter_map(translated_to).collect();
    !addresses.is_empty() && addresses.is_disjoint(in_use)
}
