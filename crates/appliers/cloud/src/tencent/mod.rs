//! Tencent Cloud's route tables, by its VPC API of 2017-03-12.
//!
//! Shapes: "Virtual Private Cloud API documentation" (www.tencentcloud.com/document/product/215), actions
//! DescribeRouteTables, CreateRoutes and DeleteRoutes, data type Route, and its page of error codes.

mod call;

use flannel_entries::cloud::{CloudRoute, Provider, Table};
use serde_json::{Value, json};

use crate::client::{Client, RouteState, TableRoute, TableView};
use crate::instance::Dialect;
use crate::json::{items, text};
use crate::{Fault, Result};
use call::call;

const PAGE: usize = 100;
/// Kind of a route to a machine, by its address.
const TO_MACHINE: &str = "NORMAL_CVM";

/// "Viewing Instance Metadata" of the CVM documentation (www.tencentcloud.com/document/product/213/4934).
pub(crate) const DIALECT: Dialect = Dialect {
    provider: Provider::TencentVpc,
    metadata: "http://metadata.tencentyun.com",
    metadata_variable: None,
    session: None,
    region: "placement/region",
    zone: "placement/zone",
    interface: None,
    vpc: "network/interfaces/macs/MAC/vpc-id",
    subnet: "network/interfaces/macs/MAC/subnet-id",
    addresses: &["network/interfaces/macs/MAC/local-ipv4s/"],
    roles: "cam/security-credentials/",
    role: "CAM role",
    profile: "CAM role",
    ids: &["ACCESS_KEY_ID", "TENCENTCLOUD_SECRET_ID"],
    secrets: &["ACCESS_KEY_SECRET", "TENCENTCLOUD_SECRET_KEY"],
    tokens: &["TENCENTCLOUD_TOKEN"],
    cloud: "Tencent Cloud",
    how_to_give_keys: "give the instance a CAM role, or set Backend.AccessKeyID and AccessKeySecret, or ACCESS_KEY_ID \
                       and ACCESS_KEY_SECRET for flanneld",
    // The "Common error codes" of the API, and those of its VPC part.
    faults: &[
        (Fault::Denied, &["UnauthorizedOperation*", "AuthFailure.UnauthorizedOperation"]),
        (Fault::Credentials, &["AuthFailure*"]),
        (Fault::Throttled, &["RequestLimitExceeded*"]),
        (Fault::Limit, &["LimitExceeded*"]),
        (Fault::Exists, &["*Duplicate", "*Exists"]),
        (Fault::NotFound, &["ResourceNotFound*"]),
        (Fault::Temporary, &["InternalError*", "ResourceUnavailable*", "ServiceUnavailable*"]),
        (Fault::Temporary, &["FailedOperation*", "ResourceInUse*"]),
    ],
    wrong_clock: "AuthFailure.SignatureExpire",
    no_table: "",
    tables_of: "VPC",
    quota: "of routing policies in a route table",
};

pub(crate) async fn view(client: &Client, table: &Table) -> Result<TableView> {
    const ACTION: &str = "DescribeRouteTables";
    let interface = &client.access.interface;
    let mut tables: Vec<Value> = Vec::new();
    loop {
        // Numbers are texts here.
        let mut question = json!({"Offset": tables.len().to_string(), "Limit": PAGE.to_string()});
        match table {
            Table::Named(id) => question["RouteTableIds"] = json!([id]),
            Table::Detected => {
                question["Filters"] = json!([{"Name": "vpc-id", "Values": [interface.vpc]}]);
            }
        }
        let page = call(client, ACTION, question).await?;
        let found = items(&page, "/RouteTableSet");
        tables.extend_from_slice(found);
        let total = page["TotalCount"].as_u64().unwrap_or_default();
        if found.is_empty() || tables.len() as u64 >= total {
            break;
        }
    }
    // The table of this node's subnet, else the VPC's own.
    let of_subnet = |table: &&Value| {
        let mut associations = items(table, "/AssociationSet").iter();
        associations.any(|association| association["SubnetId"] == interface.subnet)
    };
    let chosen = match table {
        Table::Named(_) => tables.last(),
        Table::Detected => tables
            .iter()
            .find(of_subnet)
            .or_else(|| tables.iter().find(|table| table["Main"] == true)),
    };
    let of = format!("{table} of {}", interface.vpc);
    let chosen = chosen.ok_or_else(|| Client::no_table(ACTION, &of))?;
    let routes = items(chosen, "/RouteSet").iter().filter_map(read).collect();
    Ok(TableView { id: text(chosen, "/RouteTableId").to_owned(), routes })
}

fn read(route: &Value) -> Option<TableRoute> {
    let gateway = text(route, "/GatewayId");
    Some(TableRoute {
        id: route["RouteId"].to_string(),
        destination: text(route, "/DestinationCidrBlock").parse().ok()?,
        next_hop: match text(route, "/GatewayType") {
            TO_MACHINE => gateway.to_owned(),
            other => format!("{other} {gateway}"),
        },
        state: if route["Enabled"] == true { RouteState::Active } else { RouteState::Off },
        written: text(route, "/RouteType") == "USER",
    })
}

pub(crate) async fn put(client: &Client, table: &str, route: &CloudRoute) -> Result<()> {
    let route = json!({
        "DestinationCidrBlock": route.destination.to_string(),
        "GatewayType": TO_MACHINE,
        "GatewayId": route.next_hop,
        "Enabled": true,
        "RouteDescription": "flannel",
    });
    let question = json!({"RouteTableId": table, "Routes": [route]});
    call(client, "CreateRoutes", question).await.map(drop)
}

pub(crate) async fn remove(client: &Client, table: &str, found: &TableRoute) -> Result<()> {
    let id: u64 = found.id.parse().unwrap_or_default();
    let question = json!({"RouteTableId": table, "Routes": [{"RouteId": id}]});
    call(client, "DeleteRoutes", question).await.map(drop)
}
