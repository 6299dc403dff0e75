//! Tencent Cloud's route tables, by its VPC API of 2017-03-12.
//!
//! Shapes: "Virtual Private Cloud API documentation" (www.tencentcloud.com/document/product/215), actions
//! DescribeRouteTables, CreateRoutes and DeleteRoutes, data type Route, and its page of error codes.

mod call;
pub(crate) mod metadata;

use flannel_entries::cloud::{CloudRoute, Table};
use serde::Deserialize;
use serde_json::json;

use crate::client::{Client, RouteState, TableRoute, TableView};
use crate::{CloudError, Fault};
use call::call;

const PAGE: usize = 100;
/// Kind of a route to a machine, by its address.
const TO_MACHINE: &str = "NORMAL_CVM";

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Tables {
    total_count: usize,
    route_table_set: Vec<TableItem>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct TableItem {
    route_table_id: String,
    main: bool,
    association_set: Vec<Association>,
    route_set: Vec<RouteItem>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Association {
    subnet_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RouteItem {
    route_id: u64,
    destination_cidr_block: String,
    gateway_type: String,
    gateway_id: String,
    route_type: String,
    enabled: bool,
}

pub(crate) async fn view(client: &Client, table: &Table) -> Result<TableView, CloudError> {
    const ACTION: &str = "DescribeRouteTables";
    let interface = &client.access().interface;
    let mut tables: Vec<TableItem> = Vec::new();
    loop {
        // Numbers are texts here.
        let mut question = json!({"Offset": tables.len().to_string(), "Limit": PAGE.to_string()});
        match table {
            Table::Named(id) => question["RouteTableIds"] = json!([id]),
            Table::Detected => {
                question["Filters"] = json!([{"Name": "vpc-id", "Values": [interface.vpc]}]);
            }
        }
        let page: Tables = call(client, ACTION, question).await?;
        let empty = page.route_table_set.is_empty();
        tables.extend(page.route_table_set);
        if empty || tables.len() >= page.total_count {
            break;
        }
    }
    // The table of this node's subnet, else the VPC's own.
    let of_subnet = |table: &TableItem| {
        table.association_set.iter().any(|association| association.subnet_id == interface.subnet)
    };
    let chosen = match table {
        Table::Named(_) => tables.pop(),
        Table::Detected => {
            let at = tables.iter().position(of_subnet);
            let at = at.or_else(|| tables.iter().position(|table| table.main));
            at.map(|at| tables.swap_remove(at))
        }
    };
    let none = || {
        let why = format!("there is none for {table} of {}", interface.vpc);
        CloudError::new(Fault::NotFound, ACTION, &why)
            .with_fix("name one that there is in Backend.RouteTableID")
    };
    let TableItem { route_table_id, route_set, .. } = chosen.ok_or_else(none)?;
    Ok(TableView { id: route_table_id, routes: route_set.into_iter().filter_map(read).collect() })
}

fn read(route: RouteItem) -> Option<TableRoute> {
    let RouteItem {
        route_id,
        destination_cidr_block,
        gateway_type,
        gateway_id,
        route_type,
        enabled,
    } = route;
    let next_hop = match gateway_type.as_str() {
        TO_MACHINE => gateway_id,
        other => format!("{other} {gateway_id}"),
    };
    Some(TableRoute {
        id: route_id.to_string(),
        destination: destination_cidr_block.parse().ok()?,
        next_hop,
        state: if enabled { RouteState::Active } else { RouteState::Off },
        written: route_type == "USER",
    })
}

pub(crate) async fn put(
    client: &Client,
    table: &str,
    route: &CloudRoute,
) -> Result<(), CloudError> {
    let route = json!({
        "DestinationCidrBlock": route.destination.to_string(),
        "GatewayType": TO_MACHINE,
        "GatewayId": route.next_hop,
        "Enabled": true,
        "RouteDescription": "flannel",
    });
    let question = json!({"RouteTableId": table, "Routes": [route]});
    call::<serde_json::Value>(client, "CreateRoutes", question).await.map(drop)
}

pub(crate) async fn remove(
    client: &Client,
    table: &str,
    found: &TableRoute,
) -> Result<(), CloudError> {
    let id: u64 = found.id.parse().unwrap_or_default();
    let question = json!({"RouteTableId": table, "Routes": [{"RouteId": id}]});
    call::<serde_json::Value>(client, "DeleteRoutes", question).await.map(drop)
}
