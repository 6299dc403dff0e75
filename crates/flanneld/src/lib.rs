//! flanneld: one subnet for this node, and a kernel that leads to everybody else's.
//!
//! `options` says what is asked for, `iface` chooses the underlay, [`daemon`] runs the life of the
//! node; the rest are its small tools.

pub mod checks;
pub mod daemon;
pub mod iface;
pub mod logging;
pub mod machine;
pub mod memory;
pub mod notify;
pub mod options;
pub mod probe;
pub mod serve;
pub mod store;
pub mod subnet_file;
