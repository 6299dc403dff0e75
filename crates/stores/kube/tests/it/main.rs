//! The Kubernetes store: what is pure, and what a real API server says to it. Needs the programs of
//! `scripts/deps kubernetes`, and fails without.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod api;
mod away;
mod kubeconfig;
mod leases;
mod patches;
mod requests;
mod support;
mod table;
