//! The plugins that need no program of their own.

use crate::bandwidth::BandwidthPlugin;
use crate::bridge::{self, Bridge};
use crate::firewall::Firewall;
use crate::ipam::{self, HostLocal};
use crate::loopback::Loopback;
use crate::portmap::Portmap;
use crate::protocol::{Call, Command, Conf, Error, ErrorContext, Outcome, Plugin};
use crate::tuning::Tuning;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    Bandwidth,
    Bridge,
    Firewall,
    HostLocal,
    Loopback,
    Portmap,
    Tuning,
}

impl BuiltIn {
    pub const ALL: [Self; 7] = [
        Self::Bandwidth,
        Self::Bridge,
        Self::Firewall,
        Self::HostLocal,
        Self::Loopback,
        Self::Portmap,
        Self::Tuning,
    ];

    pub fn of_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == kind)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Bridge => "bridge",
            Self::Firewall => "firewall",
            Self::HostLocal => "host-local",
            Self::Loopback => "loopback",
            Self::Portmap => "portmap",
            Self::Tuning => "tuning",
        }
    }

    pub fn plugin(self) -> &'static dyn Plugin {
        match self {
            Self::Bandwidth => &BandwidthPlugin,
            Self::Bridge => &Bridge,
            Self::Firewall => &Firewall,
            Self::HostLocal => &HostLocal,
            Self::Loopback => &Loopback,
            Self::Portmap => &Portmap,
            Self::Tuning => &Tuning,
        }
    }

    /// `retried`: an earlier ADD of this attachment may have been cut short.
    pub fn add(self, call: &Call, retried: bool) -> Result<Outcome, Error> {
        match self {
            Self::Bridge => bridge::add(call, retried),
            Self::HostLocal => ipam::add(call, retried).map(|given| given.outcome),
            Self::Bandwidth | Self::Firewall | Self::Loopback | Self::Portmap | Self::Tuning => {
                let text = self.plugin().add(call)?;
                let parsed = Outcome::parse(text.as_bytes(), call.conf.version);
                Ok(parsed.or_cni("could not read the result")?.0)
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

/// The same request for another plugin, with the configuration meant for it.
pub fn call(call: &Call, command: Command, conf: &str) -> Result<Call, Error> {
    Ok(Call { command, conf: Conf::parse(conf.as_bytes())?, ..call.clone() })
}
