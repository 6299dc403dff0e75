//! iface/mod
