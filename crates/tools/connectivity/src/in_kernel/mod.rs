//! A test pod in the kernel: its addresses, its devices, and this process' end of them.

mod addresses;
mod devices;
mod port;

use std::net::IpAddr;

use flannel_lease::Subnet;

use addresses::Addresses;
use devices::Devices;
use port::Port;

pub use devices::sweep;

/// Why there is no test pod.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempted}: {reason}")]
pub(crate) struct PodError {
    pub(crate) attempted: String,
    pub(crate) reason: String,
}

impl PodError {
    pub(crate) fn new(attempted: impl Into<String>, reason: impl ToString) -> Self {
        Self { attempted: attempted.into(), reason: reason.to_string() }
    }
}

/// All of it goes when it is dropped: first the devices, then what keeps the addresses from others.
pub(crate) struct PodInKernel {
    pub(crate) port: Port,
    _devices: Devices,
    addresses: Addresses,
}

impl PodInKernel {
    pub(crate) fn make(subnet: &Subnet, mtu: u32) -> Result<Self, PodError> {
        let addresses = Addresses::choose(subnet.nets())?;
        let devices = Devices::make(addresses.as_slice(), mtu)?;
        let port = Port::open(&devices)
            .map_err(|error| PodError::new("read and write packets of a test pod", error))?;
        Ok(Self { port, _devices: devices, addresses })
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        self.addresses.as_slice()
    }
}
