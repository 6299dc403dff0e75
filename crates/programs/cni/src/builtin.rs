//! The plugins that need no program of their own.

use crate::bandwidth::BandwidthPlugin;
use crate::bridge::Bridge;
use crate::ipam::HostLocal;
use crate::loopback::Loopback;
use crate::portmap::Portmap;
use crate::protocol::Plugin;

/// All of them, by name.
pub const BUILT_IN: [(&str, &dyn Plugin); 5] = [
    ("bandwidth", &BandwidthPlugin),
    ("bridge", &Bridge),
    ("host-local", &HostLocal),
    ("loopback", &Loopback),
    ("portmap", &Portmap),
];

pub fn built_in(name: &str) -> Option<&'static dyn Plugin> {
    BUILT_IN.into_iter().find(|(known, _)| *known == name).map(|(_, plugin)| plugin)
}
