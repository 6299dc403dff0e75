//! The host-local plugin: addresses of this node's own subnet, one of every range set for every
//! attachment, remembered on disk.

pub(crate) mod addr;
mod allocate;
pub mod audit;
mod conf;
mod lock;
mod range;
mod resolv;
mod store;

pub use allocate::AllocateError;
pub use conf::{IpamConf, Place};
pub use range::{Range, RangeError, RangeSet};
pub use store::{Owner, Reservation, Store, StoreError};

use crate::protocol::{Attachment, Call, Code, Dns, Error, ErrorContext, Outcome, Plugin};

pub struct HostLocal;

impl Plugin for HostLocal {
    fn understand(&self, call: &Call) -> Result<(), Error> {
        understand(call)
    }

    fn add(&self, call: &Call) -> Result<String, Error> {
        // Who calls us by name may have called before.
        add(call, true)?.outcome.to_json(call.conf.version).or_cni("could not print the result")
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        del(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check(call)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        gc(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        status(call)
    }
}

/// Addresses for an attachment.
pub struct Given {
    pub outcome: Outcome,
    /// It had some of them already: an earlier ADD was cut short.
    pub earlier: bool,
}

/// Gives out addresses. `retried`: the attachment may have got some already, which then are its own.
pub fn add(call: &Call, retried: bool) -> Result<Given, Error> {
    let place = Place::read(call)?;
    let conf = IpamConf::read(call)?;
    let dns = match &conf.resolv_conf {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .or_cni(format_args!("could not read {}", path.display()))?;
            resolv::parse(&text)
        }
        None => Dns::default(),
    };
    let store = Store::create(&place.directory)?;
    // Before the lock is taken: what belongs to this attachment nobody else changes, and to look for
    // it means to read all files there are.
    let own = match retried {
        true => store.of_attachment(&call.container_id, &call.ifname)?,
        false => Vec::new(),
    };
    let earlier = !own.is_empty();
    let ips = allocate::allocate(&store, &conf, call, own)?;
    Ok(Given {
        outcome: Outcome { interfaces: Vec::new(), ips, routes: conf.routes, dns },
        earlier,
    })
}

/// Sets free all that the attachment has. That it has nothing is nothing unusual.
pub fn del(call: &Call) -> Result<(), Error> {
    let place = Place::read(call)?;
    let Some(store) = Store::open(&place.directory)? else { return Ok(()) };
    let reservations = store.of_attachment(&call.container_id, &call.ifname)?;
    if reservations.is_empty() {
        return Ok(());
    }
    let lock = store.lock()?;
    for reservation in &reservations {
        store.release(&lock, reservation)?;
    }
    Ok(())
}

pub fn check(call: &Call) -> Result<(), Error> {
    let place = Place::read(call)?;
    let found = match Store::open(&place.directory)? {
        Some(store) => !store.of_attachment(&call.container_id, &call.ifname)?.is_empty(),
        None => false,
    };
    if found {
        return Ok(());
    }
    let msg =
        format!("host-local: Failed to find address added by container {}", call.container_id);
    Err(Error::new(Code::UnknownContainer, msg))
}

/// Sets free what belongs to no attachment that the runtime names as living.
pub fn gc(call: &Call) -> Result<(), Error> {
    let valid = call.valid_attachments()?;
    let place = Place::read(call)?;
    let Some(store) = Store::open(&place.directory)? else { return Ok(()) };
    let lock = store.lock()?;
    for reservation in store.reservations()? {
        if !valid.iter().any(|attachment| reservation.owner.is(attachment)) {
            store.release(&lock, &reservation)?;
        }
    }
    Ok(())
}

pub fn status(call: &Call) -> Result<(), Error> {
    let not_available = |error: Error| Error::new(Code::NotAvailable, error.to_string());
    understand(call).map_err(not_available)
}

pub fn understand(call: &Call) -> Result<(), Error> {
    Place::read(call)?;
    IpamConf::read(call).map(drop)
}

impl Owner {
    fn is(&self, attachment: &Attachment) -> bool {
        match self {
            Self::Attachment { container_id, ifname } => {
                *container_id == attachment.container_id && *ifname == attachment.ifname
            }
            Self::Container { container_id } => *container_id == attachment.container_id,
            Self::Nobody => false,
        }
    }
}
