//! firewalld, where it runs: a container's address is put into a zone, whose rules then hold for it.

use ipnet::IpNet;

use crate::dbus::{Body, Bus, BusError, Method};
use crate::protocol::{Error, ErrorContext};

const NAME: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONE: &str = "org.fedoraproject.FirewallD1.zone";
/// Another network, or an ADD that was cut short, has put it there.
const ALREADY: &str = "ZONE_ALREADY_SET";

pub(super) struct Firewalld {
    bus: Bus,
}

impl Firewalld {
    pub(super) fn connect() -> Result<Self, Error> {
        let bus = Bus::of_system().map_err(|error| {
            Error::internal(format_args!("could not reach firewalld over D-Bus: {error}"))
                .with_details("start firewalld, or set \"backend\": \"iptables\"")
        })?;
        Ok(Self { bus })
    }

    /// `None`: it does not run.
    pub(super) fn find() -> Option<Self> {
        let mut bus = Bus::of_system().ok()?;
        bus.has_owner(NAME).ok()?.then_some(Self { bus })
    }

    pub(super) fn trust(&mut self, zone: &str, addresses: &[IpNet]) -> Result<(), Error> {
        for address in addresses {
            match self.call("addSource", zone, address) {
                Err(BusError::Refused(why)) if why.contains(ALREADY) => {}
                other => {
                    let attempted = format!("failed to add the address {address} to {zone} zone");
                    other.or_cni(attempted)?;
                }
            }
        }
        Ok(())
    }

    /// Those that are not there are fine.
    pub(super) fn remove_from_zone(&mut self, zone: &str, addresses: &[IpNet]) {
        for address in addresses {
            let _ = self.call("removeSource", zone, address);
        }
    }

    pub(super) fn check(&mut self, zone: &str, addresses: &[IpNet]) -> Result<(), Error> {
        for address in addresses {
            let attempted = format!("failed to find the address {address} in {zone} zone");
            let answer = self.call("querySource", zone, address).or_cni(&attempted)?;
            if answer != Body::Bool(true) {
                return Err(Error::internal(attempted));
            }
        }
        Ok(())
    }

    fn call(&mut self, member: &str, zone: &str, address: &IpNet) -> Result<Body, BusError> {
        let method = Method { destination: NAME, path: PATH, interface: ZONE, member };
        self.bus.call(&method, &[zone, &address.to_string()])
    }
}
