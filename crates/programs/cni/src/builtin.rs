//! The plugins that need no program of their own.

use crate::bandwidth::BandwidthPlugin;
use crate::bridge::{self, Bridge};
use crate::ipam::{self, HostLocal};
use crate::loopback::Loopback;
use crate::portmap::Portmap;
use crate::protocol::{Call, Command, Error, Outcome, Plugin};

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

    /// `retried`: an earlier ADD of this attachment may have been cut short.
    pub fn add(self, call: &Call, retried: bool) -> Result<Outcome, Error> {
        match self {
            Self::Bridge => bridge::add(call, retried),
            Self::HostLocal => ipam::add(call, retried).map(|given| given.outcome),
            Self::Bandwidth | Self::Loopback | Self::Portmap => {
                self.plugin().add(call).map(|added| added.outcome)
            }
        }
    }

    /// Every command but ADD.
    pub fn run(self, call: &Call) -> Result<(), Error> {
        let plugin = self.plugin();
        match call.command {
            Command::Del => plugin.del(call),
            Command::Check => plugin.check(call),
            Command::Gc => plugin.gc(call),
            Command::Status => plugin.status(call),
            Command::Add | Command::Version => Ok(()),
        }
    }
}
