//! Lets a container send from its own MAC address only, by the Go plugin's rules: each can remove the other's.

use flannel_common::Mac;
use flannel_nft::{Expressions, Hook, Spot, TableFamily, Verdict};

use crate::nft::{Batch, Nft, NftError};
use crate::protocol::Call;

const TABLE: &str = "nat";
const BASE: &str = "PREROUTING";

/// `port`: the host's end of the container's pair.
pub(super) fn forbid(call: &Call, port: &str, mac: Mac) -> Result<(), NftError> {
    let mut nft = Nft::open()?;
    let (of_port, of_mac) = chains(call);
    let mut batch = Batch::new(TableFamily::Bridge, TABLE);
    batch.table("");
    batch.base_chain(BASE, Hook::ARRIVAL, "");
    for chain in [&of_port, &of_mac] {
        batch.chain(chain);
        batch.flush(chain);
    }
    for rule in stale(&mut nft, &of_port)? {
        batch.delete_rule(BASE, rule);
    }
    let comment = format!("macspoofchk-{}", id(call));
    let owner = (comment.as_str(), call.conf.name.as_str());
    let jump = |to| Expressions::new().verdict(Verdict::jump(to));
    let from_port = Expressions::new().from(port).verdict(Verdict::jump(&of_port));
    batch.owned_rule(BASE, &from_port, owner, Spot::Last);
    batch.owned_rule(&of_port, &jump(&of_mac), owner, Spot::Last);
    let own = Expressions::new().sent_by(&mac.0).verdict(Verdict::Return);
    batch.owned_rule(&of_mac, &own, owner, Spot::Last);
    let drop = Expressions::new().verdict(Verdict::Drop);
    batch.owned_rule(&of_mac, &drop, owner, Spot::Last);
    nft.commit(&batch)
}

/// Nothing of it needs to be there.
pub(super) fn allow(call: &Call) -> Result<(), NftError> {
    let mut nft = Nft::open()?;
    let (of_port, of_mac) = chains(call);
    let mut batch = Batch::new(TableFamily::Bridge, TABLE);
    for rule in stale(&mut nft, &of_port)? {
        batch.delete_rule(BASE, rule);
    }
    let mut present = Vec::new();
    for chain in [&of_port, &of_mac] {
        if nft.has_chain(TableFamily::Bridge, TABLE, chain)? {
            present.push(chain);
        }
    }
    present.iter().for_each(|chain| batch.flush(chain));
    present.iter().for_each(|chain| batch.delete_chain(chain));
    match nft.commit(&batch) {
        Err(error) if error.is_absence() => Ok(()),
        other => other,
    }
}

fn stale(nft: &mut Nft, chain: &str) -> Result<Vec<u64>, NftError> {
    let rules = nft.rules(TableFamily::Bridge, TABLE, BASE)?;
    let leads_there = rules.iter().filter(|rule| rule.target() == Some(chain));
    Ok(leads_there.map(|rule| rule.handle).collect())
}

fn chains(call: &Call) -> (String, String) {
    let of_port = format!("cni-br-iface-{}", id(call));
    let of_mac = format!("{of_port}-mac");
    (of_port, of_mac)
}

fn id(call: &Call) -> String {
    format!("{}-{}", call.container_id, call.ifname)
}
