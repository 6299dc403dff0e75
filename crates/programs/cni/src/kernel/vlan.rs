//! VLANs of bridges and their ports.

use flannel_netlink::{AttributeWriter, RawRequest};
use libc::{
    IFLA_AF_SPEC, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_DELLINK, RTM_NEWLINK,
    RTM_SETLINK,
};

use super::{Kernel, KernelError, Link};

const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BRIDGE_FLAGS: u16 = 0;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
/// The bridge's settings of the port, not the port's own.
const OF_BRIDGE: u16 = 1;
const FRAMES_WITHOUT_TAG_ARE_OF_IT: u16 = 2;
const LEAVE_WITHOUT_TAG: u16 = 4;
const RANGE_BEGIN: u16 = 8;
const RANGE_END: u16 = 16;
const FIRST: u16 = 1;
const LAST: u16 = 4094;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortVlans {
    /// Of frames without a tag.
    pub(crate) untagged: Option<u16>,
    pub(crate) tagged: Vec<u16>,
    /// It stays in the one in which every new port is.
    pub(crate) keep_default: bool,
}

impl Kernel {
    pub(crate) fn filter_vlans(&mut self, bridge: &Link) -> Result<(), KernelError> {
        let data = AttributeWriter::default().bytes(IFLA_BR_VLAN_FILTERING, &[1]);
        let info =
            AttributeWriter::default().text(IFLA_INFO_KIND, "bridge").nest(IFLA_INFO_DATA, &data);
        let attributes = AttributeWriter::default().nest(IFLA_LINKINFO, &info);
        let what = || format!("make the bridge {} tell VLANs apart", bridge.name);
        self.set_vlans(RTM_NEWLINK, libc::AF_UNSPEC, bridge.index, attributes, what)
    }

    pub(crate) fn set_port_vlans(
        &mut self,
        port: &Link,
        vlans: &PortVlans,
    ) -> Result<(), KernelError> {
        let what = || format!("set the VLANs of the bridge port {}", port.name);
        if !vlans.keep_default {
            let all = spec().bytes(IFLA_BRIDGE_VLAN_INFO, &vlan(RANGE_BEGIN, FIRST));
            let all = all.bytes(IFLA_BRIDGE_VLAN_INFO, &vlan(RANGE_END, LAST));
            let attributes = AttributeWriter::default().nest(IFLA_AF_SPEC, &all);
            self.set_vlans(RTM_DELLINK, libc::AF_BRIDGE, port.index, attributes, what)?;
        }
        let untagged =
            vlans.untagged.map(|id| vlan(FRAMES_WITHOUT_TAG_ARE_OF_IT | LEAVE_WITHOUT_TAG, id));
        let tagged = vlans.tagged.iter().map(|id| vlan(0, *id));
        // One that is both goes last as what frames without a tag are of.
        let spec = tagged
            .chain(untagged)
            .fold(spec(), |spec, vlan| spec.bytes(IFLA_BRIDGE_VLAN_INFO, &vlan));
        let attributes = AttributeWriter::default().nest(IFLA_AF_SPEC, &spec);
        self.set_vlans(RTM_SETLINK, libc::AF_BRIDGE, port.index, attributes, what)
    }

    fn set_vlans(
        &mut self,
        kind: u16,
        family: i32,
        index: u32,
        attributes: AttributeWriter,
        what: impl Fn() -> String,
    ) -> Result<(), KernelError> {
        let mut header = [0; 16];
        header[0] = family as u8;
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        self.change(RawRequest::new(kind, header, attributes), what)
    }
}

fn spec() -> AttributeWriter {
    AttributeWriter::default().bytes(IFLA_BRIDGE_FLAGS, &OF_BRIDGE.to_ne_bytes())
}

fn vlan(flags: u16, id: u16) -> [u8; 4] {
    let [[a, b], [c, d]] = [flags.to_ne_bytes(), id.to_ne_bytes()];
    [a, b, c, d]
}
