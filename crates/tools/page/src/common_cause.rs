//! A common cause of many problems: one node that most of the others do not reach.

use std::collections::HashMap;

use flannel_lease::Subnet;

use crate::picture::{NodeView, Picture};

/// A node that most of the others do not reach.
pub(crate) struct CommonCause<'a> {
    pub(crate) node: &'a NodeView,
    pub(crate) reporters: usize,
}

/// Fewest nodes that must report it: one node that does not reach another may itself be the broken one.
const FEWEST_REPORTERS: usize = 2;

pub(crate) fn find(picture: &Picture) -> Option<CommonCause<'_>> {
    let mut subnets: HashMap<String, Subnet> = HashMap::new();
    for subnet in picture.nodes.keys() {
        subnets.extend(subnet.nets().map(|net| (net.to_string(), *subnet)));
    }
    let mut reporters: HashMap<Subnet, usize> = HashMap::new();
    let (mut answering, mut reporting) = (0, 0);
    for node in picture.nodes.values() {
        let Some(report) = &node.report else { continue };
        let mut unreached: Vec<Subnet> =
            report.unreached().filter_map(|name| subnets.get(name)).copied().collect();
        unreached.sort_unstable();
        unreached.dedup();
        answering += 1;
        reporting += usize::from(!unreached.is_empty());
        for subnet in unreached {
            *reporters.entry(subnet).or_default() += 1;
        }
    }
    let (subnet, count) = reporters.into_iter().max_by_key(|(subnet, count)| (*count, *subnet))?;
    let is_common = count >= FEWEST_REPORTERS && 2 * count > answering && 2 * count > reporting;
    let node = picture.nodes.get(&subnet).filter(|_| is_common)?;
    Some(CommonCause { node, reporters: count })
}
