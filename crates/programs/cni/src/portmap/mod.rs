//! The portmap plugin: ports of the host that lead to a container. It stands in a chain behind the
//! plugin that made the container's interface, and hands on that one's result.

mod chains;
mod conditions;
mod conf;
mod conntrack;
mod host_port_rule;
mod orphans;
mod rules;

use std::io::Write as _;
use std::net::IpAddr;

use conf::{PortmapConf, Protocol};
pub(crate) use conntrack::UdpFlows;
use ipnet::IpNet;

use crate::bridge::previous_result;
use crate::go_names::portmap_chain;
use crate::iptables::{self, Backend};
use crate::kernel::{self, Kernel};
use crate::nft::{Nft, NftError};
use crate::protocol::{Added, Call, Error, ErrorContext, Plugin, Result};

pub struct Portmap;

impl Plugin for Portmap {
    fn add(&self, call: &Call) -> Result<Added> {
        let conf = PortmapConf::read(call)?;
        let backend = conf.backend(call)?;
        let result = call.previous_result()?.ok_or_else(Error::not_chained)?;
        if !conf.mappings.is_empty() {
            let addresses = conf::container_addresses(&result, &call.ifname);
            let loopback = forward(call, &conf, backend, &addresses)?;
            forget_old_flows(&conf, &addresses);
            match loopback {
                Ok(()) if conf.snat => open_loopback(&addresses)?,
                Ok(()) => {}
                // The runtime keeps what plugins say there.
                Err(error) => drop(writeln!(
                    std::io::stderr(),
                    "host ports do not answer at 127.0.0.1 of this host: its loopback address is not opened, since \
                     it could not be guarded from others: {error}"
                )),
            }
        }
        Ok(Added::for_call(call, result))
    }

    fn del(&self, call: &Call) -> Result<()> {
        let conf = PortmapConf::read(call)?;
        if conf.mappings.is_empty() {
            return Ok(());
        }
        forget(call)
    }

    fn check(&self, call: &Call) -> Result<()> {
        let conf = PortmapConf::read(call)?;
        let result = previous_result(call)?;
        if conf.mappings.is_empty() {
            return Ok(());
        }
        let mut nft = Nft::open()?;
        for address in conf::container_addresses(&result, &call.ifname) {
            check_address(&mut nft, call, &conf, address)?;
        }
        Ok(())
    }

    fn gc(&self, call: &Call) -> Result<()> {
        let valid = call.valid_attachments()?;
        let mut nft = Nft::open()?;
        rules::collect(&mut nft, &call.conf.name, &valid)?;
        orphans::collect(&mut nft, &valid)?;
        chains::collect(&mut nft, &call.conf.name, &valid)
    }

    fn status(&self, call: &Call) -> Result<()> {
        let usable = || -> Result<()> {
            PortmapConf::read(call)?.backend(call)?;
            Ok(Nft::open().map(drop)?)
        };
        usable().map_err(Error::not_available)
    }
}

/// Removes all that was mapped for a container, whichever plugin did it.
pub(crate) fn forget(call: &Call) -> Result<()> {
    let mut nft = Nft::open()?;
    rules::forward(&mut nft, call, &PortmapConf::read(call)?, &[])?;
    let chain = portmap_chain(&call.conf.name, &call.container_id);
    iptables::remove_chain(&mut nft, &chain, chains::ENTRY)
}

/// Also says whether the host's loopback address is guarded, so that it may be opened.
fn forward(
    call: &Call,
    conf: &PortmapConf,
    backend: Backend,
    addresses: &[IpNet],
) -> Result<Result<(), NftError>> {
    let mut nft = Nft::open()?;
    match backend {
        Backend::Iptables => {
            // The guard is kept in nftables, which the kernel may lack.
            let guarded = if conf.snat { rules::guard_loopback(&mut nft) } else { Ok(()) };
            chains::forward(&mut nft, call, conf, addresses)?;
            Ok(guarded)
        }
        Backend::Nftables => conditions::forward(&mut nft, call, conf, addresses)
            .or_cni("unable to set up nftables rules for port mappings")
            .map(Ok),
    }
}

fn check_address(nft: &mut Nft, call: &Call, conf: &PortmapConf, address: IpNet) -> Result<()> {
    // Whichever has it: it may have been asked for otherwise when the container was added.
    if let Some(found) = iptables::verify(nft, &chains::own(call, conf, address)) {
        return found;
    }
    if conf.for_address(address.addr()).next().is_none() {
        return Ok(());
    }
    rules::verify(nft, call, conf, address.addr())
}

/// Datagrams of a flow that began before the mapping would go on to where they went then.
fn forget_old_flows(conf: &PortmapConf, addresses: &[IpNet]) {
    let ports: Vec<u16> = conf
        .mappings
        .iter()
        .filter(|it| it.protocol == Protocol::Udp)
        .map(|it| it.host_port)
        .collect();
    let ipv4 = addresses.iter().any(|it| it.addr().is_ipv4());
    let ipv6 = addresses.iter().any(|it| it.addr().is_ipv6());
    // It only helps; without it they end by themselves.
    let _ = conntrack::forget_udp(&UdpFlows { ipv4, ipv6, ports });
}

/// Lets connections from the host's loopback address leave the host, towards the container.
fn open_loopback(addresses: &[IpNet]) -> Result<()> {
    let ipv4 = addresses.iter().find_map(|address| match address.addr() {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    let Some(ip) = ipv4 else { return Ok(()) };
    let mut kernel = Kernel::open()?;
    let Some(index) = kernel.link_towards(ip)? else { return Ok(()) };
    let Some(link) = kernel.link_by_index(index)? else { return Ok(()) };
    if link.settings.route_localnet == Some(true) {
        return Ok(());
    }
    kernel::enable(&format!("net/ipv4/conf/{}/route_localnet", link.name))
        .map(drop)
        .or_cni("unable to enable route_localnet")
}
