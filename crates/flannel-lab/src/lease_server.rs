//! A lab whose leases node 1 serves: what its daemons are told, and how its store is reached.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Context, LabError, Result};
use crate::http;
use crate::namespace::Namespace;
use crate::plan::Nic;

const PORT: u16 = 10_253;
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
        match request(namespace, "PUT", "/v1/_/config?force=true", Some(config)) {
            Err(_) if begin.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done.map(drop),
        }
    }
}

/// Keys and values as they would be in etcd.
pub(crate) fn leases(namespace: &Namespace) -> Result<Vec<(String, String)>> {
    let text = request(namespace, "GET", "/v1/_/leases", None)?;
    let wrong = |reason: String| LabError::Store { attempt: "read the leases".into(), reason };
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let leases = value["snapshot"].as_array().ok_or_else(|| wrong(text.clone()))?;
    let key = |lease: &Value| {
        let parts = ["Subnet", "IPv6Subnet"].map(|part| lease[part].as_str());
        let parts: Vec<String> = parts.into_iter().flatten().map(|s| s.replace('/', "-")).collect();
        parts.join("&")
    };
    Ok(leases.iter().map(|lease| (key(lease), lease["Attrs"].to_string())).collect())
}

fn request(namespace: &Namespace, method: &str, path: &str, body: Option<&str>) -> Result<String> {
    let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
    let answer = namespace.run(|| http::request(to, method, path, body, Duration::from_secs(5)))?;
    let attempt = format!("{method} {path}");
    match answer {
        Ok(answer) if answer.status == 200 => Ok(answer.body),
        Ok(answer) => Err(LabError::Store {
            attempt,
            reason: format!("status {}: {}", answer.status, answer.body.trim()),
        }),
        Err(error) => Err(LabError::Store { attempt, reason: error.to_string() }),
    }
}
