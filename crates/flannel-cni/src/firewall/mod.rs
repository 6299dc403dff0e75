//! The firewall plugin: what a container sends, and the answers to it, may pass the host, even where the host
//! lets nothing pass by itself. With an ingress policy it is the other way round: what other bridges send
//! to the container may not. It stands in a chain behind the plugin that made the container's interface,
//! and hands on that one's result.

mod conf;
mod firewalld;
mod rules;

use conf::{Backend, FirewallConf};
use firewalld::Firewalld;

use crate::protocol::{Call, Code, Error, ErrorContext, Outcome, Plugin};

pub struct Firewall;

impl Plugin for Firewall {
    fn understand(&self, call: &Call) -> Result<(), Error> {
        FirewallConf::supported(call)?;
        previous_result(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<String, Error> {
        let conf = FirewallConf::supported(call)?;
        let result = previous_result(call)?;
        let addresses = conf::addresses(&result);
        match Place::of(conf.backend)? {
            Place::Firewalld(mut firewalld) => firewalld.trust(&conf.zone, &addresses)?,
            Place::Iptables => rules::allow(&conf, &addresses)?,
        }
        rules::isolate(&conf, &result)?;
        result.to_json(call.conf.version).or_cni("could not print the result")
    }

    /// What keeps bridges apart stays: other containers may be on them.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let conf = FirewallConf::read(call)?;
        let addresses = call.previous_result()?.map(|it| conf::addresses(&it)).unwrap_or_default();
        if addresses.is_empty() {
            return Ok(());
        }
        // Whichever has them: it may have been asked for otherwise when the container was added.
        if conf.backend != Backend::Iptables
            && let Some(mut firewalld) = Firewalld::find()
        {
            firewalld.remove_from_zone(&conf.zone, &addresses);
        }
        rules::forget(&addresses)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let conf = FirewallConf::read(call)?;
        let result = previous_result(call)?;
        let addresses = conf::addresses(&result);
        match Place::of(conf.backend)? {
            Place::Firewalld(mut firewalld) => firewalld.check(&conf.zone, &addresses)?,
            Place::Iptables => rules::check(&conf, &addresses)?,
        }
        rules::check_isolation(&conf, &result)
    }

    /// Its rules name addresses, not containers: whose they are, nobody can say. The next container with
    /// such an address takes them over.
    fn gc(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let not_available = |error: Error| Error::new(Code::NotAvailable, error.to_string());
        let conf = FirewallConf::supported(call).map_err(not_available)?;
        Place::of(conf.backend).map(drop).map_err(not_available)
    }
}

fn previous_result(call: &Call) -> Result<Outcome, Error> {
    let missing = || Error::new(Code::InvalidConfig, "missing prevResult from earlier plugin");
    call.previous_result()?.ok_or_else(missing)
}

/// Who decides on this host what may pass.
enum Place {
    Firewalld(Firewalld),
    Iptables,
}

impl Place {
    fn of(backend: Backend) -> Result<Self, Error> {
        match backend {
            Backend::Iptables => Ok(Self::Iptables),
            Backend::Firewalld => Firewalld::connect().map(Self::Firewalld),
            Backend::OfHost => Ok(Firewalld::find().map_or(Self::Iptables, Self::Firewalld)),
        }
    }
}
