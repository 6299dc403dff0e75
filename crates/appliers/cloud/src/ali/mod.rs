//! Alibaba Cloud's route tables, by its VPC API of 2016-04-28.
//!
//! Shapes: "Virtual Private Cloud API reference" (www.alibabacloud.com/help/en/vpc/developer-reference), operations
//! DescribeRouteTableList, DescribeRouteEntryList, CreateRouteEntry and DeleteRouteEntry with their error codes.

mod call;

use flannel_entries::cloud::{CloudRoute, Provider, Table};
use serde_json::Value;

use crate::client::{Client, RouteState, TableRoute, TableView};
use crate::instance::Dialect;
use crate::json::{items, text};
use crate::{Fault, Result};
use call::call;

const PAGE: usize = 50;

/// "Instance metadata" of the ECS documentation (www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata),
/// in its hardened mode where there is one.
pub(crate) const DIALECT: Dialect = Dialect {
    provider: Provider::AliVpc,
    metadata: "http://100.100.100.200",
    metadata_variable: None,
    session: Some(["x-aliyun-ecs-metadata-token-ttl-seconds", "x-aliyun-ecs-metadata-token"]),
    region: "region-id",
    zone: "zone-id",
    interface: Some("network/interfaces/macs/MAC/network-interface-id"),
    vpc: "vpc-id",
    subnet: "network/interfaces/macs/MAC/vswitch-id",
    addresses: &["network/interfaces/macs/MAC/private-ipv4s"],
    roles: "ram/security-credentials/",
    role: "RAM role",
    profile: "RAM role",
    ids: &["ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID"],
    secrets: &["ACCESS_KEY_SECRET", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"],
    tokens: &["ALIBABA_CLOUD_SECURITY_TOKEN"],
    cloud: "Alibaba Cloud",
    how_to_give_keys: "give the instance a RAM role, or set Backend.AccessKeyID and AccessKeySecret, or ACCESS_KEY_ID \
                       and ACCESS_KEY_SECRET for flanneld",
    // Codes of the operations, and the "Common error codes" of the API reference.
    faults: &[
        (Fault::Denied, &["Forbidden*", "NoPermission"]),
        (Fault::Credentials, &["InvalidAccessKeyId*", "InvalidSecurityToken*"]),
        (Fault::Credentials, &["SignatureDoesNotMatch*", "IncompleteSignature*"]),
        (Fault::Credentials, &["InvalidTimeStamp*"]),
        (Fault::Throttled, &["Throttling*"]),
        (Fault::Limit, &["*Quota*"]),
        (Fault::Exists, &["*Duplicated", "*AlreadyExist"]),
        (Fault::NotFound, &["*NotFound", "*NotExist"]),
        (Fault::Temporary, &["*Conflict*", "*Status*"]),
    ],
    wrong_clock: "InvalidTimeStamp",
    no_table: "RouteTable",
    tables_of: "VPC",
    quota: "of custom routes in a route table",
};

pub(crate) async fn view(client: &Client, table: &Table) -> Result<TableView> {
    let id = match table {
        Table::Named(id) => id.clone(),
        Table::Detected => detect(client).await?,
    };
    let (mut routes, mut next) = (Vec::new(), String::new());
    loop {
        let mut parameters = vec![("RouteTableId", id.clone()), ("MaxResult", "100".to_owned())];
        if !next.is_empty() {
            parameters.push(("NextToken", next));
        }
        let page = call(client, "DescribeRouteEntryList", parameters).await?;
        routes.extend(items(&page, "/RouteEntrys/RouteEntry").iter().filter_map(read));
        next = text(&page, "/NextToken").to_owned();
        if next.is_empty() {
            return Ok(TableView { id, routes });
        }
    }
}

/// The table that is bound to the switch of this node, else the default one of the VPC.
async fn detect(client: &Client) -> Result<String> {
    const ACTION: &str = "DescribeRouteTableList";
    let interface = &client.access.interface;
    let (mut system, mut seen, mut number) = (None, 0, 1_usize);
    loop {
        let parameters = vec![
            ("VpcId", interface.vpc.clone()),
            ("PageNumber", number.to_string()),
            ("PageSize", PAGE.to_string()),
        ];
        let page = call(client, ACTION, parameters).await?;
        let tables = items(&page, "/RouterTableList/RouterTableListType");
        seen += tables.len() as u64;
        for table in tables {
            let id = text(table, "/RouteTableId");
            let mut switches = items(table, "/VSwitchIds/VSwitchId").iter();
            if switches.any(|switch| *switch == interface.subnet) {
                return Ok(id.to_owned());
            }
            if text(table, "/RouteTableType") == "System" {
                system = Some(id.to_owned());
            }
        }
        if tables.is_empty() || seen >= page["TotalCount"].as_u64().unwrap_or_default() {
            let of = format!("{} of {}", interface.subnet, interface.vpc);
            return system.ok_or_else(|| Client::no_table(ACTION, &of));
        }
        number += 1;
    }
}

fn read(entry: &Value) -> Option<TableRoute> {
    let hop = items(entry, "/NextHops/NextHop").first().unwrap_or(&Value::Null);
    let id = text(hop, "/NextHopId");
    Some(TableRoute {
        id: text(entry, "/RouteEntryId").to_owned(),
        destination: text(entry, "/DestinationCidrBlock").parse().ok()?,
        next_hop: match text(hop, "/NextHopType") {
            "Instance" => id.to_owned(),
            other => format!("{other} {id}"),
        },
        // One that is still being made is as good: it is read again.
        state: RouteState::Active,
        written: text(entry, "/Type") == "Custom",
    })
}

pub(crate) async fn put(client: &Client, table: &str, route: &CloudRoute) -> Result<()> {
    let parameters = vec![
        ("RouteTableId", table.to_owned()),
        ("DestinationCidrBlock", route.destination.to_string()),
        ("NextHopType", "Instance".to_owned()),
        ("NextHopId", route.next_hop.clone()),
    ];
    call(client, "CreateRouteEntry", parameters).await.map(drop)
}

pub(crate) async fn remove(client: &Client, table: &str, found: &TableRoute) -> Result<()> {
    let parameters = vec![("RouteTableId", table.to_owned()), ("RouteEntryId", found.id.clone())];
    call(client, "DeleteRouteEntry", parameters).await.map(drop)
}
