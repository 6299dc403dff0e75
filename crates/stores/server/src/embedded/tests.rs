mod lost_files;
mod unusable_config;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_store::{KeptLease, LogPosition, MAX_DATA_BYTES};

use super::journal::{Journal, OpenError};
use super::recent::RecentCommits;
use super::*;
use crate::LeaseService as _;
use crate::lease_state::{LeaseState, Who};
use crate::watch_log::{Event, News};

const CONFIG: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;

fn network() -> NetworkName {
    NetworkName::default()
}

fn attrs(node: u32) -> LeaseAttrs {
    let ip = std::net::Ipv4Addr::from_bits(0xac10_0000 + node);
    LeaseAttrs { public_ip: Some(ip), ..Default::default() }
}

fn acquire(node: u32) -> Request {
    Request::Acquire { attrs: attrs(node), previous: None, who: Who::anybody() }
}

fn set_config() -> Request {
    Request::SetConfig { text: CONFIG.to_owned(), force: false }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The lock is given back when the writer's thread has ended, a moment after the last handle.
fn open(dir: &Path) -> Embedded {
    for _ in 0..200 {
        match Embedded::open(dir, fastrand::u64(..)) {
            Err(OpenError::Locked { .. }) => {
                std::thread::sleep(std::time::Duration::from_millis(5))
            }
            other => return other.unwrap(),
        }
    }
    panic!("{} stays locked", dir.display());
}

fn leases(embedded: &Embedded) -> BTreeMap<Subnet, LeaseAttrs> {
    let all = embedded.watch_logs().get_or_create(&network()).snapshot();
    all.leases.into_iter().map(|(subnet, entry)| (subnet, entry.attrs)).collect()
}

async fn take(embedded: &Embedded, node: u32) -> (Subnet, KeptLease) {
    match embedded.ask(&network(), acquire(node)).await.unwrap() {
        Reply::Lease(subnet, entry) => (subnet, entry),
        Reply::Done => panic!("acquiring gives a lease"),
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let before = runtime.block_on(async {
        let embedded = open(dir.path());
        embedded.ask(&network(), set_config()).await.unwrap();
        for node in 0..50 {
            take(&embedded, node).await;
        }
        leases(&embedded)
    });
    assert_eq!(before.len(), 50);
    let again = open(dir.path());
    assert_eq!(leases(&again), before);
    let (subnet, _) = runtime.block_on(take(&again, 7));
    assert!(before.contains_key(&subnet), "a node keeps its subnet");
}

#[test]
fn one_data_directory_has_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let _first = open(dir.path());
    let second = Embedded::open(dir.path(), 2);
    assert!(matches!(second, Err(OpenError::Locked { .. })), "{second:?}");
}

/// A power cut at every byte of the last writes: whatever is left of them on the disk - a part, or
/// a part with rubbish behind it - what was acknowledged before is there and nothing else.
#[test]
fn a_power_cut_at_any_byte_loses_nothing_acknowledged_and_invents_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("leases.log");
    let mut rng = fastrand::Rng::with_seed(3);
    // What is in the log after each acknowledged write, and the lease state at that point.
    let mut states: Vec<(usize, String)> = Vec::new();
    {
        let opened = Journal::open(dir.path()).unwrap();
        let (mut journal, mut lease_state) = (opened.journal, opened.lease_state);
        let start = lease_state.start(1, 1_000);
        journal.append(std::slice::from_ref(&start)).unwrap();
        lease_state.apply(&start);
        let requests = std::iter::once(set_config()).chain((0..6).map(acquire));
        for (step, request) in requests.enumerate() {
            let now = 2_000 + step as u64;
            let (_, commit) = lease_state.decide(&network(), &request, now, &mut rng).unwrap();
            let commit = commit.unwrap();
            journal.append(std::slice::from_ref(&commit)).unwrap();
            lease_state.apply(&commit);
            states.push((fs::read(&log).unwrap().len(), format!("{lease_state:?}")));
        }
    }
    let whole = fs::read(&log).unwrap();
    let recovered = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("leases.log"), bytes).unwrap();
        let opened = Journal::open(dir.path()).unwrap();
        // What was torn off is gone for good: the next write stands right behind the last good one.
        let left = fs::read(dir.path().join("leases.log")).unwrap();
        (format!("{:?}", opened.lease_state), left.len())
    };
    let first = states[3].0;
    let mut cuts = 0;
    for cut in first..=whole.len() {
        let (length, expected) = states.iter().rev().find(|(length, _)| *length <= cut).unwrap();
        assert_eq!(recovered(&whole[..cut]), (expected.clone(), *length), "cut at {cut}");
        // The file was made longer before its blocks were written, or they hold something else.
        let next = states.iter().map(|(length, _)| *length).find(|length| *length > cut);
        for filler in [0_u8, 0xff, rng.u8(..)] {
            let Some(next) = next.filter(|_| cut > *length) else { continue };
            let mut torn = whole[..next].to_vec();
            // A byte that happens to be the right one has not been torn.
            if torn[cut..].iter().all(|byte| *byte == filler) {
                continue;
            }
            torn[cut..].fill(filler);
            assert_eq!(recovered(&torn), (expected.clone(), *length), "torn at {cut}");
            cuts += 1;
        }
    }
    assert!(cuts > 500, "{cuts}");
}

#[test]
fn damage_in_the_middle_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let embedded = open(dir.path());
        embedded.ask(&network(), set_config()).await.unwrap();
        take(&embedded, 1).await;
        take(&embedded, 2).await;
    });
    let log = dir.path().join("leases.log");
    let mut bytes = loop {
        // Until the writer's thread has ended.
        if Journal::open(dir.path()).is_ok() {
            break fs::read(&log).unwrap();
        }
    };
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let refused = Embedded::open(dir.path(), 1);
    assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
    assert_eq!(fs::read(&log).unwrap(), bytes);
}

#[test]
fn a_long_log_becomes_a_snapshot_with_the_same_content_and_history() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Journal::open(dir.path()).unwrap();
    let (mut journal, mut lease_state) = (opened.journal, opened.lease_state);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut commits = vec![lease_state.start(1, 1_000)];
    lease_state.apply(&commits[0]);
    for (step, request) in std::iter::once(set_config()).chain((0..40).map(acquire)).enumerate() {
        let now = 2_000 + step as u64;
        let commit = lease_state.decide(&network(), &request, now, &mut rng).unwrap().1.unwrap();
        lease_state.apply(&commit);
        commits.push(commit);
    }
    journal.append(&commits).unwrap();
    let mut recent = RecentCommits::default();
    commits.iter().for_each(|commit| recent.push(commit.clone()));
    let log = fs::read(dir.path().join("leases.log")).unwrap();
    journal.compact(&lease_state, &recent).unwrap();
    let short = fs::metadata(dir.path().join("leases.log")).unwrap().len();
    assert!(short < 100 && short < log.len() as u64, "{short}");
    drop(journal);
    let check = |why: &str| {
        let opened = Journal::open(dir.path()).unwrap();
        assert_eq!(format!("{:?}", opened.lease_state), format!("{lease_state:?}"), "{why}");
        assert!(opened.recent.commits().eq(&commits), "{why}");
        assert_eq!(opened.recent.floor(), 0, "{why}");
    };
    check("from the snapshot");
    fs::write(dir.path().join("leases.log"), log).unwrap();
    check("the server died before it could empty the log");
    fs::write(dir.path().join("leases.snapshot.new"), b"half a snap").unwrap();
    check("the server died while writing a snapshot");
}

#[test]
fn a_watcher_goes_on_over_a_restart_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let embedded = open(dir.path());
        embedded.ask(&network(), set_config()).await.unwrap();
        take(&embedded, 1).await;
        let cursor = embedded.watch_logs().get_or_create(&network()).snapshot().cursor;
        take(&embedded, 2).await;
        drop(embedded);
        let again = open(dir.path());
        let watch_log = again.watch_logs().get_or_create(&network());
        let News::Events(events, next) = watch_log.since(cursor) else { panic!("it is continued") };
        assert!(matches!(&events[..], [Event::Put(_, entry)] if entry.attrs == attrs(2)));
        assert_eq!(watch_log.since(next), News::Events(vec![], next));
    });
}

#[test]
fn a_watcher_notices_a_server_with_an_older_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let backup = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let embedded = open(dir.path());
        embedded.ask(&network(), set_config()).await.unwrap();
        take(&embedded, 1).await;
        fs::copy(dir.path().join("leases.log"), backup.path().join("leases.log")).unwrap();
        take(&embedded, 2).await;
        let cursor = embedded.watch_logs().get_or_create(&network()).snapshot().cursor;

        let old = open(backup.path());
        let watch_log = old.watch_logs().get_or_create(&network());
        assert!(matches!(watch_log.since(cursor), News::Snapshot(_)), "it is not as far");
        for node in 3..10 {
            take(&old, node).await;
        }
        let News::Snapshot(all) = watch_log.since(cursor) else { panic!("it has got further") };
        assert!(all.leases.iter().all(|(_, entry)| entry.attrs != attrs(2)));
        let of_no_history = LogPosition { history: None, ..all.cursor };
        assert_eq!(watch_log.since(of_no_history), News::Events(vec![], all.cursor));
    });
}

#[test]
fn many_requests_share_a_sync_and_each_gets_its_own_subnet() {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let embedded = open(dir.path());
        embedded.ask(&network(), set_config()).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for node in 0..500 {
            let embedded = embedded.clone();
            tasks.spawn(async move { take(&embedded, node).await.0 });
        }
        let subnets: std::collections::BTreeSet<Subnet> =
            tasks.join_all().await.into_iter().collect();
        assert_eq!(subnets.len(), 500);
    });
}

/// A file system of this many bytes, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        run("mount", &["-t", "tmpfs", "-o", options, "small"], dir.path());
        Self(dir)
    }

    fn remount(&self, options: &str) {
        run("mount", &["-o", &format!("remount,{options}")], self.0.path());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["-l"], self.0.path());
    }
}

fn run(program: &str, words: &[&str], path: &Path) {
    let done = std::process::Command::new(program).args(words).arg(path).status();
    assert!(done.is_ok_and(|status| status.success()), "{program} {words:?}: needs root");
}

#[test]
fn a_full_disk_is_refused_loses_nothing_and_is_got_over() {
    let disk = SmallDisk::new("size=64k");
    let embedded = open(disk.0.path());
    runtime().block_on(async {
        embedded.ask(&network(), set_config()).await.unwrap();
        let mut node = 0;
        let refused = loop {
            match embedded.ask(&network(), acquire(node)).await {
                Ok(_) => node += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, AskError::ReadOnly(_)), "{refused:?}");
        assert!(node > 50, "{node}");
        let known = leases(&embedded);
        assert_eq!(known.len(), node as usize, "what was refused is not there");
        disk.remount("size=1m");
        assert_eq!(take(&embedded, node).await.1.attrs, attrs(node), "there is room again");
        drop(embedded);
        let again = leases(&open(disk.0.path()));
        assert_eq!(again.len(), node as usize + 1);
        assert!(known.iter().all(|(subnet, attrs)| again.get(subnet) == Some(attrs)));
    });
}

#[test]
fn a_disk_that_turns_read_only_is_refused_while_it_is_so() {
    let disk = SmallDisk::new("size=1m");
    let dir = disk.0.path().join("data");
    runtime().block_on(async {
        let embedded = open(&dir);
        embedded.ask(&network(), set_config()).await.unwrap();
        take(&embedded, 1).await;
        drop(embedded);
        drop(open(&dir));
    });
    // Not while a file is open for writing: the kernel would not let us.
    let unlocked = || Journal::open(&dir).is_ok();
    while !unlocked() {
        std::thread::yield_now();
    }
    disk.remount("ro");
    let refused = Embedded::open(&dir, 1);
    assert!(matches!(refused, Err(OpenError::Io { .. })), "{refused:?}");
    disk.remount("rw");
    assert_eq!(leases(&open(&dir)).len(), 1);
}

/// A node may say something else about itself with every renewal.
#[test]
fn what_is_kept_of_the_past_does_not_grow_with_what_leases_carry() {
    let disk = SmallDisk::new("size=256m");
    let large = |renewal: usize| {
        let data = format!("\"{renewal:0width$}\"", width = MAX_DATA_BYTES - 2);
        let backend_data = flannel_lease::RawJson::read(&data).unwrap();
        LeaseAttrs { backend_data, ..attrs(1) }
    };
    let used = || {
        let files = fs::read_dir(disk.0.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let runtime = runtime();
    runtime.block_on(async {
        let embedded = open(disk.0.path());
        embedded.ask(&network(), set_config()).await.unwrap();
        let (subnet, _) = take(&embedded, 1).await;
        let watch_log = embedded.watch_logs().get_or_create(&network());
        let start = watch_log.snapshot().cursor;
        let mut most = 0;
        for renewal in 0..6_000 {
            let (attrs, who) = (large(renewal), Who::anybody());
            let renew = Request::Renew { subnet, attrs, version: None, who };
            embedded.ask(&network(), renew).await.unwrap();
            most = most.max(used());
        }
        assert!(matches!(watch_log.since(start), News::Snapshot(_)), "that is long ago");
        assert!(most < 64 << 20, "{most} bytes for one lease");
    });
    let opened = loop {
        if let Ok(opened) = Journal::open(disk.0.path()) {
            break opened;
        }
    };
    let kept: usize = opened.recent.commits().map(crate::lease_state::Commit::weight).sum();
    assert!(kept <= crate::watch_log::MAX_KEPT_BYTES, "{kept}");
}

#[test]
fn replaying_the_log_gives_the_same_state() {
    let mut lease_state = LeaseState::default();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut commits = vec![lease_state.start(1, 5)];
    lease_state.apply(&commits[0]);
    for node in 0..100 {
        let request = if node == 0 { set_config() } else { acquire(node) };
        if let Ok((_, Some(commit))) = lease_state.decide(&network(), &request, 10, &mut rng) {
            lease_state.apply(&commit);
            commits.push(commit);
        }
    }
    let mut replayed = LeaseState::default();
    for commit in &commits {
        replayed.apply(&crate::lease_state::Commit::from_json(&commit.to_json().unwrap()).unwrap());
    }
    assert_eq!(format!("{replayed:?}"), format!("{lease_state:?}"));
}
