//! flanneld: gets a subnet for this node and routes to the subnets of all other nodes.
//!
//! `flannel_node::options` says what is asked for, [`joined_networks`] joins the networks, [`daemon`] runs the life
//! of the node in one of them, [`appliers`] keeps the world as the backend wants it; the rest are its small tools.

pub mod appliers;
pub mod cni_conf;
pub mod daemon;
pub mod door;
mod etcd_cluster;
mod first_config;
pub mod health_server;
pub mod heap;
pub mod history;
pub mod joined_networks;
mod link_holders_file;
pub mod logging;
pub mod node_file;
mod node_secret;
pub mod notify;
pub mod readiness;
mod secret_file;
pub mod serve;
mod state_file;
pub mod stopping;
pub mod store;
pub mod subnet_file;
pub mod user_signals;
mod wireguard_by;
mod wireguard_key;
