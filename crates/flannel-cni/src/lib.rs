//! The CNI plugin of flannel, with the plugins it hands its work to built in.
//!
//! Read it in this order: [`protocol`] (what a runtime asks and gets), [`flannel`] (the plugin),
//! [`delegate`] and [`builtin`] (who does the work).

pub mod builtin;
pub mod delegate;
pub mod flannel;
pub mod netns;
pub mod protocol;
pub mod scratch;
mod subprocess;
