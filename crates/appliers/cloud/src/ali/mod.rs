//! Alibaba Cloud's route tables, by its VPC API of 2016-04-28.
//!
//! Shapes: "Virtual Private Cloud API reference" (www.alibabacloud.com/help/en/vpc/developer-reference), operations
//! DescribeRouteTableList, DescribeRouteEntryList, CreateRouteEntry and DeleteRouteEntry with their error codes.

mod call;
pub(crate) mod metadata;

use flannel_entries::cloud::{CloudRoute, Table};
use serde::Deserialize;

use crate::client::{Client, RouteState, TableRoute, TableView};
use crate::{CloudError, Fault};
use call::call;

const PAGE: usize = 50;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Tables {
    total_count: usize,
    router_table_list: TableList,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct TableList {
    router_table_list_type: Vec<TableItem>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct TableItem {
    route_table_id: String,
    route_table_type: String,
    v_switch_ids: Switches,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Switches {
    v_switch_id: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Entries {
    next_token: Option<String>,
    route_entrys: EntryList,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct EntryList {
    route_entry: Vec<EntryItem>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct EntryItem {
    route_entry_id: String,
    destination_cidr_block: String,
    r#type: String,
    next_hops: Hops,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Hops {
    next_hop: Vec<Hop>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Hop {
    next_hop_type: String,
    next_hop_id: String,
}

pub(crate) async fn view(client: &Client, table: &Table) -> Result<TableView, CloudError> {
    let id = match table {
        Table::Named(id) => id.clone(),
        Table::Detected => detect(client).await?,
    };
    let mut routes = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let mut parameters = vec![("RouteTableId", id.clone()), ("MaxResult", "100".to_owned())];
        parameters.extend(next.take().map(|token| ("NextToken", token)));
        let page: Entries = call(client, "DescribeRouteEntryList", parameters).await?;
        routes.extend(page.route_entrys.route_entry.into_iter().filter_map(read));
        match page.next_token.filter(|token| !token.is_empty()) {
            Some(token) => next = Some(token),
            None => return Ok(TableView { id, routes }),
        }
    }
}

/// The table that is bound to the switch of this node, else the default one of the VPC.
async fn detect(client: &Client) -> Result<String, CloudError> {
    const ACTION: &str = "DescribeRouteTableList";
    let interface = &client.access().interface;
    let (mut system, mut seen, mut number) = (None, 0, 1_usize);
    loop {
        let parameters = vec![
            ("VpcId", interface.vpc.clone()),
            ("PageNumber", number.to_string()),
            ("PageSize", PAGE.to_string()),
        ];
        let page: Tables = call(client, ACTION, parameters).await?;
        let tables = page.router_table_list.router_table_list_type;
        seen += tables.len();
        let empty = tables.is_empty();
        for table in tables {
            if table.v_switch_ids.v_switch_id.contains(&interface.subnet) {
                return Ok(table.route_table_id);
            }
            if table.route_table_type == "System" {
                system = Some(table.route_table_id);
            }
        }
        if empty || seen >= page.total_count {
            let none = || {
                let why = format!("there is none for {} of {}", interface.subnet, interface.vpc);
                CloudError::new(Fault::NotFound, ACTION, &why)
                    .with_fix("name one that there is in Backend.RouteTableID")
            };
            return system.ok_or_else(none);
        }
        number += 1;
    }
}

fn read(entry: EntryItem) -> Option<TableRoute> {
    let hop = entry.next_hops.next_hop.into_iter().next().unwrap_or_default();
    let next_hop = match hop.next_hop_type.as_str() {
        "Instance" => hop.next_hop_id,
        other => format!("{other} {}", hop.next_hop_id),
    };
    Some(TableRoute {
        id: entry.route_entry_id,
        destination: entry.destination_cidr_block.parse().ok()?,
        next_hop,
        // One that is still being made is as good: it is read again.
        state: RouteState::Active,
        written: entry.r#type == "Custom",
    })
}

pub(crate) async fn put(
    client: &Client,
    table: &str,
    route: &CloudRoute,
) -> Result<(), CloudError> {
    let parameters = vec![
        ("RouteTableId", table.to_owned()),
        ("DestinationCidrBlock", route.destination.to_string()),
        ("NextHopType", "Instance".to_owned()),
        ("NextHopId", route.next_hop.clone()),
    ];
    call::<serde_json::Value>(client, "CreateRouteEntry", parameters).await.map(drop)
}

pub(crate) async fn remove(
    client: &Client,
    table: &str,
    found: &TableRoute,
) -> Result<(), CloudError> {
    let parameters = vec![("RouteTableId", table.to_owned()), ("RouteEntryId", found.id.clone())];
    call::<serde_json::Value>(client, "DeleteRouteEntry", parameters).await.map(drop)
}
