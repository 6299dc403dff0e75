use std::collections::BTreeSet;

use super::*;
use crate::access::Access;
use crate::annotations::AnnotationPrefix;

/// What the daemon of one node does when the API server has forgotten where it was.
fn following(seed: u64, nodes: usize) -> Following {
    let access = Access::Kubeconfig { file: "/nowhere".into(), url: None };
    let prefix = AnnotationPrefix::parse("flannel.alpha.coreos.com").expect("a prefix");
    let cluster = Arc::new(Cluster::new(Api::new(access, prefix), "own", seed));
    {
        let mut table = cluster.table();
        for number in 0..nodes {
            let mut node = NodeView { name: number.to_string().into(), ..NodeView::default() };
            node.annotations.set(Key::SubnetManager, "true".into());
            node.pod_cidrs = vec![format!("10.{}.{}.0/24", number >> 8, number & 255).into()];
            table.listed(&node);
        }
    }
    let backoff = RETRY.tries(cluster.rng().fork());
    Following { cluster, events: mpsc::channel(1).0, version: None, backoff, down: None }
}

#[test]
fn nodes_of_a_cluster_take_all_nodes_anew_at_different_moments() {
    let nodes = 20;
    let whole = SPREAD_PER_NODE * u32::try_from(nodes).expect("a number");
    let moments: Vec<Duration> = (0..1_000).map(|seed| following(seed, nodes).spread()).collect();
    assert!(moments.iter().all(|moment| *moment < whole), "within 5 ms for each Node");
    // In each tenth of that time about a tenth of them.
    let mut tenths = [0; 10];
    for moment in &moments {
        tenths[(moment.as_nanos() * 10 / whole.as_nanos()) as usize] += 1;
    }
    assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
    assert!(moments.iter().collect::<BTreeSet<_>>().len() > 990, "hardly two at one moment");
}

#[test]
fn however_large_a_cluster_is_nobody_waits_for_more_than_a_minute() {
    let moments = (0..4).map(|seed| following(seed, 15_000).spread());
    let latest = moments.max().expect("four");
    assert!(latest <= MOST_SPREAD && latest > MOST_SPREAD / 2, "{latest:?}");
    assert_eq!(following(1, 0).spread(), Duration::ZERO);
}
