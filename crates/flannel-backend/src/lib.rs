//! flannel-backend

mod underlay;

pub use underlay::Underlay;
