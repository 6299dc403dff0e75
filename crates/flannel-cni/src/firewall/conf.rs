//! The firewall plugin's configuration.

use ipnet::IpNet;

use crate::protocol::{Call, Code, Error, FieldError, Outcome};

const ADMIN_CHAIN: &str = "CNI-ADMIN";
const ZONE: &str = "trusted";
/// The longest name that iptables takes.
const LONGEST_CHAIN: usize = 28;

pub(super) struct FirewallConf {
    pub(super) backend: Backend,
    /// Where the host's administrator has rules that go before ours.
    pub(super) admin_chain: String,
    pub(super) zone: String,
    pub(super) ingress: Ingress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Iptables,
    Firewalld,
    /// firewalld where it runs, else iptables.
    OfHost,
}

/// Who may reach a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ingress {
    Everybody,
    /// Containers on the same bridge, but on no other one.
    SameBridge,
    /// No other container.
    Nobody,
}

impl FirewallConf {
    /// Refuses what nobody knows, so that nobody believes to have it.
    pub(super) fn supported(call: &Call) -> Result<Self, Error> {
        let conf = Self::read(call)?;
        let fields = call.conf.fields();
        let backend = fields.string("backend").map_err(invalid)?.unwrap_or_default();
        if !["", "iptables", "firewalld"].contains(&backend) {
            let wanted = "\"iptables\" or \"firewalld\"";
            return Err(invalid(FieldError::new("backend", wanted, &backend.into())));
        }
        let chain = &conf.admin_chain;
        if chain.len() > LONGEST_CHAIN
            || chain.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            let wanted = "the name of a chain, of 28 letters at most";
            let error = FieldError::new("iptablesAdminChainName", wanted, &chain.as_str().into());
            return Err(invalid(error));
        }
        Ok(conf)
    }

    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let fields = call.conf.fields();
        let text = |key, default: &str| {
            let text = fields.string(key).map_err(invalid)?.filter(|text| !text.is_empty());
            Ok::<_, Error>(text.unwrap_or(default).to_owned())
        };
        let ingress = text("ingressPolicy", "open")?;
        Ok(Self {
            backend: match text("backend", "")?.as_str() {
                "iptables" => Backend::Iptables,
                "firewalld" => Backend::Firewalld,
                _ => Backend::OfHost,
            },
            admin_chain: text("iptablesAdminChainName", ADMIN_CHAIN)?,
            zone: text("firewalldZone", ZONE)?,
            ingress: match ingress.as_str() {
                "open" => Ingress::Everybody,
                "same-bridge" => Ingress::SameBridge,
                "isolated" => Ingress::Nobody,
                other => {
                    let msg = format!("unknown ingress policy: {other:?}");
                    let known = "'ingressPolicy' must be \"open\", \"same-bridge\" or \"isolated\"";
                    return Err(Error::new(Code::InvalidConfig, msg).with_details(known));
                }
            },
        })
    }
}

/// The container's addresses, each a network of its own.
pub(super) fn addresses(result: &Outcome) -> Vec<IpNet> {
    result.ips.iter().map(|ip| IpNet::from(ip.address.addr())).collect()
}

fn invalid(error: FieldError) -> Error {
    Error::new(Code::InvalidConfig, format!("failed to load netconf: {error}"))
}
