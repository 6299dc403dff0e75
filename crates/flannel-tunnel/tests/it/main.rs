//! The datapath: the pipeline by itself, and in network namespaces.

mod build;
mod errors;
mod joining;
mod kernel;
mod namespaces;
mod segmenting;
mod senders;
