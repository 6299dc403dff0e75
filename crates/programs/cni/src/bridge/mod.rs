//! The bridge plugin: a bridge on the host, and for every container a pair of interfaces between it
//! and the container.

mod add;
mod check;
mod conf;
mod del;
mod gateways;
mod host;
mod ipam;
mod spoof;
mod vlan;

pub(crate) use add::refuse_attached;
pub(crate) use check::previous_result;
use conf::BridgeConf;

use crate::masquerade;
use crate::protocol::{Added, Call, Code, Error, Outcome, Plugin};

pub struct Bridge;

impl Plugin for Bridge {
    fn validate(&self, call: &Call) -> Result<(), Error> {
        let conf = BridgeConf::supported(call)?;
        if conf.ipam.is_empty() { Ok(()) } else { ipam::validate(call, &conf.ipam) }
    }

    fn add(&self, call: &Call) -> Result<Added, Error> {
        // Who calls us by name may have called before.
        Ok(Added::for_call(call, add(call, true)?))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        del::del(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check::check(call)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let conf = BridgeConf::read(call)?;
        let valid = call.valid_attachments()?;
        masquerade::collect(&call.conf.name, &valid)?;
        if conf.ipam.is_empty() { Ok(()) } else { ipam::gc(call, &conf.ipam) }
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let not_available = |error: Error| Error::new(Code::NotAvailable, error.to_string());
        let conf = BridgeConf::supported(call).map_err(not_available)?;
        if conf.ipam.is_empty() { Ok(()) } else { ipam::status(call, &conf.ipam) }
    }
}

/// `retried`: an earlier ADD of this attachment may have been cut short and left something behind.
pub fn add(call: &Call, retried: bool) -> Result<Outcome, Error> {
    add::add(call, retried)
}
