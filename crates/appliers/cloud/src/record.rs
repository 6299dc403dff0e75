//! Records this node's routes in files of the daemon's directory: so that a daemon that begins with another config,
//! and `flannelctl cleanup`, know what to remove. Without credentials.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flannel_common::replace_file;
use flannel_entries::cloud::{Access, CloudInterface, CloudNode, CloudRoute, Table};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::client::{Client, TableRoute};
use crate::plan::compare;

const PREFIX: &str = "cloud-";
const SUFFIX: &str = ".json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnRoute {
    node: CloudNode,
    interface: CloudInterface,
    endpoint: Option<String>,
    metadata: Option<String>,
    table: String,
    pub destination: IpNet,
    next_hop: String,
}

impl OwnRoute {
    pub(crate) fn new(route: &CloudRoute, table: &str) -> Self {
        let Access { node, interface, endpoint, metadata, .. } = (*route.access).clone();
        let (destination, next_hop) = (route.destination, route.next_hop.clone());
        Self { node, interface, endpoint, metadata, table: table.to_owned(), destination, next_hop }
    }

    pub(crate) fn route(self) -> CloudRoute {
        let Self { node, interface, endpoint, metadata, table, destination, next_hop } = self;
        let check_every = Duration::from_secs(60);
        let access = Access { node, interface, keys: None, endpoint, metadata, check_every };
        CloudRoute { access: Arc::new(access), table: Table::Named(table), destination, next_hop }
    }

    pub(crate) fn write(&self, directory: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string(self).map_err(std::io::Error::other)?;
        let file = file(directory, self.destination, &self.table);
        // It is the same once a minute, and need not be written.
        if std::fs::read_to_string(&file).is_ok_and(|there| there == text) {
            return Ok(());
        }
        std::fs::create_dir_all(directory)?;
        replace_file(&file, text.as_bytes(), 0o600)
    }
}

impl std::fmt::Display for OwnRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, table, destination, .. } = self;
        write!(f, "route {destination} of the route table {table} ({})", node.provider)
    }
}

fn file(directory: &Path, destination: IpNet, table: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".:-_".contains(c) { c } else { '-' };
    let name: String = format!("{destination}-{table}").chars().map(plain).collect();
    directory.join(format!("{PREFIX}{name}{SUFFIX}"))
}

pub(crate) fn forget(directory: &Path, destination: IpNet, table: &str) {
    let _ = std::fs::remove_file(file(directory, destination, table));
}

pub fn recorded(directory: &Path) -> Vec<OwnRoute> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<OwnRoute> = files
        .filter(|file| {
            let name = file.file_name();
            name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
        })
        .filter_map(|file| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok())
        .collect();
    found.sort_by(|a, b| (a.destination, &a.table).cmp(&(b.destination, &b.table)));
    found
}

/// Removes such a route, with the credentials of the environment or of the machine, unless somebody else has it.
pub async fn remove_recorded(directory: &Path, own: &OwnRoute) -> Result<()> {
    let route = own.clone().route();
    let client = Client::new(route.access.clone());
    let view = client.view(&route.table).await?;
    let leads_here = |found: &&TableRoute| {
        found.written && compare(&route, std::slice::from_ref(*found)).is_ok()
    };
    if let Some(found) = view.routes.iter().find(leads_here) {
        client.remove(&view.id, found).await?;
    }
    forget(directory, own.destination, &own.table);
    Ok(())
}
