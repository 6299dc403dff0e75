//! The pure heart of flannel: the network config, who may own which subnet, who does own it, and what
//! changed. No clock, no socket, no file: time, randomness and text come in as arguments.

#![forbid(unsafe_code)]

mod acquire;
mod allocate;
mod attrs;
mod config;
mod dotenv;
mod identity;
mod known_by;
mod lease;
mod machine;
mod nearest;
mod net;
mod network_move;
mod network_name;
mod pool;
mod public_address;
mod raw_json;
mod source;
mod subnet;
mod subnet_file;
mod table;
mod version;

pub use acquire::{AcquireError, Choice, Claimant, Decision, choose_free, decide};
pub use allocate::{CANDIDATES, FreeMap};
pub use attrs::{AttrsError, LeaseAttrs, MAX_DATA_BYTES, owner_name};
pub use config::{BackendConfig, ConfigError, NetworkConfig, remarks};
pub use identity::{
    IdentityEvidence, LeaseOwnership, NodeIdentity, SystemEvidence, same_device, same_node,
};
pub use known_by::{KnownBy, NoAddress};
pub use lease::{Expiry, LEASE_TTL, Lease};
pub use machine::{machine_hash, parse_machine_id};
pub use nearest::nearest;
pub use net::Net;
pub use network_move::{NetworkMove, check_move};
pub use network_name::{NetworkName, NetworkNameError};
pub use pool::{Pool, Pool4, Pool6};
pub use public_address::{UnusableAddress, check_public_address};
pub use raw_json::{RawJson, RawJsonError};
pub use source::{SubnetOrigin, SubnetSource, SubnetSource4, SubnetSource6};
pub use subnet::{Subnet, SubnetKeyError};
pub use subnet_file::{SUBNET_FILE, SubnetFile, SubnetFileProblem};
pub use table::{Change, LeaseTable};
pub use version::Version;
