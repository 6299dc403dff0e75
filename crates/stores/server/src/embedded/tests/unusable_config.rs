//! A config in the data directory that this version cannot use: written by a newer one before a
//! downgrade, or by an older one with laxer rules.

use std::net::Ipv4Addr;
use std::path::Path;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_store::Store as _;
use flannel_store::wire::WatchResult;

use super::super::journal::Journal;
use super::super::recent::RecentCommits;
use super::super::store::EmbeddedStore;
use super::super::*;
use crate::LeaseService as _;
use crate::lease_state::{Change, Commit, LeaseState, Who};
use crate::watch_log::AnswerStyle;

const USABLE: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;
/// With spaces, a line feed and a number that no float holds: any rewriting would show.
const UNUSABLE: &str = "{\"Network\" : \"10.0.0.0/8\",\n\t\"SubnetLen\": \"as long as need be\", \"Seq\": 12345678901234567890123 }";

fn acquire(node: u8) -> Request {
    let public_ip = Some(Ipv4Addr::new(192, 0, 2, node));
    let attrs = LeaseAttrs { public_ip, ..LeaseAttrs::default() };
    Request::Acquire { attrs, previous: None, who: Who::anybody() }
}

/// A data directory with one lease, of node 1, in which the network's config is [`UNUSABLE`].
fn written(dir: &Path) -> Subnet {
    let DirectoryContents { mut journal, mut lease_state, .. } = Journal::open(dir).unwrap();
    let (mut rng, network) = (fastrand::Rng::with_seed(1), NetworkName::default());
    let mut keep = |lease_state: &mut LeaseState, commit: Commit| {
        journal.append(std::slice::from_ref(&commit)).unwrap();
        lease_state.apply(&commit);
    };
    let start = lease_state.start(1, 1_000);
    keep(&mut lease_state, start);
    for request in [Request::SetConfig { text: USABLE.to_owned(), force: false }, acquire(1)] {
        let commit = lease_state.decide(&network, &request, 2_000, &mut rng).unwrap().1.unwrap();
        keep(&mut lease_state, commit);
    }
    let config = Change::Config { network: network.clone(), text: Some(UNUSABLE.to_owned()) };
    let commit = Commit { revision: lease_state.revision + 1, at: 3_000, changes: vec![config] };
    keep(&mut lease_state, commit);
    *lease_state.network(&network).unwrap().leases().keys().next().unwrap()
}

fn kept(lease_state: &LeaseState) -> Option<(&str, u64)> {
    let network = lease_state.network(&NetworkName::default())?;
    Some((network.config_text()?, network.config_revision()))
}

#[test]
fn a_config_that_cannot_be_used_is_kept_byte_for_byte_over_any_number_of_compactions() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path());
    for _ in 0..3 {
        let DirectoryContents { mut journal, lease_state, .. } = Journal::open(dir.path()).unwrap();
        assert_eq!(kept(&lease_state), Some((UNUSABLE, 4)));
        assert_eq!(lease_state.network(&NetworkName::default()).unwrap().leases().len(), 1);
        journal.compact(&lease_state, &RecentCommits::new(lease_state.revision)).unwrap();
    }
}

#[tokio::test]
async fn under_a_config_that_cannot_be_used_leases_live_on_and_new_ones_are_refused_with_the_reason()
 {
    let dir = tempfile::tempdir().unwrap();
    let subnet = written(dir.path());
    let network = NetworkName::default();
    let embedded = Embedded::open(dir.path(), 1).unwrap();
    let Request::Acquire { attrs, .. } = acquire(1) else { unreachable!() };
    let renew = Request::Renew { subnet, attrs, version: None, who: Who::anybody() };
    for request in [renew, acquire(1)] {
        match embedded.ask(&network, request.clone()).await {
            Ok(Reply::Lease(of, _)) if of == subnet => {}
            other => panic!("{request:?}: {other:?}"),
        }
    }
    let refused = embedded.ask(&network, acquire(2)).await.unwrap_err().to_string();
    assert!(
        refused.contains("SubnetLen") && refused.contains("flannelctl config set"),
        "{refused}"
    );

    // Whoever reads it gets what was written, not the news that it was deleted.
    let store = EmbeddedStore::new(embedded.clone(), network.clone());
    assert_eq!(store.config().await.unwrap().as_deref(), Some(UNUSABLE));
    let watch_log = embedded.watch_logs().get_or_create(&network);
    let (line, _) = watch_log.answer(None, AnswerStyle::Stream).unwrap();
    let line = std::str::from_utf8(&line).unwrap();
    assert_eq!(line.trim_end().lines().count(), 1, "a line of a stream is one line");
    let told = WatchResult::read(line).unwrap().config.unwrap().unwrap();
    assert_eq!(
        told.split_whitespace().collect::<String>(),
        UNUSABLE.split_whitespace().collect::<String>()
    );

    // A usable one puts everything right.
    let mend = Request::SetConfig { text: USABLE.to_owned(), force: false };
    embedded.ask(&network, mend).await.unwrap();
    match embedded.ask(&network, acquire(2)).await.unwrap() {
        Reply::Lease(of, _) => assert_ne!(of, subnet),
        Reply::Done => panic!("acquiring gives a lease"),
    }
}
