//! The backends: pure functions from leases to what is wanted of the kernel, or of other appliers.
//!
//! [`Backend`] is what a backend provides, [`create`] lists all of them, [`judge_config`] decides whether nodes can
//! use a network config, [`Wishes`] is what a backend wants for one lease, and `desired_state` has the rules that
//! hold for all backends.

#![forbid(unsafe_code)]

mod alloc;
mod backend;
mod cloud;
mod config_question;
mod connected;
mod desired_state;
mod duplicates;
mod encapsulation;
mod extension;
mod family;
mod host_gw;
mod ipip;
mod ipsec;
mod judge;
mod lan;
mod link_identity;
mod needs;
mod privilege;
mod redact;
mod trial;
mod udp;
mod underlay;
mod vxlan;
mod wireguard;
mod wishes;

use cloud::CloudBackend;
use flannel_entries::cloud::Provider;
use flannel_lease::{BackendConfig, nearest};

pub use backend::{Backend, BackendError, Node, NodeMemory, PeerProblem};
pub use config_question::{CONFIG_QUESTION, ConfigAnswer, ConfigQuestion};
pub use connected::{Connected, OverlapKind};
pub use desired_state::{connected_overlaps, ownership, peer_wishes};
pub use duplicates::{SAME_MACHINE, SharedIdentity, lease_name, machine_fix, shared_values};
pub use encapsulation::{Encapsulation, KernelFeature, OuterPackets, Tunnel, TunnelPath};
pub use judge::{UsableConfig, judge_config, judge_config_to_write};
pub use lan::{LanOverlap, lan_overlap};
pub use link_identity::{InvalidLinkIdentity, LinkIdentity, link_identities};
pub use needs::{Answers, Need, WireguardBy};
pub use privilege::{ConfigOrigin, Privilege, PrivilegePolicy, PrivilegesWithheld};
pub use redact::redact_config;
pub use trial::{trial_wishes, without_trial_devices};
pub use underlay::{Stack, Underlay};
pub use wishes::{DesiredState, WantedBy, Wishes};

type Create = fn(&BackendConfig) -> Result<Box<dyn Backend>, BackendError>;

/// All backends by their names, in the order of the documentation.
const BACKENDS: [(&str, Create); 12] = [
    ("vxlan", |config| Ok(Box::new(vxlan::VxlanBackend::new(config)?))),
    ("host-gw", |_| Ok(Box::new(host_gw::HostGwBackend))),
    ("wireguard", |config| Ok(Box::new(wireguard::WireguardBackend::new(config)?))),
    ("ipip", |config| Ok(Box::new(ipip::IpipBackend::new(config)?))),
    ("ipsec", |config| Ok(Box::new(ipsec::IpsecBackend::new(config)?))),
    ("udp", |config| Ok(Box::new(udp::UdpBackend::new(config)?))),
    ("aws-vpc", |config| Ok(Box::new(CloudBackend::new(Provider::AwsVpc, config)?))),
    ("ali-vpc", |config| Ok(Box::new(CloudBackend::new(Provider::AliVpc, config)?))),
    ("gce", |config| Ok(Box::new(CloudBackend::new(Provider::Gce, config)?))),
    ("tencent-vpc", |config| Ok(Box::new(CloudBackend::new(Provider::TencentVpc, config)?))),
    ("extension", |config| Ok(Box::new(extension::ExtensionBackend::new(config)?))),
    ("alloc", |_| Ok(Box::new(alloc::AllocBackend))),
];
/// Backends of the Go flannel, past and present, that are not here.
const NOT_BUILT: [&str; 1] = ["azure"];

pub fn create(config: &BackendConfig) -> Result<Box<dyn Backend>, BackendError> {
    let kind = config.kind.as_str();
    if let Some((_, create)) = BACKENDS.iter().find(|(name, _)| *name == kind) {
        return create(config);
    }
    let names = BACKENDS.map(|(name, _)| name);
    let known = names.join(", ");
    // A config may hold anything.
    let shown: String = kind.escape_debug().take(60).collect();
    if NOT_BUILT.contains(&kind) {
        let why = "is not part of this release";
        return Err(BackendError::Unfit(format!(
            "Backend.Type '{shown}' {why}: use one of {known}"
        )));
    }
    let hint = nearest(kind, names).map(|it| format!("did you mean {it}? ")).unwrap_or_default();
    Err(BackendError::Unfit(format!("unknown Backend.Type '{shown}': {hint}use one of {known}")))
}
