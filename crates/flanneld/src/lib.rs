//! flanneld

pub mod iface;
pub mod logging;
pub mod notify;
pub mod options;
pub mod probe;
pub mod subnet_file;
