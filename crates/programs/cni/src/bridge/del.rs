//! DEL: the container's interface, and with it the host's end; then its addresses and rules.

use super::conf::BridgeConf;
use super::{ipam, spoof};
use crate::kernel::remove_link_of;
use crate::masquerade;
use crate::netns::{Netns, NetnsError};
use crate::protocol::{Call, Error, Result};

/// Whatever is gone already is fine.
pub(super) fn del(call: &Call) -> Result<()> {
    let conf = BridgeConf::read(call)?;
    if !call.netns.is_empty() {
        match Netns::open(&call.netns) {
            Ok(netns) => remove_link_of(&netns, &call.ifname)?,
            // With the namespace, its interfaces are gone too.
            Err(NetnsError::Gone { .. } | NetnsError::NotANamespace { .. }) => {}
            Err(error) => return Err(Error::internal(error)),
        }
    }
    if conf.no_spoofing {
        spoof::allow(call)?;
    }
    // Only now may somebody else have the address.
    let released = ipam::run(call, &conf.ipam);
    if conf.ip_masq && !conf.ipam.is_empty() {
        masquerade::tear_down(call)?;
    }
    released
}
