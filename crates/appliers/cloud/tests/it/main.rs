//! The applier of cloud routes against clouds on this machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod every_cloud;
mod support;
