//! A test pod in the kernel: its addresses, its devices, and this process' end of them.

mod addresses;
mod devices;
mod port;

use std::fmt::Display;

use flannel_lease::Subnet;

use addresses::Addresses;
use devices::Devices;
use port::Port;

pub(crate) use addresses::unspecified;
pub use devices::sweep;

/// Makes the text that says why there is no test pod.
fn cannot<E: Display>(attempted: impl Display) -> impl FnOnce(E) -> String {
    move |reason| format!("cannot {attempted}: {reason}")
}

/// All of it goes when it is dropped: first the devices, then what keeps the addresses from others.
pub(crate) struct PodInKernel {
    pub(crate) port: Port,
    _devices: Devices,
    pub(crate) addresses: Addresses,
}

impl PodInKernel {
    /// The error says why there is none.
    pub(crate) fn make(subnet: &Subnet, mtu: u32) -> Result<Self, String> {
        let addresses = Addresses::choose(subnet.nets())?;
        let devices = Devices::make(&addresses.chosen, mtu)?;
        let port = Port::open(&devices).map_err(cannot("read and write packets of a test pod"))?;
        Ok(Self { port, _devices: devices, addresses })
    }
}
