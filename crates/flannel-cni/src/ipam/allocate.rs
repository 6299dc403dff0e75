//! Choosing addresses: one of every range set, the next in turn or the one that was asked for.

use std::net::IpAddr;

use ipnet::IpNet;

use super::audit;
use super::conf::IpamConf;
use super::lock::Lock;
use super::range::{Range, RangeSet};
use super::store::{Pen, Reservation, Store, StoreError};
use crate::protocol::{Call, Code, Error, IpConfig};

#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    #[error("requested ip {0} is subnet's gateway")]
    IsGateway(IpAddr),
    #[error("requested IP address {ip} is not available in range set {set}")]
    Taken { ip: IpAddr, set: RangeSet },
    #[error("no IP addresses available in range set: {0}")]
    Exhausted(RangeSet),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// `own`: what the attachment has already.
pub(super) fn allocate(
    store: &Store,
    conf: &IpamConf,
    call: &Call,
    own: Vec<Reservation>,
) -> Result<Vec<IpConfig>, Error> {
    let mut requested = conf.requested.clone();
    let mut allocator = Allocator {
        pen: store.pen(&call.container_id, &call.ifname)?,
        network: &call.conf.name,
        store,
        own,
        made: Vec::new(),
    };
    let mut ips = Vec::with_capacity(conf.sets.len());
    for (at, set) in conf.sets.iter().enumerate() {
        let wanted = requested
            .iter()
            .position(|ip| set.range_of(*ip).is_some())
            .map(|at| requested.remove(at));
        match allocator.choose(at, set, wanted) {
            Ok(ip) => ips.push(ip),
            Err(error) => {
                allocator.take_back();
                let code = match error {
                    AllocateError::Exhausted(_) => Code::TryAgainLater,
                    _ => Code::Internal,
                };
                return Err(Error::new(
                    code,
                    format!("failed to allocate for range {at}: {error}"),
                ));
            }
        }
    }
    if !requested.is_empty() {
        allocator.take_back();
        let list: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
        return Err(Error::internal(format_args!(
            "failed to allocate all requested IPs: {}",
            list.join(" ")
        )));
    }
    Ok(ips)
}

struct Allocator<'a> {
    store: &'a Store,
    pen: Pen<'a>,
    network: &'a str,
    /// What the attachment got when it was added before.
    own: Vec<Reservation>,
    made: Vec<IpAddr>,
}

impl Allocator<'_> {
    fn choose(
        &mut self,
        at: usize,
        set: &RangeSet,
        wanted: Option<IpAddr>,
    ) -> Result<IpConfig, AllocateError> {
        let kept = |ip: IpAddr| wanted.is_none_or(|wanted| wanted == ip);
        let own = self
            .own
            .iter()
            .find_map(|own| set.range_of(own.ip).filter(|_| kept(own.ip)).map(|r| (own.ip, r)));
        let (ip, range) = match (own, wanted) {
            (Some(own), _) => own,
            (None, Some(ip)) => (ip, self.take(set, ip)?),
            (None, None) => self.take_next(at, set)?,
        };
        let Ok(address) = IpNet::new(ip, range.subnet.prefix_len()) else {
            // A prefix length of the same family always fits.
            return Err(AllocateError::Exhausted(set.clone()));
        };
        Ok(IpConfig { interface: None, address, gateway: Some(range.gateway), family: None })
    }

    fn take<'s>(&mut self, set: &'s RangeSet, ip: IpAddr) -> Result<&'s Range, AllocateError> {
        let taken = || AllocateError::Taken { ip, set: set.clone() };
        let range = set.range_of(ip).ok_or_else(taken)?;
        if ip == range.gateway {
            return Err(AllocateError::IsGateway(ip));
        }
        let lock = self.store.lock()?;
        if !self.pen.reserve(&lock, ip)? {
            return Err(taken());
        }
        self.made.push(ip);
        Ok(range)
    }

    fn take_next<'s>(
        &mut self,
        at: usize,
        set: &'s RangeSet,
    ) -> Result<(IpAddr, &'s Range), AllocateError> {
        let lock = self.store.lock()?;
        let mut found = self.first_free(&lock, at, set)?;
        if found.is_none() {
            // Before we give up: some may belong to attachments that are long gone, since the host
            // was restarted, say. A second look at a full range costs nobody anything.
            drop(lock);
            audit::reclaim(self.store, self.network);
            let lock = self.store.lock()?;
            found = self.first_free(&lock, at, set)?;
        }
        found.ok_or_else(|| AllocateError::Exhausted(set.clone()))
    }

    fn first_free<'s>(
        &mut self,
        lock: &Lock,
        at: usize,
        set: &'s RangeSet,
    ) -> Result<Option<(IpAddr, &'s Range)>, AllocateError> {
        for (ip, range) in set.after(self.store.last_reserved(at)) {
            if self.pen.reserve(lock, ip)? {
                self.made.push(ip);
                self.store.set_last_reserved(at, ip)?;
                return Ok(Some((ip, range)));
            }
        }
        Ok(None)
    }

    /// All or nothing.
    fn take_back(&mut self) {
        let Ok(lock) = self.store.lock() else { return };
        for ip in self.made.drain(..) {
            if let Ok(Some(owner)) = self.store.owner(ip) {
                let _ = self.store.release(&lock, &Reservation { ip, owner });
            }
        }
    }
}
