//! The etcd store against real etcd servers. One binary, because each costs a long link.

#![allow(clippy::unwrap_used)]

mod acquire;
mod admin;
mod auth;
mod certificates;
mod cluster;
mod common;
mod listing;
mod outage;
mod pages;
mod proxy;
mod renew;
mod requests;
mod scale;
mod tls;
mod watch;
