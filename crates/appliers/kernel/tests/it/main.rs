//! The engine against the real kernel, each test in a network namespace of its own. Needs root and
//! iproute2, and fails without.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod adoption;
mod appearance;
mod devices;
mod facts;
mod preparing;
mod repair;
mod routes;
mod support;
