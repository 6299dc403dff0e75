//! The bandwidth plugin: a container receives and sends no faster than it may. It stands in a chain behind
//! the plugin that made the container's interface, and works on the host's end of that.
//!
//! What the container receives is held back where it leaves the host. What it sends takes a detour through a
//! link of its own, where it can be held back.

mod conf;

use conf::Bandwidth;

use crate::go_names::{ifb_mac, ifb_mark, ifb_name};
use crate::kernel::{Ifb, Kernel, Link, remove_link_of};
use crate::netns::Netns;
use crate::protocol::{
    Added, Call, Error, ErrorContext, Interface, Outcome, Plugin, Result, internal,
};

pub struct BandwidthPlugin;

impl Plugin for BandwidthPlugin {
    fn add(&self, call: &Call) -> Result<Added> {
        let bandwidth = Bandwidth::read(call)?;
        let mut result = match call.previous_result()? {
            Some(result) => result,
            None if bandwidth.is_unlimited() => Outcome::default(),
            None => return Err(Error::not_chained()),
        };
        if !bandwidth.is_unlimited() {
            limit(call, bandwidth, &mut result)?;
        }
        Ok(Added::for_call(call, result))
    }

    fn del(&self, call: &Call) -> Result<()> {
        remove_ifb(&ifb_name(&call.conf.name, &call.container_id))
    }

    fn check(&self, call: &Call) -> Result<()> {
        let bandwidth = Bandwidth::read(call)?;
        let result = call.previous_result()?.ok_or_else(Error::not_chained)?;
        if bandwidth.is_unlimited() {
            return Ok(());
        }
        let mut kernel = Kernel::open()?;
        let host = host_end(&mut kernel, call, &result)?;
        if let Some(limit) = bandwidth.receiving {
            check_bucket(&mut kernel, &host, limit)?;
        }
        if let Some(limit) = bandwidth.sending {
            let name = ifb_name(&call.conf.name, &call.container_id);
            let ifb = kernel
                .link(&name)?
                .ok_or_else(|| internal!("get ifb device: there is no link {name}"))?;
            check_bucket(&mut kernel, &ifb, limit)?;
        }
        Ok(())
    }

    /// Links by the Go plugin do not say whose they are, and stay.
    fn gc(&self, call: &Call) -> Result<()> {
        let valid = call.valid_attachments()?;
        let names: Vec<String> =
            valid.iter().map(|it| ifb_name(&call.conf.name, &it.container_id)).collect();
        let ours = alias(&call.conf.name, "");
        let mark = ifb_mark(&call.conf.name);
        for ifb in Kernel::open()?.links_of_kind("ifb")? {
            // One whose ADD was killed has nothing but its address.
            let is_marked = || ifb.mac.is_some_and(|mac| mac.0.starts_with(&mark));
            let is_ours = match ifb.alias.as_str() {
                "" => ifb.name.starts_with("bwp") && is_marked(),
                alias => alias.starts_with(&ours),
            };
            if is_ours && !names.contains(&ifb.name) {
                remove_ifb(&ifb.name)?;
            }
        }
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<()> {
        Bandwidth::read(call).map(drop).map_err(Error::not_available)
    }
}

fn limit(call: &Call, bandwidth: Bandwidth, result: &mut Outcome) -> Result<()> {
    let mut kernel = Kernel::open()?;
    let host = host_end(&mut kernel, call, result)?;
    if let Some(limit) = bandwidth.receiving {
        kernel.limit(&host, limit.bucket()?)?;
    }
    let Some(limit) = bandwidth.sending else { return Ok(()) };
    let name = ifb_name(&call.conf.name, &call.container_id);
    // An earlier ADD may have been cut short.
    remove_ifb(&name)?;
    let alias = alias(&call.conf.name, &call.container_id);
    let mac = ifb_mac(&call.conf.name, &call.container_id);
    kernel.make_ifb(&Ifb { name: name.clone(), mac, alias }, host.mtu)?;
    let mut detour = || -> Result<Link> {
        let ifb = kernel.link_made(&name)?;
        kernel.limit(&ifb, limit.bucket()?)?;
        kernel.detour(&host, ifb.index)?;
        Ok(ifb)
    };
    match detour() {
        Ok(ifb) => {
            result.interfaces.push(Interface::new(&name, ifb.mac, ""));
            Ok(())
        }
        Err(error) => {
            let _ = remove_ifb(&name);
            Err(error)
        }
    }
}

/// The host's end of the container's pair, which must be one of those that the plugins before us made.
fn host_end(kernel: &mut Kernel, call: &Call, result: &Outcome) -> Result<Link> {
    if result.interfaces.is_empty() {
        return Err(Error::internal("no interfaces provided"));
    }
    let netns = Netns::open(&call.netns).or_cni("failed to open netns")?;
    let inside = netns.inside(|| Kernel::open()?.link(&call.ifname));
    let inside = inside.or_cni("could not look into the container")??;
    let no_pair = |why: &str| {
        let name = &call.ifname;
        internal!("container interface {name} has no veth peer: {why}")
    };
    let inside = inside.ok_or_else(|| no_pair("there is no such interface"))?;
    let peer = match (inside.kind.as_str(), inside.peer) {
        ("veth", Some(peer)) => peer,
        _ => return Err(no_pair("it is not of kind veth")),
    };
    let host = kernel
        .link_by_index(peer)?
        .ok_or_else(|| internal!("veth peer with index {peer} is not in host ns"))?;
    let is_known = |it: &Interface| it.sandbox.is_empty() && it.name == host.name;
    if !result.interfaces.iter().any(is_known) {
        let msg = "no veth peer of container interface found in host ns";
        return Err(Error::internal(msg));
    }
    Ok(host)
}

fn check_bucket(kernel: &mut Kernel, link: &Link, limit: conf::Limit) -> Result<()> {
    let (wanted, name) = (limit.bucket()?, &link.name);
    let Some(found) = kernel.bucket(link.index)? else {
        return Err(internal!("Failed to find qdisc: nothing limits {name}"));
    };
    for (what, wanted, found) in [
        ("Rate", wanted.rate, found.rate),
        ("Limit", wanted.limit.into(), found.limit.into()),
        ("Buffer", wanted.buffer.into(), found.buffer.into()),
    ] {
        if wanted != found {
            return Err(internal!("{what} doesn't match: {name} has {found}, not {wanted}"));
        }
    }
    Ok(())
}

/// That there was none is fine.
fn remove_ifb(name: &str) -> Result<()> {
    let host = Netns::current().or_cni("could not look at the host's links")?;
    remove_link_of(&host, name)
}

/// What people see at the link.
fn alias(network: &str, container_id: &str) -> String {
    format!("CNI bandwidth of {network} {container_id}")
}
