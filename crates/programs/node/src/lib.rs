//! How a node is set up, as the daemon does it and as `flannelctl` has to know it: what the daemon's command line asks
//! for ([`options`]), the interface that is chosen by it ([`iface`]), the traffic rules that follow from it
//! ([`wanted_rules`]), what is expected of the host ([`host_checks`]) and which machine this is ([`machine`]).

pub mod host_checks;
pub mod iface;
pub mod machine;
pub mod options;
pub mod verbosity;
pub mod wanted_rules;
