//! A lab whose leases node 1 serves: what its daemons are told, and how its store is reached.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use flannel_store::prelude::*;
use flannel_store::{Held, RemoteOptions, RemoteStore, StoreError};
use tokio::time::timeout;

use crate::error::{Context, LabError, Result};
use crate::namespace::Namespace;
use crate::plan::Nic;

const PORT: u16 = flannel_store::remote::DEFAULT_PORT;
const LIMIT: Duration = Duration::from_secs(5);
/// In the namespace of node 1; they survive its daemon, and go with the lab.
const DATA: &str = "/run/flannel-leases";
const CONFIG: &str = "/run/net-conf.json";

/// The flags of a node's daemon. `server` is the underlay of node 1.
pub(crate) fn flags(number: u16, server: &Nic) -> Vec<String> {
    let address = server.addresses().into_iter().next().unwrap_or(Ipv4Addr::LOCALHOST.into());
    if number != 1 {
        return vec![format!("--remote={}", SocketAddr::new(address, PORT))];
    }
    vec![
        format!("--listen=:{PORT}"),
        // The lab's underlay is a network nobody else is on.
        "--listen-insecure".to_owned(),
        "--remote=self".to_owned(),
        format!("--data-dir={DATA}"),
        format!("--net-config-path={CONFIG}"),
    ]
}

/// The config that the server begins with.
pub(crate) fn write_config(namespace: &Namespace, config: &str) -> Result<()> {
    let written = namespace.run(|| fs::write(Path::new(CONFIG), config))?;
    written.context(|| format!("write {CONFIG}"))
}

/// Writes the config; a server that is not up yet is waited for.
pub(crate) fn put_config(namespace: &Namespace, config: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        match ask(namespace, "write the config", async |store| store.set_config(config, true).await)
        {
            Err(_) if begin.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Keys and values as they would be in etcd.
pub(crate) fn leases(namespace: &Namespace) -> Result<Vec<(String, String)>> {
    let held = ask(namespace, "read the leases", async |store| store.list().await)?;
    let pair = |held: Held| (held.lease.subnet.to_string(), held.lease.attrs.to_json());
    Ok(held.into_iter().map(pair).collect())
}

/// Asks the server as an administrator on its own machine does.
fn ask<T: Send>(
    namespace: &Namespace,
    attempt: &str,
    question: impl AsyncFnOnce(RemoteStore) -> std::result::Result<T, StoreError> + Send,
) -> Result<T> {
    let addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)).to_string()];
    let options = RemoteOptions { addresses, ..RemoteOptions::default() };
    let answer = namespace.block_on(async || {
        let store = RemoteStore::new(options, fastrand::u64(..)).map_err(io::Error::other)?;
        timeout(LIMIT, question(store)).await?.map_err(io::Error::other)
    })?;
    answer.map_err(|error| LabError::Store { attempt: attempt.into(), reason: error.to_string() })
}
