//! The plugins that need no program of their own.

use crate::bandwidth::BandwidthPlugin;
use crate::bridge::Bridge;
use crate::ipam::HostLocal;
use crate::loopback::Loopback;
use crate::portmap::Portmap;
use crate::protocol::Plugin;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    Bandwidth,
    Bridge,
    HostLocal,
    Loopback,
    Portmap,
}

impl BuiltIn {
    pub const ALL: [Self; 5] =
        [Self::Bandwidth, Self::Bridge, Self::HostLocal, Self::Loopback, Self::Portmap];

    pub fn of_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == kind)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Bridge => "bridge",
            Self::HostLocal => "host-local",
            Self::Loopback => "loopback",
            Self::Portmap => "portmap",
        }
    }

    pub fn plugin(self) -> &'static dyn Plugin {
        match self {
            Self::Bandwidth => &BandwidthPlugin,
            Self::Bridge => &Bridge,
            Self::HostLocal => &HostLocal,
            Self::Loopback => &Loopback,
            Self::Portmap => &Portmap,
        }
    }
}
