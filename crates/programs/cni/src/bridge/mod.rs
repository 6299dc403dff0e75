//! The bridge plugin: a bridge on the host, and a pair of interfaces to it for every container.

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
use crate::protocol::{Added, Call, Error, Plugin, Result};

pub struct Bridge;

impl Plugin for Bridge {
    fn add(&self, call: &Call) -> Result<Added> {
        Ok(Added::for_call(call, add::add(call)?))
    }

    fn del(&self, call: &Call) -> Result<()> {
        del::del(call)
    }

    fn check(&self, call: &Call) -> Result<()> {
        check::check(call)
    }

    fn gc(&self, call: &Call) -> Result<()> {
        let conf = BridgeConf::read(call)?;
        masquerade::collect(&call.conf.name, &call.valid_attachments()?)?;
        ipam::run(call, &conf.ipam)
    }

    fn status(&self, call: &Call) -> Result<()> {
        let conf = BridgeConf::supported(call).map_err(Error::not_available)?;
        ipam::run(call, &conf.ipam)
    }
}
