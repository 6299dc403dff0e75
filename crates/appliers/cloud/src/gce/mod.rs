//! Google Compute Engine's routes, by its API v1. They belong to the VPC network: there is one table.
//!
//! Shapes: "Compute Engine API" (cloud.google.com/compute/docs/reference/rest/v1), resources routes, instances and
//! globalOperations; errors as in "Troubleshooting API errors" there.

mod call;
pub(crate) mod credentials;
pub(crate) mod metadata;

use std::time::Duration;

use flannel_entries::cloud::{CloudRoute, Table};
use http::Method;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Client, MayForward, RouteState, TableRoute, TableView};
use crate::{CloudError, Fault};
use call::{call, explain_operation};

/// Priority among routes to one destination; Google's own default.
const PRIORITY: u32 = 1000;
const POLL: Duration = Duration::from_secs(1);
const MAX_POLLS: u32 = 100;
/// Prefix that marks a route as flannel's.
const NAME: &str = "flannel-";

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Routes {
    items: Vec<RouteItem>,
    next_page_token: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RouteItem {
    name: String,
    dest_range: String,
    network: String,
    next_hop_instance: String,
    warnings: Vec<Warning>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Warning {
    code: String,
}

/// Name of the network, by which its routes are told from those of others.
fn network(client: &Client) -> &str {
    let vpc = &client.access().interface.vpc;
    vpc.rsplit('/').next().unwrap_or(vpc)
}

fn routes_path(client: &Client) -> String {
    format!("projects/{}/global/routes", client.access().node.project)
}

pub(crate) async fn view(client: &Client, _table: &Table) -> Result<TableView, CloudError> {
    let network = network(client);
    let mut routes = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let mut query = "maxResults=500".to_owned();
        if let Some(token) = next.take() {
            query += &format!("&pageToken={}", crate::crypto::encode(&token));
        }
        let path = routes_path(client);
        let page: Routes =
            call(client, Method::GET, &path, &query, None, "compute.routes.list").await?;
        let ours = |route: &RouteItem| route.network.ends_with(&format!("/networks/{network}"));
        routes.extend(page.items.into_iter().filter(ours).filter_map(read));
        match page.next_page_token.filter(|token| !token.is_empty()) {
            Some(token) => next = Some(token),
            None => return Ok(TableView { id: network.to_owned(), routes }),
        }
    }
}

fn read(route: RouteItem) -> Option<TableRoute> {
    let dead = route.warnings.iter().any(|warning| warning.code == "NEXT_HOP_INSTANCE_NOT_FOUND");
    Some(TableRoute {
        written: route.name.starts_with(NAME) && !route.next_hop_instance.is_empty(),
        id: route.name,
        destination: route.dest_range.parse().ok()?,
        next_hop: route.next_hop_instance,
        state: if dead { RouteState::Dead } else { RouteState::Active },
    })
}

/// Name of a route, as with the Go flannel: `flannel-10-40-5-0-24`.
fn name_of(destination: IpNet) -> String {
    format!("{NAME}{}", destination.to_string().replace(['.', ':', '/'], "-"))
}

pub(crate) async fn put(client: &Client, route: &CloudRoute) -> Result<(), CloudError> {
    let project = &client.access().node.project;
    let body = json!({
        "name": name_of(route.destination),
        "description": "pods of flannel",
        "destRange": route.destination.to_string(),
        "network": format!("projects/{project}/global/networks/{}", network(client)),
        "nextHopInstance": route.next_hop,
        "priority": PRIORITY,
        "tags": [],
    });
    let path = routes_path(client);
    let begun: Value =
        call(client, Method::POST, &path, "", Some(body), "compute.routes.create").await?;
    finish(client, begun, "compute.routes.create").await
}

pub(crate) async fn remove(
    client: &Client,
    _table: &str,
    found: &TableRoute,
) -> Result<(), CloudError> {
    let path = format!("{}/{}", routes_path(client), found.id);
    let begun: Value =
        call(client, Method::DELETE, &path, "", None, "compute.routes.delete").await?;
    finish(client, begun, "compute.routes.delete").await
}

/// Waits for the end of an operation.
async fn finish(client: &Client, mut operation: Value, permission: &str) -> Result<(), CloudError> {
    let project = &client.access().node.project;
    for _ in 0..MAX_POLLS {
        if operation["status"] == "DONE" {
            return explain_operation(permission, &operation);
        }
        tokio::time::sleep(POLL).await;
        let name = operation["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("projects/{project}/global/operations/{name}");
        operation =
            call(client, Method::GET, &path, "", None, "compute.globalOperations.get").await?;
    }
    Err(CloudError::temporary(permission, "the operation has not ended"))
}

/// Whether the instance was started with canIpForward: without it no packet that is not its own is forwarded.
pub(crate) async fn let_forward(client: &Client) -> Result<MayForward, CloudError> {
    const PERMISSION: &str = "compute.instances.get";
    let node = &client.access().node;
    let path = format!("projects/{}/zones/{}/instances/{}", node.project, node.zone, node.instance);
    let looked: Result<Value, _> =
        call(client, Method::GET, &path, "fields=canIpForward", None, PERMISSION).await;
    match looked {
        Ok(instance) if instance["canIpForward"] == true => Ok(MayForward::Yes),
        Ok(_) => Err(CloudError::new(
            Fault::Refused,
            format!("the instance {}", node.instance),
            "it may not forward packets: canIpForward is off",
        )
        .with_fix(
            "create it again with --can-ip-forward, or stop it and switch that on with gcloud compute instances \
             update-from-file",
        )),
        Err(error) if error.fault == Fault::Denied => Ok(MayForward::Unknown(format!(
            "whether {} may forward packets (canIpForward) is not known: pods are cut off if it may not ({error})",
            node.instance
        ))),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_the_names_that_the_go_flannel_gives_them() {
        for (destination, name) in [
            ("10.40.5.0/24", "flannel-10-40-5-0-24"),
            ("fd00:244:0:5::/64", "flannel-fd00-244-0-5---64"),
        ] {
            assert_eq!(name_of(destination.parse().expect("a network")), name);
        }
    }
}
