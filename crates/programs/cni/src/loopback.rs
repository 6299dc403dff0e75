//! The loopback plugin: sets `lo` of a container up.

use std::net::IpAddr;

use flannel_common::Mac;
use ipnet::IpNet;

use crate::kernel::{Change, Kernel, Link};
use crate::netns::{Netns, NetnsError};
use crate::protocol::{
    Added, Call, Error, ErrorContext, Interface, IpConfig, Outcome, Plugin, Result, internal,
};

const NAME: &str = "lo";

pub struct Loopback;

impl Plugin for Loopback {
    fn add(&self, call: &Call) -> Result<Added> {
        // Of a chain of plugins, we hand on what those before us have made.
        let before = call.previous_result()?;
        let netns = Netns::open(&call.netns).or_cni("could not set lo up")?;
        let addresses = netns.inside(|| set(true)).or_cni("could not set lo up")??;
        let outcome = before.unwrap_or_else(|| outcome(call, &addresses));
        Ok(Added::for_call(call, outcome))
    }

    fn del(&self, call: &Call) -> Result<()> {
        match Netns::open(&call.netns) {
            Ok(netns) => netns.inside(|| set(false)).or_cni("could not set lo down")?.map(drop),
            Err(NetnsError::Gone { .. } | NetnsError::NotANamespace { .. }) => Ok(()),
            Err(error) => Err(Error::internal(error)),
        }
    }

    fn check(&self, call: &Call) -> Result<()> {
        let netns = Netns::open(&call.netns).or_cni("could not look at lo")?;
        let link = netns.inside(|| find(&mut Kernel::open()?)).or_cni("could not look at lo")??;
        if link.up { Ok(()) } else { Err(Error::internal("loopback interface is down")) }
    }
}

fn find(kernel: &mut Kernel) -> Result<Link> {
    kernel.link(NAME)?.ok_or_else(|| Error::internal("there is no lo"))
}

/// Returns the addresses it then has.
fn set(up: bool) -> Result<Vec<IpNet>> {
    let mut kernel = Kernel::open()?;
    let link = find(&mut kernel)?;
    kernel.apply(vec![if up { Change::set_up(NAME) } else { Change::set_down(NAME) }])?;
    let addresses = kernel.addresses(Some(link.index))?;
    match addresses.iter().map(IpNet::addr).find(|ip| !ip.is_loopback()) {
        Some(ip) if up => Err(internal!("loopback interface found with non-loopback address {ip}")),
        _ => Ok(addresses),
    }
}

/// The first address of each family.
fn outcome(call: &Call, addresses: &[IpNet]) -> Outcome {
    let first =
        |family: fn(&IpAddr) -> bool| addresses.iter().find(move |address| family(&address.addr()));
    let ip = |address: &IpNet| IpConfig {
        interface: Some(0),
        address: *address,
        gateway: None,
        family: None,
    };
    Outcome {
        interfaces: vec![Interface::new(NAME, Some(Mac([0; 6])), &call.netns)],
        ips: [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)]
            .into_iter()
            .flatten()
            .map(ip)
            .collect(),
        ..Outcome::default()
    }
}
