//! The bridge plugin's configuration.

use flannel_common::Mac;

use super::vlan;
use crate::iptables::Backend;
use crate::kernel::PortVlans;
use crate::protocol::{Call, Dns, Error, FieldError, Result};

const DEFAULT_NAME: &str = "cni0";

#[derive(Clone)]
pub(super) struct BridgeConf {
    pub(super) bridge: String,
    /// The bridge has the gateway's address and forwards.
    pub(super) is_gateway: bool,
    pub(super) is_default_gateway: bool,
    /// An address of the bridge that does not fit is replaced.
    pub(super) force_address: bool,
    pub(super) ip_masq: bool,
    /// Where masquerading is written; the host decides if it is not said.
    pub(super) ip_masq_backend: Option<Backend>,
    pub(super) mtu: Option<u32>,
    pub(super) hairpin: bool,
    pub(super) promiscuous: bool,
    pub(super) isolated: bool,
    /// IPv6 asks around whether an address is free before it is used.
    pub(super) duplicate_detection: bool,
    pub(super) container_interface_down: bool,
    pub(super) mac: Option<Mac>,
    /// It may send from this one alone.
    pub(super) no_spoofing: bool,
    /// Of its VLAN the bridge has a gateway of its own.
    pub(super) vlan: Option<u16>,
    pub(super) vlans: Option<PortVlans>,
    /// Empty: addresses are somebody else's business.
    pub(super) ipam: String,
    pub(super) dns: Dns,
}

impl BridgeConf {
    pub(super) fn read(call: &Call) -> Result<Self> {
        let conf = Self::of_fields(call).map_err(wrong)?;
        conf.check()?;
        Ok(conf)
    }

    /// Of a network that we are to serve from now on, and not only to undo.
    pub(super) fn supported(call: &Call) -> Result<Self> {
        let mut conf = Self::read(call)?;
        let fields = call.conf.fields();
        conf.vlans = vlan::read(fields)?;
        if fields.integer("vlan").map_err(wrong)?.is_some_and(|id| id != 0) {
            conf.vlan = conf.vlans.as_ref().and_then(|vlans| vlans.untagged);
        }
        conf.ip_masq_backend = Backend::read(call.conf.fields(), "ipMasqBackend").map_err(wrong)?;
        Ok(conf)
    }

    fn of_fields(call: &Call) -> Result<Self, FieldError> {
        let fields = call.conf.fields();
        let is_default_gateway = fields.flag("isDefaultGateway")?;
        let mtu = fields.integer("mtu")?.unwrap_or_default();
        Ok(Self {
            bridge: fields.string("bridge")?.unwrap_or(DEFAULT_NAME).to_owned(),
            is_gateway: fields.flag("isGateway")? || is_default_gateway,
            is_default_gateway,
            force_address: fields.flag("forceAddress")?,
            ip_masq: fields.flag("ipMasq")?,
            ip_masq_backend: None,
            mtu: u32::try_from(mtu).ok().filter(|mtu| *mtu > 0),
            hairpin: fields.flag("hairpinMode")?,
            promiscuous: fields.flag("promiscMode")?,
            isolated: fields.flag("portIsolation")?,
            duplicate_detection: fields.flag("enabledad")?,
            container_interface_down: fields.flag("disableContainerInterface")?,
            mac: mac(call)?,
            no_spoofing: fields.flag("macspoofchk")?,
            vlan: None,
            vlans: None,
            ipam: fields.object("ipam")?.owned("type")?,
            dns: Dns::read(fields.object("dns")?)?,
        })
    }

    fn check(&self) -> Result<()> {
        let refuse = |msg: &str| Err(Error::config(msg));
        if self.container_interface_down && !self.ipam.is_empty() {
            return refuse("cannot use IPAM when DisableContainerInterface flag is set");
        }
        if self.hairpin && self.promiscuous {
            return refuse("cannot set hairpin mode and promiscuous mode at the same time");
        }
        if flannel_common::IfName::new(&self.bridge).is_err() {
            return refuse("'bridge' must be the name of a network interface");
        }
        Ok(())
    }
}

pub(super) fn wrong(error: FieldError) -> Error {
    Error::config(format!("failed to load netconf: {error}"))
}

/// Asked for by the runtime, by `args` or by `CNI_ARGS`, in this order.
fn mac(call: &Call) -> Result<Option<Mac>, FieldError> {
    const WANTED: &str = "a MAC address";
    let fields = call.conf.fields();
    for said in [fields.object("runtimeConfig")?, fields.object("args")?.object("cni")?] {
        if let Some(mac) = said.parsed("mac", WANTED)? {
            return Ok(Some(mac));
        }
    }
    let Some(text) = call.arg("MAC") else { return Ok(None) };
    text.parse().map(Some).map_err(|_| FieldError::new("CNI_ARGS MAC", WANTED, &text.into()))
}
