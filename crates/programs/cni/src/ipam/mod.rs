//! The host-local plugin: gives each attachment an address of every range set, remembered on disk.

pub(crate) mod addr;
mod allocate;
pub mod audit;
mod conf;
mod lock;
mod range;
mod resolv;
mod store;

pub use conf::IpamConf;
pub use range::{Range, RangeSet};
pub use store::{Holder, Reservation, Store, StoreError};

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use crate::protocol::{
    Added, Attachment, Call, Code, Dns, Error, ErrorContext, Outcome, Plugin, Result, internal,
};

pub struct HostLocal;

impl Plugin for HostLocal {
    fn add(&self, call: &Call) -> Result<Added> {
        refuse_duplicate_allocation(call)?;
        Ok(Added::for_call(call, add(call)?.outcome))
    }

    /// Sets free all that the attachment has. That it has nothing is nothing unusual.
    fn del(&self, call: &Call) -> Result<()> {
        let Some(store) = Store::of_call(call)? else { return Ok(()) };
        release(&store, &reserved_for(call, &store)?)
    }

    fn check(&self, call: &Call) -> Result<()> {
        let found = match Store::of_call(call)? {
            Some(store) => !reserved_for(call, &store)?.is_empty(),
            None => false,
        };
        if found {
            return Ok(());
        }
        let msg =
            format!("host-local: Failed to find address added by container {}", call.container_id);
        Err(Error::new(Code::UnknownContainer, msg))
    }

    /// Sets free what belongs to no attachment that the runtime names as valid.
    fn gc(&self, call: &Call) -> Result<()> {
        let valid = call.valid_attachments()?;
        let Some(store) = Store::of_call(call)? else { return Ok(()) };
        let lock = store.lock()?;
        for reservation in store.reservations()? {
            let is_its = |it: &Attachment| {
                reservation.owner.is_attachment(&it.container_id, &it.ifname)
                    || reservation.owner.is_container(&it.container_id)
            };
            if !valid.iter().any(is_its) {
                store.release(&lock, &reservation)?;
            }
        }
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<()> {
        let is_readable = conf::directory(call).and_then(|_| IpamConf::read(call));
        is_readable.map(drop).map_err(Error::not_available)
    }
}

#[derive(Default)]
pub struct AllocatedAddresses {
    pub outcome: Outcome,
    /// It had some of them already: an earlier ADD was cut short.
    pub earlier: bool,
}

/// Gives out addresses. Those that the attachment may have got already are its own.
pub fn add(call: &Call) -> Result<AllocatedAddresses> {
    let conf = IpamConf::read(call)?;
    let dns = match &conf.resolv_conf {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .or_cni(format_args!("could not read {}", path.display()))?;
            resolv::parse(&text)
        }
        None => Dns::default(),
    };
    let store = Store::create(&conf::directory(call)?)?;
    // Before the lock is taken: it means to read all files, and nobody else changes this attachment's.
    let own = match call.retried {
        true => store.of_attachment(&call.container_id, &call.ifname)?,
        false => Vec::new(),
    };
    let earlier = !own.is_empty();
    let ips = allocate::allocate(&store, &conf, call, own)?;
    Ok(AllocatedAddresses {
        outcome: Outcome { interfaces: Vec::new(), ips, routes: conf.routes, dns },
        earlier,
    })
}

/// Who calls us by name, a bridge of somebody else's for one, calls once. What an attachment has got since
/// the host was started it may be using; what it had before, it gets again.
fn refuse_duplicate_allocation(call: &Call) -> Result<()> {
    let Some(store) = Store::of_call(call)? else { return Ok(()) };
    let Some(started) = host_start() else { return Ok(()) };
    for own in store.of_attachment(&call.container_id, &call.ifname)? {
        if store.since(own.ip).is_some_and(|at| at > started) {
            return Err(internal!(
                "{} has been allocated to {}, duplicate allocation is not allowed",
                own.ip,
                call.container_id
            ));
        }
    }
    Ok(())
}

fn host_start() -> Option<SystemTime> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds = uptime.split('.').next()?.parse().ok()?;
    SystemTime::now().checked_sub(Duration::from_secs(seconds))
}

/// Sets these addresses free, as far as they are the attachment's.
pub fn take_back(call: &Call, given: &[IpAddr]) -> Result<()> {
    let Some(store) = Store::of_call(call)? else { return Ok(()) };
    let reservations = store.of_attachment_among(&call.container_id, &call.ifname, given)?;
    release(&store, &reservations)
}

/// Reservations of the addresses in the ADD's result, if each has one: no other need be read then.
fn reserved_for(call: &Call, store: &Store) -> Result<Vec<Reservation>> {
    let (id, ifname) = (&call.container_id, &call.ifname);
    if let Ok(Some(result)) = call.previous_result() {
        let named: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        let found = store.of_attachment_among(id, ifname, &named)?;
        if !found.is_empty() && found.len() == named.len() {
            return Ok(found);
        }
    }
    Ok(store.of_attachment(id, ifname)?)
}

fn release(store: &Store, reservations: &[Reservation]) -> Result<()> {
    if reservations.is_empty() {
        return Ok(());
    }
    let lock = store.lock()?;
    for reservation in reservations {
        store.release(&lock, reservation)?;
    }
    Ok(())
}

impl Store {
    /// The one that a call is about. `None`: nothing was ever given out.
    fn of_call(call: &Call) -> Result<Option<Self>> {
        Ok(Self::open(&conf::directory(call)?)?)
    }
}
