//! DEL: the container's interface, and with it the host's end; then its addresses and rules.

use super::conf::BridgeConf;
use super::ipam;
use crate::kernel::{Kernel, Removal};
use crate::masquerade;
use crate::netns::{Netns, NetnsError};
use crate::protocol::{Call, Error, ErrorContext};

/// Whatever is gone already is fine.
pub(super) fn del(call: &Call) -> Result<(), Error> {
    let conf = BridgeConf::read(call)?;
    if !call.netns.is_empty() {
        match Netns::open(&call.netns) {
            Ok(netns) => remove_interface(&netns, &call.ifname)?,
            // With the namespace, its interfaces are gone too.
            Err(NetnsError::Gone { .. } | NetnsError::NotANamespace { .. }) => {}
            Err(error) => return Err(Error::internal(error)),
        }
    }
    // Only now may somebody else have the address.
    let released = if conf.ipam.is_empty() { Ok(()) } else { ipam::del(call, &conf.ipam) };
    if conf.ip_masq && !conf.ipam.is_empty() {
        masquerade::tear_down(call)?;
    }
    released
}

pub(super) fn remove_interface(netns: &Netns, name: &str) -> Result<(), Error> {
    let prepare = || -> Result<Option<Removal>, Error> {
        let Some(link) = Kernel::open()?.link(name)? else { return Ok(None) };
        Removal::prepare(link.index).map(Some).map_err(Error::internal)
    };
    let removal = netns.inside(prepare).or_cni(format_args!("could not remove {name}"))??;
    match removal {
        Some(removal) => removal.carry_out().or_cni(format_args!("failed to delete {name:?}")),
        None => Ok(()),
    }
}
