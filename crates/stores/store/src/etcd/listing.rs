//! All of flannel's keys at one revision: in one answer, or by pages for one who works while etcd reads on.

use flannel_lease::{Lease, LeaseAttrs, Subnet, Version};
use prost::bytes::Bytes;

use super::fault::{Fault, Kind};
use super::keys::{KeyMeaning, KeyRange};
use super::leases::{EtcdLeases, Grant};
use super::proto::{Compare, KeyValue, RangeRequest, RangeResponse, ResponseHeader, TxnResponse};
use super::timing::{LIST_TIMEOUT_MAX, REQUEST_TIMEOUT};
use super::watch_progress::WatchProgress;
use super::{rpc, txn};
use crate::{AnnouncedSince, Cursor, Snapshot, StoreError, StoredLease};

/// Keys of the first page. Each page after it has twice as many: work begins soon, and few answers are waited for.
const FIRST_PAGE: i64 = 1_000;
/// Most times that a list is started: etcd may compact its revision before it is complete.
const MAX_LIST_STARTS: u32 = 4;
const MAX_PREALLOCATED: usize = 100_000;
const MAX_LOOKUPS: usize = 16;

#[derive(Debug)]
pub(super) struct Listing {
    pub(super) header: ResponseHeader,
    pub(super) config: Option<Bytes>,
    /// The lease that was asked for by name, which is among the others too.
    pub(super) named: Option<ListedLease>,
    pub(super) entries: Vec<ListedLease>,
}

#[derive(Debug)]
pub(super) struct ListedLease {
    pub(super) subnet: Subnet,
    /// `None` when the value cannot be read: the subnet is in use all the same.
    pub(super) attrs: Option<LeaseAttrs>,
    pub(super) kv: KeyValue,
    pub(super) since: Option<AnnouncedSince>,
}

/// Called after every page with the list so far and where the page begins; at 0 the list has started over.
pub(super) type OnPage<'a> = &'a mut (dyn FnMut(&Listing, usize) + Send);

/// The first pages, each with where its directory ends.
type FirstPages = Vec<(RangeResponse, Bytes)>;

impl EtcdLeases {
    pub(super) async fn list(&self) -> Result<Listing, StoreError> {
        self.list_by_pages(None, &mut |_, _| {}).await
    }

    /// `named`: the subnet whose lease is to be known from the first page on; without one there is one page.
    pub(super) async fn list_by_pages(
        &self,
        named: Option<&Subnet>,
        on_page: OnPage<'_>,
    ) -> Result<Listing, StoreError> {
        let attempted = || format!("list the leases under {}", self.keys.subnets());
        for _ in 1..MAX_LIST_STARTS {
            match self.list_once(named, on_page).await {
                Err(fault) if fault.kind == Kind::Outdated => tracing::info!(
                    reason = fault.reason,
                    "etcd has compacted the revision of this list: listing all leases again"
                ),
                done => return done.map_err(|fault| fault.during(attempted())),
            }
        }
        self.list_once(named, on_page).await.map_err(|fault| fault.during(attempted()))
    }

    async fn list_once(
        &self,
        named: Option<&Subnet>,
        on_page: OnPage<'_>,
    ) -> Result<Listing, Fault> {
        let directories = self.directories();
        let mut begun = self.begin(named, directories).await;
        // A role made for the Go flannel may not read a directory that one does not know.
        if let ([known, _], Err(fault)) = (directories, &begun)
            && fault.kind == Kind::Denied
        {
            begun = self.begin(named, std::slice::from_ref(known)).await;
            if begun.is_ok() {
                self.leave_out_v6();
            }
        }
        let (mut listing, first_pages) = begun?;
        let mut origin = self.history(listing.revision(), listing.revision());
        origin.continues_in(&listing.header);
        let (revision, mut limit) = (listing.revision(), FIRST_PAGE);
        for (first, end) in first_pages {
            let mut page = Some(first);
            while let Some(now) = page {
                limit *= 2;
                let rest = now.rest(&end).map(|range| page_of(range, revision, limit));
                // It is asked for before this one is read, so that etcd and we work at the same time.
                let next = self.next_page(rest, &mut origin);
                let (next, ()) = tokio::join!(next, async {
                    tokio::task::yield_now().await;
                    self.read_page(now, &mut listing, &mut *on_page);
                });
                page = next?;
            }
        }
        self.recover(&mut listing).await;
        self.date_disputed(&mut listing.entries).await;
        Ok(listing)
    }

    /// All that is at one revision in any case: the config, the lease with the name, and the first pages.
    async fn begin(
        &self,
        named: Option<&Subnet>,
        directories: &[String],
    ) -> Result<(Listing, FirstPages), Fault> {
        let named = named.map(|subnet| self.keys.lease(subnet));
        let single = |key: &str| txn::get(KeyRange::single(key));
        let ranges: Vec<KeyRange> =
            directories.iter().map(|dir| KeyRange::directory(dir)).collect();
        let limit = if named.is_some() { FIRST_PAGE } else { 0 };
        let pages = ranges.iter().map(|range| txn::range(page_of(range.clone(), 0, limit)));
        let request = [Some(single(&self.keys.config)), named.as_deref().map(single)];
        let request = txn::all(request.into_iter().flatten().chain(pages).collect());
        let time = *self.list_timeout.lock();
        let answer = self.client.unary_within(time, rpc::TXN, request).await;
        let answer: TxnResponse = self.timed(answer)?;

        let mut found = answer.responses.into_iter().map(txn::found_range);
        let mut single = || found.next().unwrap_or_default().kvs.into_iter().next();
        let config = single().map(|kv| kv.value);
        let named = named.and_then(|_| single()).and_then(|kv| self.read_entry(kv));
        let first_pages: FirstPages =
            found.zip(ranges.into_iter().map(|range| range.end)).collect();
        let header = answer.header.unwrap_or_default();
        let count: i64 = first_pages.iter().map(|(page, _)| page.count).sum();
        let entries =
            Vec::with_capacity(usize::try_from(count).unwrap_or_default().min(MAX_PREALLOCATED));
        Ok((Listing { header, config, named, entries }, first_pages))
    }

    async fn next_page(
        &self,
        request: Option<RangeRequest>,
        origin: &mut WatchProgress,
    ) -> Result<Option<RangeResponse>, Fault> {
        let Some(request) = request else { return Ok(None) };
        let time = *self.list_timeout.lock();
        let page = self.client.unary_within(time, rpc::RANGE, request).await;
        let page: RangeResponse = self.timed(page)?;
        if !origin.continues_in(page.header.as_ref().unwrap_or(&ResponseHeader::default())) {
            let reason = "it is not the one that has begun it, or was restored from a backup";
            return Err(Fault::new(Kind::Outdated, "", reason));
        }
        Ok(Some(page))
    }

    /// A page that takes too long is given more time at the next try.
    fn timed<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        let too_slow = answer.as_ref().is_err_and(|fault| fault.kind == Kind::Unavailable);
        let mut time = self.list_timeout.lock();
        *time = if too_slow { (*time * 2).min(LIST_TIMEOUT_MAX) } else { REQUEST_TIMEOUT };
        answer
    }

    fn read_page(&self, page: RangeResponse, listing: &mut Listing, on_page: OnPage<'_>) {
        let begin = listing.entries.len();
        listing.entries.extend(page.kvs.into_iter().filter_map(|kv| self.read_entry(kv)));
        on_page(listing, begin);
    }

    /// `None` for keys that are not leases.
    fn read_entry(&self, kv: KeyValue) -> Option<ListedLease> {
        match self.keys.meaning(&kv.key) {
            KeyMeaning::Lease(subnet) => {
                let attrs = LeaseAttrs::from_json(&kv.value).ok();
                if attrs.is_some() {
                    self.unreadable.lock().forget(&kv.key);
                }
                Some(ListedLease::created(subnet, attrs, kv))
            }
            KeyMeaning::Config => None,
            KeyMeaning::Foreign(why) => {
                self.unreadable.lock().note(&kv.key, why, None);
                None
            }
        }
    }

    /// Fills in the last good attributes of leases whose value cannot be read.
    async fn recover(&self, listing: &mut Listing) {
        let mut lookups = 0;
        for entry in listing.entries.iter_mut().filter(|entry| entry.attrs.is_none()) {
            let key = entry.kv.key.clone();
            if !self.unreadable.lock().knows(&key) && lookups < MAX_LOOKUPS {
                lookups += 1;
                self.note_bad_value(&entry.kv).await;
            }
            entry.attrs = self.unreadable.lock().last_good(&key).cloned();
        }
    }

    /// Logs a bad value once, after looking up the value before it, which etcd keeps until it is compacted.
    pub(super) async fn note_bad_value(&self, kv: &KeyValue) {
        let Err(why) = LeaseAttrs::from_json(&kv.value) else { return };
        if self.unreadable.lock().knows(&kv.key) {
            return;
        }
        let before = self.client.get(kv.key.clone(), kv.mod_revision - 1).await.ok().flatten();
        let last_good = before.and_then(|kv| LeaseAttrs::from_json(&kv.value).ok());
        self.unreadable.lock().note(&kv.key, why, last_good);
    }
}

/// A revision of 0 means the present one, a limit of 0 none.
fn page_of(range: KeyRange, revision: i64, limit: i64) -> RangeRequest {
    RangeRequest { revision, limit, ..range.into() }
}

impl RangeResponse {
    fn rest(&self, end: &Bytes) -> Option<KeyRange> {
        let last = self.kvs.last().filter(|_| self.more)?;
        let start = last.key.iter().copied().chain([0]).collect();
        Some(KeyRange { start, end: end.clone() })
    }
}

impl Listing {
    pub(super) fn revision(&self) -> i64 {
        self.header.revision
    }

    /// The leases whose attributes are known.
    pub(super) fn into_snapshot(self) -> Snapshot {
        let cursor = Cursor::new(self.revision().to_string());
        let leases = self.entries.into_iter().filter_map(ListedLease::stored).collect();
        Snapshot { cursor, leases }
    }
}

impl ListedLease {
    /// A lease of a list. Its announcement counts from its creation, unless [`EtcdLeases::date_disputed`] corrects it.
    pub(super) fn created(subnet: Subnet, attrs: Option<LeaseAttrs>, kv: KeyValue) -> Self {
        let since = AnnouncedSince::exact(kv.create_revision.unsigned_abs());
        Self { subnet, attrs, kv, since }
    }

    /// Lease of an event. A watcher that knew its former attributes knows whether they changed with it.
    pub(super) fn written(subnet: Subnet, attrs: LeaseAttrs, kv: KeyValue) -> Self {
        let since = AnnouncedSince::exact(kv.mod_revision.unsigned_abs());
        Self { subnet, attrs: Some(attrs), kv, since }
    }

    /// A key that does not expire is a reservation.
    pub(super) fn is_reserved(&self) -> bool {
        self.kv.lease == Grant::NONE.id
    }

    pub(super) fn is_unchanged(&self) -> Compare {
        txn::is_unchanged(&self.kv.key, self.kv.mod_revision)
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        Some(Lease { subnet: self.subnet, attrs: self.attrs.clone()? })
    }

    pub(super) fn version(&self) -> Version {
        Version::new(self.kv.mod_revision.unsigned_abs())
    }

    pub(super) fn stored(self) -> Option<StoredLease> {
        let (version, reserved) = (self.version(), self.is_reserved());
        Some(StoredLease {
            lease: Lease { subnet: self.subnet, attrs: self.attrs? },
            version,
            since: self.since,
            reserved,
        })
    }
}
