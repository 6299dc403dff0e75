//! The tuning plugin: kernel settings of a container's network, and the MAC address, MTU, modes and queue of
//! its interface. It stands in a chain behind the plugin that made that, and hands on its result.

mod conf;
mod original;
mod settings;

use std::io::Write;

use conf::{TuningConf, Wanted};

use crate::bridge::previous_result;
use crate::kernel::{self, Change, Kernel, Link};
use crate::netns::Netns;
use crate::protocol::{Call, Code, Error, ErrorContext, Outcome, Plugin};

pub struct Tuning;

impl Plugin for Tuning {
    fn understand(&self, call: &Call) -> Result<(), Error> {
        asked(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<String, Error> {
        let (conf, mut result) = asked(call)?;
        let netns = Netns::open(&call.netns).or_cni("could not tune the container's network")?;
        netns.inside(|| tune(call, &conf)).or_cni("could not tune the container's network")??;
        if let Some((text, _)) = &conf.interface.mac {
            for interface in result.interfaces.iter_mut().filter(|it| it.name == call.ifname) {
                interface.mac.clone_from(text);
            }
        }
        result.to_json(call.conf.version).or_cni("could not print the result")
    }

    /// Settings go with the namespace; an interface may outlive it. That it cannot be restored is no
    /// reason to keep the container.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let conf = TuningConf::read(call)?;
        let restored = match Netns::open(&call.netns) {
            Ok(netns) => netns.inside(|| original::restore(call, &conf.data_dir)),
            Err(_) => Ok(Ok(())),
        };
        match restored.or_cni("could not look into the container").and_then(|it| it) {
            Ok(()) => original::forget(call, &conf.data_dir),
            Err(error) => {
                let name = &call.ifname;
                let _ = writeln!(std::io::stderr(), "could not restore {name}: {error}");
            }
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let conf = TuningConf::read(call)?;
        previous_result(call)?;
        let netns = Netns::open(&call.netns).or_cni("could not look into the container")?;
        netns.inside(|| compare(call, &conf)).or_cni("could not look into the container")?
    }

    /// What it keeps names the container, not the network: whether it is still wanted, nobody can say.
    fn gc(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let not_available = |error: Error| Error::new(Code::NotAvailable, error.to_string());
        let conf = TuningConf::read(call).map_err(not_available)?;
        settings::refuse_others(conf.settings.keys()).map_err(not_available)
    }
}

fn asked(call: &Call) -> Result<(TuningConf, Outcome), Error> {
    let conf = TuningConf::read(call)?;
    for name in conf.settings.keys() {
        settings::path(name, &call.ifname)?;
    }
    settings::refuse_others(conf.settings.keys())?;
    Ok((conf, previous_result(call)?))
}

/// As a member of the container's namespace, which decides whose settings `/proc/sys/net` has.
fn tune(call: &Call, conf: &TuningConf) -> Result<(), Error> {
    for (name, value) in &conf.settings {
        kernel::set(&settings::path(name, &call.ifname)?, value)
            .or_cni(format_args!("could not set {name} to {value:?}"))?;
    }
    if conf.interface.is_nothing() {
        return Ok(());
    }
    let mut kernel = Kernel::open()?;
    let link = find(&mut kernel, call)?;
    original::keep(call, &conf.data_dir, &link, &conf.interface)?;
    let (index, name) = (link.index, &call.ifname);
    let Wanted { mac, promiscuous, mtu, all_multicast, queue_length } = &conf.interface;
    let changes = [
        mac.as_ref().map(|(_, mac)| Change::set_mac(index, name, *mac)),
        promiscuous.then(|| Change::set_promiscuous(index, name, true)),
        mtu.map(|mtu| Change::set_mtu(index, name, mtu)),
        all_multicast.map(|on| Change::set_all_multicast(index, name, on)),
        queue_length.map(|length| Change::set_queue_length(index, name, length)),
    ];
    // One at a time: after one that fails, no other is made.
    for change in changes.into_iter().flatten() {
        kernel.apply(vec![change])?;
    }
    Ok(())
}

fn find(kernel: &mut Kernel, call: &Call) -> Result<Link, Error> {
    let name = &call.ifname;
    kernel.link(name)?.ok_or_else(|| {
        Error::internal(format_args!("failed to get {name:?}: there is no such interface"))
    })
}

fn compare(call: &Call, conf: &TuningConf) -> Result<(), Error> {
    for (name, value) in &conf.settings {
        let path = settings::path(name, &call.ifname)?;
        let current = kernel::get(&path).or_cni(format_args!("could not read {name}"))?;
        if current != *value {
            return Err(Error::internal(format_args!(
                "Error: Tuning configured value of /proc/sys/{path} is {value}, current value is {current}"
            )));
        }
    }
    let link = find(&mut Kernel::open()?, call)?;
    let wanted = &conf.interface;
    let differs = |what: &str, wanted: &dyn std::fmt::Display, current: &dyn std::fmt::Display| {
        let name = &call.ifname;
        Err(Error::internal(format_args!(
            "Error: Tuning configured {what} of {name} is {wanted}, current value is {current}"
        )))
    };
    if let Some((text, mac)) = &wanted.mac
        && link.mac != Some(*mac)
    {
        let current = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        return differs("Ethernet", text, &current);
    }
    if wanted.promiscuous != link.promiscuous {
        return differs("promisc", &wanted.promiscuous, &link.promiscuous);
    }
    if let Some(mtu) = wanted.mtu
        && link.mtu != mtu
    {
        return differs("MTU", &mtu, &link.mtu);
    }
    if let Some(on) = wanted.all_multicast
        && link.all_multicast != on
    {
        return differs("all-multicast mode", &on, &link.all_multicast);
    }
    if let Some(length) = wanted.queue_length
        && link.queue_length != length
    {
        return differs("Transmit Queue Length", &length, &link.queue_length);
    }
    Ok(())
}
