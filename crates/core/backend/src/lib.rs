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

/// Names of all backends, in the order of the documentation.
const KNOWN: [&str; 12] = [
    "vxlan",
    "host-gw",
    "wireguard",
    "ipip",
    "ipsec",
    "udp",
    "aws-vpc",
    "ali-vpc",
    "gce",
    "tencent-vpc",
    "extension",
    "alloc",
];
/// Backends of the Go flannel, past and present, that are not here.
const NOT_BUILT: [&str; 1] = ["azure"];

/// Creates the backend that a network config asks for.
pub fn create(config: &BackendConfig) -> Result<Box<dyn Backend>, BackendError> {
    Ok(match config.kind.as_str() {
        "vxlan" => Box::new(vxlan::VxlanBackend::new(config)?),
        "wireguard" => Box::new(wireguard::WireguardBackend::new(config)?),
        "ipip" => Box::new(ipip::IpipBackend::new(config)?),
        "ipsec" => Box::new(ipsec::IpsecBackend::new(config)?),
        "host-gw" => Box::new(host_gw::HostGwBackend),
        "extension" => Box::new(extension::ExtensionBackend::new(config)?),
        "udp" => Box::new(udp::UdpBackend::new(config)?),
        "alloc" => Box::new(alloc::AllocBackend),
        "aws-vpc" => Box::new(cloud::CloudBackend::new(Provider::AwsVpc, config)?),
        "ali-vpc" => Box::new(cloud::CloudBackend::new(Provider::AliVpc, config)?),
        "gce" => Box::new(cloud::CloudBackend::new(Provider::Gce, config)?),
        "tencent-vpc" => Box::new(cloud::CloudBackend::new(Provider::TencentVpc, config)?),
        kind => return Err(unknown(kind)),
    })
}

fn unknown(kind: &str) -> BackendError {
    let known = KNOWN.join(", ");
    // A config may hold anything.
    let shown: String = kind.escape_debug().take(60).collect();
    if NOT_BUILT.contains(&kind) {
        return BackendError::NotBuilt { kind: shown, known };
    }
    BackendError::Unknown { kind: shown, nearest: nearest(kind, KNOWN), known }
}
