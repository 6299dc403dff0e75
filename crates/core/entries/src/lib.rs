//! Entries, as plain data: one module for each applier. Backends make entries, appliers keep the world equal to them,
//! and neither needs to know the other.
//!
//! With them come the facts of a node that backends ask for, and the names of flannel's devices.

#![forbid(unsafe_code)]

pub mod cloud;
pub mod commands;
pub mod devices;
pub mod facts;
pub mod ipsec;
pub mod kernel;
pub mod rules;
pub mod tunnel;
