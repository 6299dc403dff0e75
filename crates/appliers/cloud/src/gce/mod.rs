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
use serde_json::{Value, json};

use crate::client::{Client, MayForward, RouteState, TableRoute, TableView};
use crate::crypto::encode;
use crate::json::{items, text};
use crate::{CloudError, Fault, Result};
use call::{call, explain_operation};

/// Priority among routes to one destination; Google's own default.
const PRIORITY: u32 = 1000;
const POLL: Duration = Duration::from_secs(1);
const MAX_POLLS: u32 = 100;
/// Prefix that marks a route as flannel's.
const NAME: &str = "flannel-";

/// Name of the network, by which its routes are told from those of others.
fn network(client: &Client) -> &str {
    let vpc = &client.access.interface.vpc;
    vpc.rsplit('/').next().unwrap_or(vpc)
}

fn routes_path(client: &Client) -> String {
    format!("projects/{}/global/routes", client.access.node.project)
}

pub(crate) async fn view(client: &Client, _table: &Table) -> Result<TableView> {
    let network = network(client);
    let path = routes_path(client);
    let (mut routes, mut query) = (Vec::new(), "maxResults=500".to_owned());
    loop {
        let page = call(client, Method::GET, &path, &query, None, "compute.routes.list").await?;
        let ours =
            |route: &&Value| text(route, "/network").ends_with(&format!("/networks/{network}"));
        routes.extend(items(&page, "/items").iter().filter(ours).filter_map(read));
        match text(&page, "/nextPageToken") {
            "" => return Ok(TableView { id: network.to_owned(), routes }),
            token => query = format!("maxResults=500&pageToken={}", encode(token)),
        }
    }
}

fn read(route: &Value) -> Option<TableRoute> {
    let (name, next_hop) = (text(route, "/name"), text(route, "/nextHopInstance"));
    let mut warnings = items(route, "/warnings").iter();
    let dead = warnings.any(|warning| warning["code"] == "NEXT_HOP_INSTANCE_NOT_FOUND");
    Some(TableRoute {
        written: name.starts_with(NAME) && !next_hop.is_empty(),
        id: name.to_owned(),
        destination: text(route, "/destRange").parse().ok()?,
        next_hop: next_hop.to_owned(),
        state: if dead { RouteState::Dead } else { RouteState::Active },
    })
}

/// Name of a route, as with the Go flannel: `flannel-10-40-5-0-24`.
fn name_of(destination: IpNet) -> String {
    format!("{NAME}{}", destination.to_string().replace(['.', ':', '/'], "-"))
}

pub(crate) async fn put(client: &Client, route: &CloudRoute) -> Result<()> {
    let project = &client.access.node.project;
    let body = json!({
        "name": name_of(route.destination),
        "description": "pods of flannel",
        "destRange": route.destination.to_string(),
        "network": format!("projects/{project}/global/networks/{}", network(client)),
        "nextHopInstance": route.next_hop,
        "priority": PRIORITY,
        "tags": [],
    });
    operate(client, Method::POST, &routes_path(client), Some(body), "compute.routes.create").await
}

pub(crate) async fn remove(client: &Client, _table: &str, found: &TableRoute) -> Result<()> {
    let path = format!("{}/{}", routes_path(client), found.id);
    operate(client, Method::DELETE, &path, None, "compute.routes.delete").await
}

/// Begins an operation, and waits for its end.
async fn operate(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<Value>,
    permission: &str,
) -> Result<()> {
    let mut operation = call(client, method, path, "", body, permission).await?;
    let project = &client.access.node.project;
    for _ in 0..MAX_POLLS {
        if operation["status"] == "DONE" {
            return explain_operation(permission, &operation);
        }
        tokio::time::sleep(POLL).await;
        let name = operation["name"].as_str().unwrap_or_default();
        let path = format!("projects/{project}/global/operations/{name}");
        operation =
            call(client, Method::GET, &path, "", None, "compute.globalOperations.get").await?;
    }
    Err(CloudError::temporary(permission, "the operation has not ended"))
}

/// Whether the instance was started with canIpForward: without it no packet that is not its own is forwarded.
pub(crate) async fn let_forward(client: &Client) -> Result<MayForward> {
    const PERMISSION: &str = "compute.instances.get";
    let node = &client.access.node;
    let path = format!("projects/{}/zones/{}/instances/{}", node.project, node.zone, node.instance);
    let looked = call(client, Method::GET, &path, "fields=canIpForward", None, PERMISSION).await;
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
