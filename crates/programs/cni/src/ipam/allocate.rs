//! Choosing addresses: one of every range set, the next in turn or the one that was asked for.

use std::net::IpAddr;

use ipnet::IpNet;

use super::audit;
use super::conf::IpamConf;
use super::lock::Lock;
use super::range::{Range, RangeSet};
use super::store::{Holder, Pen, Reservation, Store};
use crate::protocol::{Call, Code, Error, IpConfig, Result, internal};

/// `own`: what the attachment has already.
pub(super) fn allocate(
    store: &Store,
    conf: &IpamConf,
    call: &Call,
    own: Vec<Reservation>,
) -> Result<Vec<IpConfig>> {
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
                return Err(error.context(format_args!("failed to allocate for range {at}")));
            }
        }
    }
    if !requested.is_empty() {
        allocator.take_back();
        let list: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
        return Err(internal!("failed to allocate all requested IPs: {}", list.join(" ")));
    }
    Ok(ips)
}

fn taken(ip: IpAddr, set: &RangeSet) -> Error {
    internal!("requested IP address {ip} is not available in range set {set}")
}

fn exhausted(set: &RangeSet) -> Error {
    let msg = format!("no IP addresses available in range set: {set}");
    Error::new(Code::TryAgainLater, msg)
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
    fn choose(&mut self, at: usize, set: &RangeSet, wanted: Option<IpAddr>) -> Result<IpConfig> {
        let kept = |ip: IpAddr| wanted.is_none_or(|wanted| wanted == ip);
        let own = self
            .own
            .iter()
            .find_map(|own| set.range_of(own.ip).filter(|_| kept(own.ip)).map(|r| (own, r)));
        let (ip, range) = match (own, wanted) {
            (Some((own, range)), _) => {
                self.sign(own, set)?;
                (own.ip, range)
            }
            (None, Some(ip)) => (ip, self.take(set, ip)?),
            (None, None) => self.take_next(at, set)?,
        };
        let Ok(address) = IpNet::new(ip, range.subnet.prefix_len()) else {
            // A prefix length of the same family always fits.
            return Err(exhausted(set));
        };
        Ok(IpConfig { interface: None, address, gateway: Some(range.gateway), family: None })
    }

    /// Adds the interface to a reservation of an old plugin: DEL looks for one with it first.
    fn sign(&self, own: &Reservation, set: &RangeSet) -> Result<()> {
        if matches!(own.owner, Holder::Attachment { .. }) {
            return Ok(());
        }
        let lock = self.store.lock()?;
        if self.store.release(&lock, own)? && self.pen.reserve(&lock, own.ip)? {
            return Ok(());
        }
        Err(taken(own.ip, set))
    }

    fn take<'s>(&mut self, set: &'s RangeSet, ip: IpAddr) -> Result<&'s Range> {
        let range = set.range_of(ip).ok_or_else(|| taken(ip, set))?;
        if ip == range.gateway {
            return Err(internal!("requested ip {ip} is subnet's gateway"));
        }
        let lock = self.store.lock()?;
        if !self.pen.reserve(&lock, ip)? {
            return Err(taken(ip, set));
        }
        self.made.push(ip);
        Ok(range)
    }

    fn take_next<'s>(&mut self, at: usize, set: &'s RangeSet) -> Result<(IpAddr, &'s Range)> {
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
        found.ok_or_else(|| exhausted(set))
    }

    fn first_free<'s>(
        &mut self,
        lock: &Lock,
        at: usize,
        set: &'s RangeSet,
    ) -> Result<Option<(IpAddr, &'s Range)>> {
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
        if self.made.is_empty() {
            return;
        }
        let Ok(lock) = self.store.lock() else { return };
        for ip in self.made.drain(..) {
            if let Ok(Some(owner)) = self.store.owner(ip) {
                let _ = self.store.release(&lock, &Reservation { ip, owner });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ipam;
    use crate::protocol::{Call, Code, Environment, Plugin as _};

    fn call(root: &std::path::Path) -> Call {
        let getenv = |name: &str| {
            Some(match name {
                "CNI_COMMAND" => "ADD".to_owned(),
                "CNI_CONTAINERID" => "abc".into(),
                "CNI_IFNAME" => "eth0".into(),
                _ => "/does/not/exist".into(),
            })
        };
        let conf = serde_json::json!({
            "cniVersion": "1.0.0", "name": "net",
            "ipam": {"dataDir": root, "ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]},
        });
        Call::read(&Environment(&getenv), conf.to_string().as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn status_refuses_what_add_would_refuse() {
        let root = tempfile::tempdir().unwrap();
        let mut call = call(root.path());
        ipam::HostLocal.status(&call).unwrap();
        call.conf.members["ipam"]["dataDir"] = 1.into();
        let error = ipam::HostLocal.status(&call).unwrap_err();
        assert_eq!(error.code, Code::NotAvailable as u32);
        assert!(error.msg.contains("'dataDir'"), "{error}");
    }

    #[test]
    fn what_a_plugin_of_old_has_reserved_is_kept_and_does_not_outlive_the_attachment() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("net");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("10.0.0.3"), "abc").unwrap();
        let call = call(root.path());
        let given = ipam::add(&call).unwrap();
        assert_eq!(given.outcome.ips[0].address.to_string(), "10.0.0.3/24");
        assert_eq!(std::fs::read(directory.join("10.0.0.3")).unwrap(), b"abc\r\neth0");
        ipam::HostLocal.del(&call).unwrap();
        let store = ipam::Store::open(&directory).unwrap().unwrap();
        assert_eq!(store.reservations().unwrap(), []);
    }
}
