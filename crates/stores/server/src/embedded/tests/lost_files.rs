//! Files of a data directory that were lost, emptied, or put there from somewhere else: whatever is
//! found, either nothing that was acknowledged is missing, or the server does not start.

use std::fs;
use std::path::Path;

use flannel_lease::{LeaseAttrs, NetworkName};

use super::super::journal::{Journal, OpenError};
use super::super::recent::RecentCommits;
use super::super::record;
use crate::lease_state::{LeaseState, Request, Who};

const LOG: &str = "leases.log";
const SNAPSHOT: &str = "leases.snapshot";

/// A data directory in use.
struct Run {
    dir: tempfile::TempDir,
    journal: Journal,
    lease_state: LeaseState,
    recent: RecentCommits,
    rng: fastrand::Rng,
    node: u32,
}

impl Run {
    fn new(history: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let opened = Journal::open(dir.path()).unwrap();
        let (journal, lease_state, recent) = (opened.journal, opened.lease_state, opened.recent);
        let rng = fastrand::Rng::with_seed(history);
        let mut run = Self { dir, journal, lease_state, recent, rng, node: 0 };
        let start = run.lease_state.start(history, 1_000);
        run.commit(start);
        let text =
            r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#.to_owned();
        run.ask(&Request::SetConfig { text, force: false });
        run
    }

    fn commit(&mut self, commit: crate::lease_state::Commit) {
        self.journal.append(std::slice::from_ref(&commit)).unwrap();
        self.lease_state.apply(&commit);
        self.recent.push(commit);
    }

    fn ask(&mut self, request: &Request) {
        let network = NetworkName::default();
        let commit = self.lease_state.decide(&network, request, 2_000, &mut self.rng).unwrap().1;
        self.commit(commit.unwrap());
    }

    fn work(&mut self) {
        for _ in 0..5 {
            self.node += 1;
            let ip = std::net::Ipv4Addr::from_bits(0xac10_0000 + self.node);
            let attrs = LeaseAttrs { public_ip: Some(ip), ..Default::default() };
            self.ask(&Request::Acquire { attrs, previous: None, who: Who::anybody() });
        }
    }

    fn compact(&mut self) {
        self.journal.compact(&self.lease_state, &self.recent).unwrap();
    }

    fn file(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.dir.path().join(name)).ok()
    }
}

/// The files of one life: a log alone, then twice a snapshot with a log that goes on from it, and each
/// log at its longest, which is what a crash while it is replaced leaves.
struct Life {
    logs: [Vec<u8>; 6],
    snapshots: [Vec<u8>; 2],
}

fn life(history: u64) -> Life {
    let mut run = Run::new(history);
    let mut logs = Vec::new();
    let mut snapshots = Vec::new();
    for stage in 0..3 {
        run.work();
        logs.push(run.file(LOG).unwrap());
        run.work();
        logs.push(run.file(LOG).unwrap());
        if stage < 2 {
            run.compact();
            snapshots.push(run.file(SNAPSHOT).unwrap());
        }
    }
    Life { logs: logs.try_into().unwrap(), snapshots: snapshots.try_into().unwrap() }
}

fn put(dir: &Path, name: &str, bytes: Option<&[u8]>) {
    if let Some(bytes) = bytes {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

fn open(log: Option<&[u8]>, snapshot: Option<&[u8]>) -> Result<u64, OpenError> {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), LOG, log);
    put(dir.path(), SNAPSHOT, snapshot);
    let opened = Journal::open(dir.path()).map(|opened| opened.lease_state.revision);
    if opened.is_err() {
        let left = |name: &str| fs::read(dir.path().join(name)).ok();
        assert_eq!(left(LOG).as_deref(), log, "nothing is changed");
        assert_eq!(left(SNAPSHOT).as_deref(), snapshot, "nothing is changed");
    }
    opened
}

/// Every log with every snapshot, of the same life and of another one that has come just as far.
#[test]
fn whatever_is_missing_empty_older_or_anothers_is_refused_and_what_belongs_together_is_not() {
    let (ours, theirs) = (life(1), life(2));
    let mut logs: Vec<(String, Option<&[u8]>)> =
        vec![("no log".to_owned(), None), ("empty log".to_owned(), Some(b""))];
    let mut snapshots: Vec<(String, Option<&[u8]>)> =
        vec![("no snapshot".to_owned(), None), ("empty snapshot".to_owned(), Some(b""))];
    for (whose, life) in [("our", &ours), ("their", &theirs)] {
        for (index, log) in life.logs.iter().enumerate() {
            logs.push((format!("{whose} log {index}"), Some(log)));
        }
        for (index, snapshot) in life.snapshots.iter().enumerate() {
            snapshots.push((format!("{whose} snapshot {index}"), Some(snapshot)));
        }
    }
    // The first log has everything; each snapshot goes with the log at its longest that it replaced, and
    // with the one that goes on from it, long or short.
    let whole = |life: &str| {
        let mut pairs = vec![];
        for (log, snapshot) in [
            (0, "no snapshot".to_owned()),
            (1, "no snapshot".to_owned()),
            (0, "empty snapshot".to_owned()),
            (1, "empty snapshot".to_owned()),
            (1, format!("{life} snapshot 0")),
            (2, format!("{life} snapshot 0")),
            (3, format!("{life} snapshot 0")),
            (3, format!("{life} snapshot 1")),
            (4, format!("{life} snapshot 1")),
            (5, format!("{life} snapshot 1")),
        ] {
            pairs.push((format!("{life} log {log}"), snapshot));
        }
        pairs
    };
    let mut good = [whole("our"), whole("their")].concat();
    good.push(("no log".to_owned(), "no snapshot".to_owned()));
    let mut refused = 0;
    for (log_name, log) in &logs {
        for (snapshot_name, snapshot) in &snapshots {
            let expected = good.contains(&(log_name.clone(), snapshot_name.clone()));
            match open(*log, *snapshot) {
                Ok(_) => assert!(expected, "{log_name} with {snapshot_name} was accepted"),
                Err(error @ OpenError::Mismatch { .. }) => {
                    assert!(!expected, "{log_name} with {snapshot_name}: {error}");
                    let text = error.to_string();
                    assert!(text.contains("leases.log") && text.contains("backup"), "{text}");
                    refused += 1;
                }
                Err(error) => panic!("{log_name} with {snapshot_name}: {error}"),
            }
        }
    }
    assert_eq!(refused, logs.len() * snapshots.len() - good.len());
}

#[test]
fn a_lost_snapshot_is_refused_naming_the_revisions() {
    let life = life(1);
    let end = open(Some(&life.logs[2]), Some(&life.snapshots[0])).unwrap();
    let said = open(Some(&life.logs[2]), None).unwrap_err().to_string();
    assert!(
        said.contains("continues revision 12") && said.contains("no snapshot"),
        "{end}: {said}"
    );
    let said = open(Some(&life.logs[4]), Some(&life.snapshots[0])).unwrap_err().to_string();
    assert!(said.contains("continues revision 22") && said.contains("of revision 12"), "{said}");
}

#[test]
fn a_log_with_a_hole_in_it_is_refused() {
    let life = life(1);
    let log = &life.logs[1];
    let records: Vec<Vec<u8>> =
        record::decode(log).payloads.iter().map(|payload| record::encode(payload)).collect();
    for hole in 1..records.len() - 1 {
        let mut left = records.clone();
        left.remove(hole);
        let opened = open(Some(&left.concat()), None);
        assert!(
            matches!(opened, Err(OpenError::Mismatch { .. })),
            "without record {hole}: {opened:?}"
        );
    }
}

/// As the first version of the store wrote it: a log that does not say where it begins, and that was
/// emptied when there was a snapshot.
#[test]
fn a_directory_of_the_first_version_is_read_and_judged_by_its_revisions() {
    let life = life(1);
    let old_log = |log: &[u8]| {
        let payloads = record::decode(log).payloads;
        payloads[1..].iter().flat_map(|payload| record::encode(payload)).collect::<Vec<u8>>()
    };
    let old_snapshot = |snapshot: &[u8]| {
        let text = String::from_utf8(record::decode(snapshot).payloads[0].to_vec()).unwrap();
        let before = text.replace(",\"log_is_marked\":true", "");
        assert_ne!(before, text);
        record::encode(before.as_bytes())
    };
    let logs = life.logs.each_ref().map(|log| old_log(log));
    let snapshots = life.snapshots.each_ref().map(|snapshot| old_snapshot(snapshot));
    assert!(open(Some(&logs[1]), None).is_ok());
    for (log, snapshot) in [(1, 0), (2, 0), (3, 0), (3, 1), (5, 1)] {
        assert!(open(Some(&logs[log]), Some(&snapshots[snapshot])).is_ok(), "{log}, {snapshot}");
    }
    assert!(open(Some(b""), Some(&snapshots[0])).is_ok(), "it was emptied a moment ago");
    for (log, snapshot) in [(0, 0), (4, 0), (0, 1), (1, 1), (2, 1)] {
        assert!(open(Some(&logs[log]), Some(&snapshots[snapshot])).is_err(), "{log}, {snapshot}");
    }
    assert!(open(Some(&logs[2]), None).is_err());
    assert!(open(None, Some(&snapshots[0])).is_err());
}

/// Writes sixty leases as a server does, and waits until it is noted that they were acknowledged.
fn sixty_acknowledged() -> (tempfile::TempDir, Vec<u8>) {
    use super::{Embedded, acknowledged::Acknowledged};
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let embedded = Embedded::open(dir.path(), 1).unwrap();
    let network = NetworkName::default();
    let text = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#.to_owned();
    runtime.block_on(embedded.ask(&network, Request::SetConfig { text, force: false })).unwrap();
    let mut last = 0;
    for node in 1..=60 {
        let attrs = LeaseAttrs { public_ip: Some([172, 16, 0, node].into()), ..Default::default() };
        let request = Request::Acquire { attrs, previous: None, who: Who::anybody() };
        match runtime.block_on(embedded.ask(&network, request)).unwrap() {
            crate::lease_state::Reply::Lease(_, entry) => last = entry.version,
            other => panic!("{other:?}"),
        }
    }
    let noted = || Acknowledged::read(dir.path()).is_some_and(|it| it.revision >= last);
    for _ in 0..2_000 {
        if noted() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(noted(), "it is noted a moment later");
    let log = fs::read(dir.path().join(LOG)).unwrap();
    // What the server keeps open is its own; the copy is what is damaged.
    let copy = tempfile::tempdir().unwrap();
    for name in [LOG, super::acknowledged::FILE] {
        fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    (copy, log)
}

#[test]
fn damage_or_a_cut_in_the_last_record_is_not_taken_for_an_interrupted_write() {
    let (dir, log) = sixty_acknowledged();
    let path = dir.path().join(LOG);
    let open = || Journal::open(dir.path()).map(|opened| opened.lease_state.revision);
    let flipped = |at: usize| {
        let mut bytes = log.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let end = log.len();
    for bad in
        [flipped(end - 1), flipped(end - 40), log[..end - 1].to_vec(), log[..end - 60].to_vec()]
    {
        fs::write(&path, &bad).unwrap();
        let said = open().unwrap_err().to_string();
        assert!(
            said.contains("were acknowledged") && said.contains("leases.acknowledged"),
            "{said}"
        );
        assert_eq!(fs::read(&path).unwrap(), bad, "nothing is changed");
    }
    // A write that was begun after all that: it is dropped, kept aside, and nothing else is lost.
    fs::write(&path, &log).unwrap();
    let whole = open().unwrap();
    let begun = &record::encode(b"begun")[..9];
    fs::write(&path, [&log[..], begun].concat()).unwrap();
    assert_eq!(open().unwrap(), whole);
    assert_eq!(fs::read(dir.path().join("leases.log.cut")).unwrap(), begun);
    // An older backup is taken when somebody says so.
    fs::write(&path, &log[..end - 1]).unwrap();
    fs::remove_file(dir.path().join(super::acknowledged::FILE)).unwrap();
    assert!(open().is_ok_and(|revision| revision < whole));
}
